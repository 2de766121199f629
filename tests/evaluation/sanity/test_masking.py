"""Encoders with a deliberately broken gradient are flagged; intact ones are not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, L2, Away, Linf, Toward, Wiener, load_encoder
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders.phash import Phash
from attacks.eot.protocols import Objective
from attacks.evaluation.sanity import Check, table
from attacks.evaluation.sanity.battery import MASKING, masking
from attacks.evaluation.sanity.differences import CHANGES, LENGTH, SLOPES, Probe, compare_gradient, differences
from attacks.evaluation.sanity.short_attack import PassCount
from attacks.study.pipeline import preset
from tests.helpers.solving import examine, trial
from transforms import resize

CAMERA = preset("camera")


class Quantised(nn.Module):
    """Rounds its input. Without a gradient, or with the given one."""

    def __init__(self, step, backward=None):
        super().__init__()
        self.step, self.backward = step, backward

    def forward(self, x):
        rounded = (x / self.step).round() * self.step
        return rounded if self.backward is None else Surrogate.apply(x, rounded, self.backward)


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value, backward):
        ctx.backward_ = backward
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.backward_(grad), None, None


class Noisy(nn.Module):
    """Adds new noise to each gradient."""

    def forward(self, x):
        return Surrogate.apply(x, x, lambda grad: grad + 2 * grad.std() * torch.randn(grad.shape, dtype=grad.dtype))


class Ripples(nn.Module):
    """A picture with fine ripples: right slopes that lead nowhere."""

    def forward(self, x):
        return x + 0.03 * torch.sin(400 * x)


class Behind(nn.Module):
    """The pocket encoder with a module before it, or after it."""

    def __init__(self, first=None, end=None):
        super().__init__()
        self.encoder = load_encoder()
        self.first, self.last = first or nn.Identity(), end or nn.Identity()
        self.eval()

    def forward(self, images):
        return self.last(self.encoder(self.first(images)))


class DetachedBranch(nn.Module):
    """The encoder's features are detached; a weak branch has a gradient."""

    def __init__(self):
        super().__init__()
        self.encoder, self.weak = load_encoder(), nn.Conv2d(3, 128, 8, 8)
        self.eval().requires_grad_(False)

    def forward(self, images):
        small = resize(images, 32, "torch_bilinear")
        return self.encoder(images).detach() + 0.1 * self.weak(small).mean((2, 3))


class Inner(nn.Module):
    """The pocket encoder with rounded activations and a wrong surrogate gradient."""

    def __init__(self):
        super().__init__()
        self.encoder, self.round = load_encoder(), Quantised(0.1, lambda grad: grad.flip(-1))
        self.eval()

    def forward(self, images):
        pocket = self.encoder
        activations = self.round(F.relu(pocket.stem(pocket.preprocess(images))))
        return pocket.head(pocket.stages(activations).flatten(1))


BROKEN_GRADIENTS = {
    "quantised output": lambda: Behind(end=Quantised(0.5)),
    "quantised output, wrong surrogate": lambda: Behind(end=Quantised(0.25, lambda grad: -grad)),
    "quantised activations, wrong surrogate": Inner,
    "detached branch": DetachedBranch,
    "gradient noise": lambda: Behind(first=Noisy()),
}
HONEST = {
    "pocket": load_encoder,
    "eight bits, straight through": lambda: Behind(first=Quantised(1 / 255, lambda grad: grad)),
    "perceptual hash": Phash,
}


@pytest.fixture(scope="module")
def pictures():
    return tiles(128, HELD_OUT).spread(2).images


def setup(encoder, seed=0, **changes):
    result = {"encoder": encoder, "objective": Away(), "perturbation": Linf(8 / 255), "optimiser": Wiener()}
    return result | {"eot": EOT(CAMERA, views=8), "seed": seed} | changes


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


def gradient_checks(encoder, pictures, module, seed):
    test = trial(pictures, encoder(pictures), setup(encoder, seed, steps=1), PassCount())
    return differences(test, module)


@pytest.mark.parametrize(
    ("verdict", "make"),
    [pytest.param("failed", make, id=name, marks=pytest.mark.slow) for name, make in BROKEN_GRADIENTS.items()]
    + [pytest.param("passed", make, id=name) for name, make in HONEST.items()],
)
@pytest.mark.parametrize("wide", [pytest.param(True, marks=pytest.mark.slow), False], ids=["float64", "float32"])
def test_a_broken_gradient_differs_from_finite_differences(verdict, make, wide, pictures):
    encoder = make()
    outcome = verdicts(gradient_checks(encoder, pictures, encoder if wide else None, seed=0))
    assert ("failed" in (outcome[SLOPES], outcome[CHANGES])) == (verdict == "failed"), outcome


class Factor(nn.Module):
    """A linear encoder whose gradient is multiplied by `factor`."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.weight = factor, nn.Parameter(torch.randn(3 * 8 * 8, 4), requires_grad=False)

    def forward(self, images):
        copies = 1 * images
        if copies.requires_grad:
            copies.register_hook(lambda grad: self.factor * grad)
        return copies.flatten(1) @ self.weight


class Sum(Objective):
    def __call__(self, features, anchor):
        return features.sum(1)


def linear_checks(factor, views=4):
    """The checks of a linear encoder's gradient, by name."""
    module, images = Factor(factor), torch.rand(views, 3, 8, 8)
    checks = compare_gradient(
        module, Probe(images, images, torch.zeros(views, 4), Sum()), module=module, count=lambda e: e
    )
    return {check.name: check for check in checks}


@pytest.mark.parametrize("factor", [1.0, 1.2, 1e-12, 1e12, 0.5])
def test_a_factor_of_the_gradient_is_its_length_and_hides_nothing(factor):
    checks = linear_checks(factor)
    assert checks[SLOPES].figures["cosine"] == pytest.approx(1, abs=1e-5)
    assert checks[CHANGES].figures["cosine"] == pytest.approx(1, abs=1e-5)
    assert checks[LENGTH].figures["factor"] == pytest.approx(factor, rel=1e-4)
    assert checks[LENGTH].verdict == ("passed" if factor in (1.0, 1.2) else "failed")


def test_a_reversed_gradient_has_the_cosine_minus_one():
    checks = linear_checks(-1.0)
    for name in (SLOPES, CHANGES):
        assert checks[name].figures["cosine"] == pytest.approx(-1, abs=1e-5) and checks[name].verdict == "failed"
    assert checks[LENGTH].verdict == "skipped"


@pytest.mark.slow
def test_ripples_pass_small_differences_and_fail_visible_changes(pictures):
    encoder = Behind(first=Ripples())
    for wide in (encoder, None):
        outcome = verdicts(gradient_checks(encoder, pictures, wide, 0))
        assert outcome[CHANGES] == "failed"
    assert verdicts(gradient_checks(encoder, pictures, encoder, 0))[SLOPES] == "passed"


@pytest.mark.slow
def test_a_wrapper_between_encoder_and_attack_is_checked(pictures):
    # The module is intact; the wrapper cuts half of its graph.
    encoder = load_encoder()

    def cut(images):
        features = encoder(images)
        half = features.shape[1] // 2
        return torch.cat([features[:, :half].detach(), features[:, half:]], dim=1)

    probe = Probe(pictures, pictures, encoder(pictures).flip(0), Toward())
    for wrapper, verdict in ((encoder, "passed"), (cut, "failed")):
        outcome = verdicts(compare_gradient(wrapper, probe, module=encoder, count=lambda e: e))
        assert outcome[SLOPES] == verdict, outcome


@pytest.mark.slow
def test_the_check_does_not_change_the_encoder(pictures):
    encoder = load_encoder()
    state = copy.deepcopy(encoder.state_dict())
    gradient_checks(encoder, pictures, encoder, 0)
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())
    assert next(encoder.parameters()).dtype == torch.float32


def test_each_indicator_alone_is_flagged():
    good = [Check(name, "passed", "") for name in MASKING]
    assert masking(good).verdict == "passed"
    for i, name in enumerate(MASKING):
        checks = [*good[:i], Check(name, "failed", ""), *good[i + 1 :], Check("plateau", "failed", "")]
        check = masking(checks)
        assert check.verdict == "failed" and name in check.message and "plateau" not in check.message
    assert masking([Check(name, "skipped", "") for name in MASKING]).figures["asked"] == 0


@pytest.mark.slow
def test_a_detached_branch_fails_several_checks(pictures):
    encoder = DetachedBranch()
    sanity = examine(pictures, encoder(pictures), views=2, **setup(encoder, steps=30))
    failed = {check.name for check in sanity.failed}
    assert {SLOPES, CHANGES, "masking"} <= failed, table(sanity)
    assert len(failed & set(MASKING)) >= 3, table(sanity)  # the failed checks depend on the optimiser
    assert "active test" not in failed  # the optimiser is not to blame


@pytest.mark.nightly
@pytest.mark.parametrize("case", [(ball, n) for n in range(5) for ball in (Linf(8 / 255), L2(4.0))])
def test_an_intact_encoder_is_never_flagged(case):
    perturbation, seed = case
    pictures = tiles(128, HELD_OUT).images[[2 * seed, 2 * seed + 7]]
    encoder = load_encoder()
    sanity = examine(pictures, encoder(pictures), **setup(encoder, seed, perturbation=perturbation))
    assert not sanity.failed, table(sanity)
    assert sanity.cost["forward"] < 4600 and sanity.cost["backward"] < 1600

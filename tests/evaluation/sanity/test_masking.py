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
from attacks.evaluation.sanity.differences import slopes
from attacks.evaluation.sanity.questions import differences
from attacks.evaluation.sanity.short_attack import Tally
from attacks.experiment.build.pipeline import preset
from tests.helpers.sampled import mostly_nightly
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


class Behind(nn.Module):
    """The pocket encoder with a module before it, or after it."""

    def __init__(self, before=None, after=None):
        super().__init__()
        self.encoder = load_encoder()
        self.before, self.after = before or nn.Identity(), after or nn.Identity()
        self.eval()

    def forward(self, images):
        return self.after(self.encoder(self.before(images)))


class Detached(nn.Module):
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
        hidden = self.round(F.relu(pocket.stem(pocket.preprocess(images))))
        return pocket.head(pocket.stages(hidden).flatten(1))


BROKEN = {
    "quantised output": lambda: Behind(after=Quantised(0.5)),
    "quantised output, wrong surrogate": lambda: Behind(after=Quantised(0.25, lambda grad: -grad)),
    "quantised activations, wrong surrogate": Inner,
    "detached branch": Detached,
    "gradient noise": lambda: Behind(before=Noisy()),
}
HONEST = {
    "pocket": load_encoder,
    "eight bits, straight through": lambda: Behind(before=Quantised(1 / 255, lambda grad: grad)),
    "perceptual hash": Phash,
}


@pytest.fixture(scope="module")
def pictures():
    return tiles(128, HELD_OUT).spread(2).images


def setup(encoder, seed=0, **changes):
    result = {"encoder": encoder, "objective": Away(), "perturbation": Linf(8 / 255), "optimiser": Wiener()}
    return result | {"eot": EOT(CAMERA, views=8), "seed": seed} | changes


def slope_check(encoder, pictures, module, seed):
    test = trial(pictures, encoder(pictures), setup(encoder, seed, steps=1), Tally())
    return differences(test, module)


@pytest.mark.parametrize(
    ("verdict", "make"),
    [pytest.param("failed", make, id=name, marks=pytest.mark.slow) for name, make in BROKEN.items()]
    + [pytest.param("passed", make, id=name) for name, make in HONEST.items()],
)
@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
def test_a_broken_gradient_differs_from_finite_differences(verdict, make, wide, pictures):
    encoder = make()
    check = slope_check(encoder, pictures, encoder if wide else None, seed=0)
    assert check.verdict == verdict, check


def test_the_error_is_the_relative_error_of_the_gradient():
    # A gradient that is too long by a half, of a known linear encoder: (1.5 - 1) / 1.5.
    class Half(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor, self.weight = factor, nn.Parameter(torch.randn(3 * 8 * 8, 4))

        def forward(self, images):
            features = images.flatten(1) @ self.weight
            return self.factor * features + ((1 - self.factor) * features).detach()

    class Sum(Objective):
        def __call__(self, features, anchor):
            return features.sum(1)

    views = torch.rand(3, 3, 8, 8)
    for factor, error in ((1.0, 0.0), (1.5, 1 / 3), (0.5, 0.5), (-1.0, 2.0)):
        module = Half(factor).requires_grad_(False)
        arguments = {"module": module, "count": lambda encoder: encoder, "untouched": views, "seed": 0}
        check = slopes(views, torch.zeros(3, 4), module, Sum(), **arguments)
        assert check.figures["error"] == pytest.approx(error, abs=1e-4)
        assert check.verdict == ("passed" if error <= 0.2 else "failed")


def test_a_wrapper_between_encoder_and_attack_is_checked(pictures):
    # The module is intact; the wrapper cuts half of its graph.
    encoder = load_encoder()

    def cut(images):
        features = encoder(images)
        half = features.shape[1] // 2
        return torch.cat([features[:, :half].detach(), features[:, half:]], dim=1)

    arguments = {"count": lambda encoder: encoder, "untouched": pictures, "seed": 0}
    anchor = encoder(pictures).flip(0)
    for wrapped, verdict in ((encoder, "passed"), (cut, "failed")):
        check = slopes(pictures, anchor, wrapped, Toward(), module=encoder, **arguments)
        assert check.verdict == verdict, check


def test_the_check_does_not_change_the_encoder(pictures):
    encoder = load_encoder()
    state = copy.deepcopy(encoder.state_dict())
    slope_check(encoder, pictures, encoder, 0)
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
    encoder = Detached()
    sanity = examine(pictures, encoder(pictures), views=2, **setup(encoder, steps=30))
    failed = {check.name for check in sanity.failed}
    assert {"finite differences", "masking"} <= failed, table(sanity)
    assert len(failed & set(MASKING)) >= 3, table(sanity)  # the failed checks depend on the optimiser
    assert "active test" not in failed  # the optimiser is not to blame


@pytest.mark.parametrize("perturbation", [Linf(8 / 255), L2(4.0)], ids=["linf", "l2"])
@pytest.mark.parametrize("seed", mostly_nightly(range(5), 5))
def test_an_intact_encoder_is_never_flagged(perturbation, seed):
    pictures = tiles(128, HELD_OUT).images[[2 * seed, 2 * seed + 7]]
    encoder = load_encoder()
    sanity = examine(pictures, encoder(pictures), **setup(encoder, seed, perturbation=perturbation))
    assert not sanity.failed, table(sanity)
    assert sanity.cost["forward"] < 3600 and sanity.cost["backward"] < 1200

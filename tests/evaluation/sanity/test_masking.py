"""Encoders with a deliberately broken gradient are flagged; intact ones are not."""

import copy
import math

import pytest
import torch
from torch import nn

from attacks import EOT, L2, Away, Linf, Toward, Wiener, load_encoder
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders.passes import PassCount
from attacks.encoders.phash import Phash
from attacks.eot.protocols import Objective
from attacks.evaluation.sanity import Check, table
from attacks.evaluation.sanity.battery import MASKING, masking
from attacks.evaluation.sanity.differences import CHANGES, LENGTH, SLOPES, Probe, compare_gradient, differences
from attacks.study.pipeline import preset
from scripts.benchmarks.zoo_encoders import SIZE, rigged_encoders
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import examine, trial

CAMERA = preset("camera")


#: Encoders with a broken gradient, and honest ones; a flat encoder has no gradient.
BROKEN_GRADIENTS = ("sign of the features", "rounded activations", "rounding, reversed gradient", "weak branch")
BROKEN_GRADIENTS += ("gradient with noise",)
HONEST = {"pocket": load_encoder, "perceptual hash": Phash}


@pytest.fixture(scope="module")
def pictures():
    return tiles(SIZE, HELD_OUT).spread(2).images


def setup(encoder, seed=0, **changes):
    result = {"encoder": encoder, "objective": Away(), "perturbation": Linf(8 / 255), "optimiser": Wiener()}
    return result | {"eot": EOT(CAMERA, views=8), "seed": seed} | changes


def verdicts(checks):
    return {check.name: check.verdict for check in checks}


def gradient_checks(encoder, pictures, module, seed):
    test = trial(pictures, encoder(pictures), setup(encoder, seed, steps=1), PassCount())
    return differences(test, module)


@pytest.mark.parametrize("name", [*mostly_slow(BROKEN_GRADIENTS, 1), *HONEST])
@pytest.mark.parametrize("wide", [pytest.param(True, marks=pytest.mark.slow), False], ids=["float64", "float32"])
def test_a_broken_gradient_differs_from_finite_differences(name, wide, pictures):
    encoder = HONEST[name]() if name in HONEST else rigged_encoders()[name].encoder
    outcome = verdicts(gradient_checks(encoder, pictures, encoder if wide else None, seed=0))
    assert ("failed" in (outcome[SLOPES], outcome[CHANGES])) == (name not in HONEST), outcome


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
    probe = Probe(images, images, torch.zeros(views, 4), Sum())
    checks = compare_gradient(module, probe, module=module)
    return {check.name: check for check in checks}


@pytest.mark.parametrize("factor", [1.0, 1.2, 1e-12, 1e12, 0.5, -1.0])
def test_a_factor_of_the_gradient_is_its_length_and_hides_nothing_unless_it_is_negative(factor):
    checks = linear_checks(factor)
    for name in (SLOPES, CHANGES):
        assert checks[name].figures["cosine"] == pytest.approx(math.copysign(1, factor), abs=1e-5)
        assert checks[name].verdict == ("passed" if factor > 0 else "failed")
    if factor > 0:
        assert checks[LENGTH].figures["factor"] == pytest.approx(factor, rel=1e-4)
    verdict = "skipped" if factor < 0 else "passed" if factor in (1.0, 1.2) else "failed"
    assert checks[LENGTH].verdict == verdict


def test_ripples_pass_small_differences_and_fail_visible_changes(pictures):
    encoder = rigged_encoders()["ripples 0.03 sin 400"].encoder
    for wide in (encoder, None):
        outcome = verdicts(gradient_checks(encoder, pictures, wide, 0))
        assert outcome[CHANGES] == "failed"
    assert verdicts(gradient_checks(encoder, pictures, encoder, 0))[SLOPES] == "passed"


@pytest.mark.slow
def test_a_wrapper_between_encoder_and_attack_is_checked(pictures):
    # The module is intact; the wrapper cuts most of its graph.
    encoder = load_encoder()

    def cut(images):
        features = encoder(images)
        return torch.cat([features[:, :100].detach(), features[:, 100:]], dim=1)

    probe = Probe(pictures, pictures, encoder(pictures).flip(0), Toward())
    for wrapper, verdict in ((encoder, "passed"), (cut, "failed")):
        outcome = verdicts(compare_gradient(wrapper, probe, module=encoder))
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
    encoder = rigged_encoders()["weak branch"].encoder
    sanity = examine(pictures, encoder(pictures), views=2, **setup(encoder, steps=30))
    failed = {check.name for check in sanity.failed}
    assert {SLOPES, CHANGES, "masking"} <= failed, table(sanity)
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

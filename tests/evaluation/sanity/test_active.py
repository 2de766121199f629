"""The active test: the planted optimum against its closed form; working attacks reach it, broken ones do not."""

from dataclasses import dataclass

import pytest
import torch

from attacks import EOT, L2, PGD, SGD, Away, Linf, Toward, Universal
from attacks.evaluation.sanity.check import mean
from attacks.evaluation.sanity.questions import (
    COLOURS,
    QUERIES,
    SHARE,
    PlantedEncoder,
    PlantedObjective,
    active,
    balance,
    finds_promise,
    promise,
)
from attacks.evaluation.sanity.short_attack import PassCount
from attacks.optimisers.apgd import APGD
from attacks.optimisers.gradient import Adam
from attacks.optimisers.square import Square
from attacks.optimisers.wiener import Wiener
from tests.helpers.sampling import mostly_slow
from tests.helpers.small import small, smooth
from tests.helpers.solving import trial
from transforms import Affine, Brightness, Compose

VIEWS = Compose([Affine(degrees=20, scale=(0.8, 1.2), translate=0.1), Brightness(0.1)])
double = torch.float64


@pytest.fixture
def images():
    """With values at the bounds too."""
    return (1.3 * smooth() - 0.1).clamp(0, 1)


def verdict(images, optimiser, perturbation, objective=Away(), steps=20):  # noqa: B008
    """The active test as the battery runs it."""
    encoder = small()
    setup = {"encoder": encoder, "objective": objective, "perturbation": perturbation}
    setup |= {"optimiser": optimiser, "eot": EOT(VIEWS, views=4), "steps": steps}
    test = trial(images, encoder(images), setup, PassCount())
    clean = mean(test.clean_losses())
    return active(test, clean, clean - mean(test.run(optimiser=PGD(), steps=5).losses))


def rise(images, delta):
    return (balance(images + delta) - balance(images))[:, 0]


def test_the_balance_is_linear_and_position_independent(images):
    other = torch.rand(images.shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(balance(0.3 * images + 0.7 * other), 0.3 * balance(images) + 0.7 * balance(other))
    torch.testing.assert_close(balance(images.flip(3).transpose(2, 3)), balance(images))
    assert sum(COLOURS) != 0  # a grey delta has a balance too


def test_the_promise_is_the_optimum_of_an_linf_ball_in_the_box(images):
    images = images.double()
    weights = torch.tensor(COLOURS, dtype=double)[:, None, None]
    room = torch.where(weights > 0, 1 - images, images).clamp(max=0.1)
    expected = (weights.abs() * room).sum((1, 2, 3)) / images[0, 0].numel()
    torch.testing.assert_close(rise(images, promise(Linf(0.1), images)), expected, rtol=1e-9, atol=0)


def test_the_promise_is_the_optimum_of_an_l2_ball_and_that_of_a_shared_delta_is_shared(images):
    inside = 0.4 + 0.2 * images.double()  # the box does not bind
    expected = 0.5 * torch.tensor(COLOURS, dtype=double).norm() / inside[0, 0].numel() ** 0.5
    single, shared = (promise(perturbation, inside) for perturbation in (L2(0.5), Universal(L2(0.5))))
    assert len(shared) == 1
    for delta in (single, shared):
        torch.testing.assert_close(rise(inside, delta), expected.expand(2), rtol=1e-9, atol=0)


def test_planted_features_contain_the_encoder_features(images):
    encoder, objective = small(), PlantedObjective(Toward(), 3.0)
    features, anchor = PlantedEncoder(encoder)(images), (torch.ones(2, 12), torch.zeros(2, 1))
    assert torch.equal(features[0], encoder(images))
    expected = Toward()(encoder(images), torch.ones(2, 12)) - 3 * balance(images)[:, 0]
    torch.testing.assert_close(objective(features, anchor), expected)
    assert not objective.stationary_at_anchor and not objective.paired
    assert PlantedObjective(Away(), 1.0).stationary_at_anchor


def test_the_verdict_is_a_share_of_the_promise():
    clean, optimum = torch.full((2, 4), 1.0), torch.full((2, 4), -9.0)
    for share in (0.0, 0.5, SHARE - 0.01, SHARE + 0.01, 1.0, 1.1):
        check = finds_promise(clean, optimum, torch.full((2, 4), 1 - 10 * share))
        assert check.figures["share"] == pytest.approx(share)
        assert check.verdict == ("passed" if share >= SHARE else "failed")
    assert finds_promise(clean, clean, clean).verdict == "failed"


RIGHT = {"wiener": Wiener(), "pgd": PGD(), "plain pgd": PGD(0.2, 0.0, "constant"), "adam": Adam(), "apgd": APGD()}
SETS = {"linf": Linf(0.1), "l2": L2(1.0), "universal": Universal(Linf(0.1))}


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", SETS.values(), ids=SETS)
@pytest.mark.parametrize("optimiser", RIGHT.values(), ids=RIGHT)
def test_every_working_optimiser_passes(optimiser, perturbation, images):
    check = verdict(images, optimiser, perturbation, steps=60 if isinstance(optimiser, Adam) else 20)
    assert check.verdict == "passed", check


@pytest.mark.slow
def test_random_search_passes_with_enough_queries(images):
    assert verdict(images, Square(), Linf(0.1), steps=QUERIES - 1).verdict == "skipped"
    check = verdict(images, Square(), Linf(0.1), steps=QUERIES)
    assert check.verdict == "passed", check


@dataclass(frozen=True)
class Ascent(PGD):
    def step(self, delta, result, state, constraint, progress):
        return super().step(delta, result._replace(grad=-result.grad), state, constraint, progress)


@dataclass(frozen=True)
class Blind(PGD):
    def step(self, delta, result, state, constraint, progress):
        noise = torch.randn(result.grad.shape, generator=torch.Generator().manual_seed(int(1e6 * progress.before[0])))
        return super().step(delta, result._replace(grad=noise), state, constraint, progress)


@dataclass(frozen=True)
class Fixed(Linf):
    def move(self, delta, by, images):
        return torch.zeros_like(delta)


WRONG = {
    "ascent": (Ascent(), Linf(0.1)),
    "a thousandth of the step": (PGD(0.2e-3), Linf(0.1)),
    "a thousandth of the rate": (SGD(2e-3), L2(1.0)),
    "blind": (Blind(), Linf(0.1)),
    "a projection to zero": (PGD(), Fixed(0.1)),
}


@pytest.mark.parametrize("wrong", mostly_slow(WRONG.values(), 3), ids=WRONG)
def test_every_broken_attack_fails(wrong, images):
    optimiser, perturbation = wrong
    check = verdict(images, optimiser, perturbation)
    assert check.verdict == "failed", check

"""The rules of the sanity checks, each on losses with a known verdict; the active test: the planted optimum against
its closed form, which working attacks reach and broken ones do not."""

import json
import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, SGD, Away, Linf, Patch, Toward, Universal
from attacks.encoders.passes import PassCount
from attacks.evaluation.sanity import Check, Sanity, table
from attacks.evaluation.sanity.check import (
    END,
    NEGLIGIBLE,
    beats_cards,
    gap,
    grows,
    lowers,
    mean,
    noise,
    not_worse,
    plateau,
    room,
)
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
from attacks.evaluation.sanity.short_attack import cards, hasten, largest, redrawn, rescale, resized
from attacks.optimisers.apgd import APGD
from attacks.optimisers.gradient import Adam
from attacks.optimisers.square import Square
from attacks.optimisers.wiener import Wiener
from tests.helpers.sampling import mostly_slow
from tests.helpers.small import SETS, ids, small, smooth
from tests.helpers.solving import trial
from transforms import Affine, Brightness, Compose


@pytest.fixture
def images():
    """With values at the bounds too."""
    return (1.3 * smooth() - 0.1).clamp(0, 1)


def losses(level, spread=0.05, views=32, seed=0):
    """A table of losses around a level; equal seeds vary together from view to view."""
    return level + spread * torch.randn(2, views, generator=torch.Generator().manual_seed(seed))


def test_a_sanity_report_as_json_and_as_a_table():
    checks = Check("a", "passed", "good"), Check("bb", "failed", "bad", {"x": math.inf}), Check("c", "skipped", "no")
    sanity = Sanity(checks, {"forward": 3.0, "backward": 2.0, "seconds": 0.1})
    content = json.loads(json.dumps(sanity.to_dict(), allow_nan=False))
    assert (content["failed"], content["cost"]) == (["bb"], {"forward": 3, "backward": 2})
    assert content["checks"][1]["figures"] == {"x": None}
    first, *lines = table(sanity).splitlines()
    assert "1 of 2 checks passed, 1 skipped" in first
    assert lines == ["bb: FAILED, bad", "c: skipped, no"]


def test_a_gap_is_paired_by_view_and_ignored_below_a_small_share_of_the_gain():
    a = losses(0.0, spread=1.0)  # the views differ far more than the two runs
    assert gap(a + 0.01, a, 0.0).above and not gap(losses(0.01, 1.0, seed=1), a, 0.0).above
    assert gap(a + 1.1 * NEGLIGIBLE, a, 1.0).above and not gap(a + 0.9 * NEGLIGIBLE, a, 1.0).above


def test_an_attack_must_lower_the_loss():
    clean = losses(0.9)
    assert lowers(clean, clean - 0.1, 20, 4).verdict == "passed"
    for result in (clean, clean + 0.1, losses(0.9, seed=1)):
        assert lowers(clean, result, 20, 4).verdict == "failed"


def test_without_a_bound_an_attack_must_beat_white_black_and_noise():
    card_losses = {"white": losses(0.3), "black": losses(0.1), "noise": losses(0.2)}
    for unbound, eps_loss, verdict in (
        (-0.5, 0.6, "passed"),
        (0.1, 0.6, "passed"),  # equal to black
        (0.2, 0.6, "failed"),
        (0.5, 0.6, "failed"),
        (-0.1, -0.5, "failed"),  # worse than with its own radius
    ):
        assert beats_cards(losses(unbound), losses(eps_loss), card_losses, 0.3).verdict == verdict


def test_the_loss_falls_as_the_radius_grows():
    def verdict(clean, *levels):
        return grows(losses(clean), dict(zip((1, 4, 16), map(losses, levels), strict=True)), 0.3).verdict

    assert verdict(0.9, 0.8, 0.6, 0.2) == "passed"
    for order in ((0.6, 0.8, 0.2), (0.8, 0.2, 0.6), (0.2, 0.6, 0.8)):
        assert verdict(0.9, *order) == "failed", order
    assert verdict(0.9, 0.9, 0.9, 0.9) == "failed"  # no effect
    assert verdict(0.9, 0.2, 0.2, 0.2) == "passed"  # the smallest radius is enough
    assert verdict(0.1, 0.8, 0.6, 0.2) == "failed"  # worse than no attack


def test_an_attack_must_not_be_weaker_than_a_baseline():
    for other, verdict in ((0.5, "passed"), (0.41, "passed"), (0.401, "passed"), (0.3, "failed")):
        check = not_worse("baseline", losses(0.4), losses(other), 0.3, "the baseline's", "a remedy")
        assert check.verdict == verdict and ("a remedy" in check.message) == (verdict == "failed")
    level = torch.zeros(2, 32)  # a surrogate must be better by a share of the gain
    for by, verdict in ((0.2, "passed"), (0.3, "failed")):
        assert not_worse("surrogate", level, level - by, 1.0, "", "", 0.25).verdict == verdict


def look_trace(path):
    """A trace with a look every five steps, repeated until the next."""
    return [None if i < 4 else path[(i + 1) // 5 * 5 - 1] for i in range(len(path))]


def test_a_settled_loss_is_distinguished_from_a_falling_one():
    steps = torch.arange(100) / 100
    flat, falling = (torch.exp(-8 * steps)).tolist(), (1 - steps).tolist()
    assert plateau(look_trace(flat)).verdict == "passed"
    check = plateau(look_trace(falling))
    assert check.verdict == "failed"
    assert "attack.gradients" in check.message
    assert check.figures["share"] == pytest.approx(END / 0.95, rel=0.02)  # the first look comes after a twentieth
    assert plateau(look_trace(steps.tolist())).verdict == "failed"  # it rises
    for trace in ([], [None] * 50, [0.5] * 50, [0.9, 0.5]):
        assert plateau(trace).verdict == "skipped"


@pytest.mark.parametrize("c", [0.5, 8.4, 100.0])
@pytest.mark.parametrize("views", [2, 8, 64])
def test_noise_names_the_views_for_the_recommended_cosine(c, views):
    check = noise(torch.full((10, 2), c), views)
    cosine, views_for_goal = math.sqrt(views / (views + c)), check.figures["views"]
    assert check.figures["cosine"] == pytest.approx(cosine)
    assert check.verdict == ("passed" if cosine >= 0.2 else "failed")
    assert math.sqrt(views_for_goal / (views_for_goal + c)) == pytest.approx(0.7)


def test_noise_fails_without_a_signal_and_is_skipped_without_a_measure():
    assert noise(torch.full((10, 2), math.nan), 8).verdict == "skipped"
    check = noise(torch.full((10, 2), math.inf), 8)
    assert check.verdict == "failed" and check.figures["cosine"] == 0
    spread = torch.tensor([[math.nan, 1.0], [2.0, 1.0], [9.0, 9.0], [math.inf, 9.0]])
    assert noise(spread, 8).figures["c"] == 1  # of the first half


def test_the_room_is_the_share_of_a_step_left_by_the_set(images):
    inside = 0.4 + 0.2 * images
    grad = torch.randn(inside.shape, generator=torch.Generator().manual_seed(2))
    centre, corner = torch.zeros_like(inside), -0.1 * grad.sign()
    check = room(Linf(0.1), inside, (centre, grad), (corner, grad))
    assert check.verdict == "passed"
    assert check.figures["step lost at the start"] == pytest.approx(0, abs=1e-4)
    assert check.figures["step lost at the end"] == pytest.approx(1, abs=1e-4)
    assert room(Linf(0.1), inside, (corner, grad), (corner, grad)).verdict == "failed"


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_pixels_without_a_gradient_are_counted(images, share):
    grad = torch.ones_like(images)
    grad[:, :, : round(share * images.shape[2])] = 0
    centre = torch.zeros_like(images)
    check = room(Linf(0.1), images, (centre, grad), (centre, torch.ones_like(grad)))
    assert check.figures["zero gradients at the start"] == pytest.approx(share)
    assert check.figures["zero gradients at the end"] == 0
    assert check.verdict == ("passed" if share < 0.5 else "failed")


@pytest.mark.parametrize("perturbation", SETS, ids=ids)
def test_a_set_is_resized_in_its_own_unit(perturbation, images):
    top = largest(perturbation, images)
    for eps in (0.01, perturbation.eps, top):
        other = resized(perturbation, eps)
        assert type(other) is type(perturbation)
        assert other.eps == pytest.approx(eps)
        noise = other.noise(images, torch.Generator().manual_seed(0))
        assert (other.norm(noise) <= eps * (1 + 1e-5)).all()
    # At the largest radius the set holds every picture.
    deltas = cards(resized(perturbation, top), images, 0)
    for name, value in (("white", 1.0), ("black", 0.0)):
        picture = (images + deltas[name]).clamp(0, 1)
        torch.testing.assert_close(picture, torch.full_like(images, value), rtol=0, atol=1e-5)


def test_only_sets_with_a_radius_and_learning_rates_change_with_it():
    patch = Patch((4, 4), [[0.0, 0.0], [0.5, 0.0], [0.5, 0.5], [0.0, 0.5]])  # its radius is no field
    assert resized(object(), 1.0) is None and resized(patch, 1.0) is None
    assert rescale(PGD(), 10) == PGD()
    assert rescale(SGD(2.0, 0.5), 10) == SGD(20.0, 0.5)


@pytest.mark.parametrize("size", [0.001, 0.05, 0.2, 2.0])
@pytest.mark.parametrize(("run_steps", "steps"), [(100, 20), (10, 20), (1000, 5)])
def test_a_short_run_travels_as_far_as_the_full_run_or_the_set(size, run_steps, steps):
    result = hasten(PGD(size), run_steps, steps).rel_step_size
    assert result >= size
    assert result == size or result * steps == pytest.approx(min(size * run_steps, 4.0))
    assert hasten(SGD(2.0), run_steps, steps) == SGD(2.0)


def test_redrawn_weights_are_a_permutation():
    net = small()
    original = [p.clone() for p in net.parameters()]
    other, twin = redrawn(net, 3), redrawn(net, 3)
    for p, q, r, old in zip(net.parameters(), other.parameters(), twin.parameters(), original, strict=True):
        assert torch.equal(p, old) and torch.equal(q, r) and not torch.equal(p, q)
        assert torch.equal(p.flatten().sort().values, q.flatten().sort().values)
    assert redrawn(nn.Flatten(), 0) is None


VIEWS = Compose([Affine(degrees=20, scale=(0.8, 1.2), translate=0.1), Brightness(0.1)])
double = torch.float64


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
BALLS = {"linf": Linf(0.1), "l2": L2(1.0), "universal": Universal(Linf(0.1))}


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", BALLS.values(), ids=BALLS)
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

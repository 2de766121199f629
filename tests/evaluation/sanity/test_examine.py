"""The rules of the sanity checks, each on losses with a known verdict."""

import json
import math

import pytest
import torch
from torch import nn

from attacks import PGD, SGD, Linf, Patch
from attacks.evaluation.sanity import Check, Sanity, table
from attacks.evaluation.sanity.check import (
    END,
    NEGLIGIBLE,
    beats_cards,
    gap,
    grows,
    lowers,
    noise,
    not_worse,
    plateau,
    room,
)
from attacks.evaluation.sanity.short_attack import cards, hasten, largest, redrawn, rescale, resized
from tests.helpers.small import SETS, ids, small, smooth


@pytest.fixture
def images():
    return smooth()


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
    assert [line.split()[:2] for line in lines] == [["a", "passed"], ["bb", "FAILED"], ["c", "skipped"]]


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

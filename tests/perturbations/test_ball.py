"""The norm balls against independent solutions: nearest points, best steps, and the optimum of a linear loss."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import kstest

import attacks.runtime.blocks
from attacks import EOT, L0, L2, PGD, Linf, Wiener, attack
from attacks.data.gallery import tiles
from attacks.perturbations import L1
from attacks.perturbations.sparse import onto_l0, onto_l1
from tests.helpers.sets import BALLS, ball, double, levels, random, seed, uniform
from tests.helpers.solving import Dot

every_ball = pytest.mark.parametrize("name", BALLS)


def duchi(values, radius):
    """Duchi et al. 2008, figure 1, for one vector."""
    if np.abs(values).sum() <= radius:
        return values
    u = np.sort(np.abs(values))[::-1]
    excess = u.cumsum() - radius
    rho = np.nonzero(u * np.arange(1, len(u) + 1) > excess)[0][-1]
    return np.sign(values) * np.maximum(np.abs(values) - excess[rho] / (rho + 1), 0)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e4])
@pytest.mark.parametrize("radius", [0.01, 1.0, 30.0])
def test_without_bounds_the_l1_projection_equals_duchis(radius, scale):
    values = scale * random(5, 200)
    infinite = torch.full_like(values, math.inf)
    target = np.stack([duchi(row, radius) for row in values.numpy()])
    projection = onto_l1(values, radius, -infinite, infinite)
    np.testing.assert_allclose(projection, target, rtol=0, atol=1e-13 * max(1, scale))


@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 1e6])
def test_the_l1_projection_in_a_box_solves_the_dual(scale):
    values, x = scale * random(6, 3000), uniform(6, 3000)
    x[0], x[1], x[2] = 0, 1, x[2].round()
    size, room = values.abs(), torch.where(values > 0, 1 - x, x)
    result = onto_l1(values, 30.0, -x, 1 - x)
    low, high = torch.zeros(6, 1, dtype=double), size.amax(1, keepdim=True)
    for _ in range(200):
        t = (low + high) / 2
        far = (size - t).clamp(min=0).minimum(room).sum(1, keepdim=True) > 30
        low, high = torch.where(far, t, low), torch.where(far, high, t)
    target = values.sign() * (size - high).clamp(min=0).minimum(room)
    torch.testing.assert_close(result, target, rtol=0, atol=1e-13 * max(1, scale))
    assert (result.abs().sum(1) <= 30 * (1 + 1e-14)).all()


@pytest.mark.parametrize("value", range(5))
def test_the_l0_projection_is_the_best_of_all_subsets(value):
    values, x = 1.5 * random(1, 3, 2, 3, value=value), uniform(1, 3, 2, 3, value=value)
    x[..., 0, 0], x[..., 1, 1] = 0, 1
    pairs = torch.tensor(list(itertools.combinations(range(6), 2)))
    masks = torch.eye(6, dtype=double)[pairs].sum(1).view(-1, 1, 2, 3)
    minimum = (values.clamp(-x, 1 - x) * masks - values).square().sum((1, 2, 3)).min()
    point = onto_l0(values, 2, -x, 1 - x)
    assert (point != 0).any(1).sum() <= 2
    assert float((point - values).square().sum()) == pytest.approx(float(minimum), rel=1e-12)


@pytest.mark.parametrize("length", [0.05, 0.7, 4.0])
def test_the_l1_step_equals_that_of_a_linear_program(length):
    images, perturbation = uniform(3, 1, 4, 5), L1(2.0)
    images[0, 0, 0], images[1, 0, 1] = 0, 1
    delta = perturbation.start(images, seed(1))
    grad = random(3, 1, 4, 5, value=2)
    result = perturbation.descend(grad, torch.full((3,), length, dtype=double), delta, images)
    for g, x, step in zip(grad.flatten(1), (images + delta).flatten(1), result.flatten(1), strict=True):
        cost = np.concatenate([g, -g])  # the move is up minus down
        bounds = [(0, 1 - float(v)) for v in x] + [(0, float(v)) for v in x]
        target = linprog(cost, A_ub=np.ones((1, 40)), b_ub=[length], bounds=bounds).fun
        assert float((g * step).sum()) == pytest.approx(target, rel=1e-9)
        assert step.abs().sum() <= length * (1 + 1e-12)
        assert (x + step).min() >= -1e-15
        assert (x + step).max() <= 1 + 1e-15


def best(perturbation, images, weight):
    """The most that -<weight, delta> can be in the ball and the box, for each picture."""
    room, size = torch.where(weight > 0, images, 1 - images), weight.abs()
    if isinstance(perturbation, Linf):
        return (size * room.clamp(max=perturbation.eps)).sum((1, 2, 3))
    if isinstance(perturbation, L0):
        return (size * room).sum(1).flatten(1).topk(int(perturbation.eps), 1).values.sum(1)
    gains = []
    for g, r in zip(size.flatten(1), room.flatten(1), strict=True):
        if isinstance(perturbation, L1):
            order = g.argsort(descending=True)
            cost = r[order].cumsum(0) - r[order]
            gains.append((g[order] * (perturbation.eps - cost).clamp(min=0).minimum(r[order])).sum())
            continue
        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            inside = (middle * g).minimum(r).norm() <= perturbation.eps
            low, high = (middle, high) if inside else (low, middle)
        gains.append((g * (low * g).minimum(r)).sum())
    return torch.stack(gains)


OPTIMA = [Linf(8 / 255), Linf(0.3), L2(0.5), L2(4.0), L1(0.4), L1(12.0), L1(100.0), L0(1), L0(20), L0(200)]


@pytest.mark.parametrize(
    ("steps", "share"),
    [pytest.param(100, 0.998, marks=pytest.mark.slow), pytest.param(300, 0.999, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("optimiser", [Wiener(), PGD()], ids=["wiener", "pgd"])
@pytest.mark.parametrize("perturbation", OPTIMA, ids=str)
def test_optimisers_reach_the_optimum_of_a_linear_loss_on_photographs(perturbation, optimiser, steps, share):
    images = tiles(32).images
    ends = (images == 0).flatten(1).sum(1) + (images == 1).flatten(1).sum(1)
    images = images[ends.topk(4).indices].to(double)  # where the box binds the most
    assert (images == 0).any() and (images == 1).any()
    weight = random(*images.shape)
    parts = {
        "encoder": lambda pixels: pixels.flatten(1),
        "objective": Dot(),
        "optimiser": optimiser,
        "eot": EOT(views=1),
    }
    *_, end = attack(images, weight.flatten(1), perturbation=perturbation, steps=steps, **parts)
    ratio = -(weight * end.delta).sum((1, 2, 3)) / best(perturbation, images, weight)
    assert (ratio >= (0.9995 if isinstance(perturbation, L2) else share)).all()
    assert (ratio <= 1 + 1e-9).all()
    assert (perturbation.norm(end.delta) <= perturbation.eps * (1 + 1e-12)).all()


def kkt(values, radius, room):
    """The nearest point of a Euclidean ball and |y| <= room, for one vector, from the sorted breakpoints: the values
    that are clamped are those with the smallest room / |value|."""
    size = np.abs(values)
    if (np.minimum(size, room) ** 2).sum() <= radius**2:
        return np.sign(values) * np.minimum(size, room)
    order = np.argsort(room / size)
    clamps = np.concatenate([[0], (room[order] ** 2).cumsum()[:-1]])
    free = (size[order] ** 2)[::-1].cumsum()[::-1]
    scales = np.sqrt(np.maximum(radius**2 - clamps, 0) / free)
    bounds = (room / size)[order]
    first = np.nonzero((scales <= bounds) & (scales >= np.concatenate([[0], bounds[:-1]])))[0][0]
    return np.sign(values) * np.minimum(scales[first] * size, room)


@pytest.mark.parametrize("dtype", [torch.float32, double])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e4])
@pytest.mark.parametrize("radius", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("block", [100, 1000])  # of 324 values
def test_the_l2_projection_in_a_box_solves_the_kkt_conditions(block, radius, scale, dtype, monkeypatch):
    monkeypatch.setattr(attacks.runtime.blocks, "VALUES", block)
    images, delta = uniform(6, 3, 9, 12).to(dtype), (scale * random(6, 3, 9, 12)).to(dtype)
    images[0], images[1], images[2] = 0, 1, images[2].round()
    delta[0, :, :4] = 0
    delta[5] *= torch.logspace(-8, 0, 324).view(3, 9, 12)  # breakpoints of all sizes
    room = torch.where(delta > 0, 1 - images, images).double().flatten(1).numpy()
    rows = zip(delta.double().flatten(1).numpy() + 1e-300, room, strict=True)
    target = torch.from_numpy(np.stack([kkt(d, radius, r) for d, r in rows])).view_as(delta)
    projection = L2(radius).project(delta, images)
    torch.testing.assert_close(projection.double(), target, rtol=0, atol=1e-13 if dtype == double else 1e-6)
    assert (L2(radius).norm(projection.double()) <= radius * (1 + (1e-13 if dtype == double else 1e-6))).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [L1, L2])
@pytest.mark.parametrize("factor", [0.3, 0.02, 1.0])
def test_quantising_leaves_less_than_a_level_of_the_ball_unused(kind, factor):
    images = tiles(32).images[:6]
    set_ = kind(factor * {L1: 30.0, L2: 2.0}[kind])
    delta = set_.project(random(6, 3, 32, 32, dtype=torch.float32), images)
    levels = (255 * set_.quantise(delta, images).double()).round()
    plain = (255 * delta.double()).round()
    assert (set_.norm(levels) <= 255 * set_.eps).all()
    assert ((levels - plain).abs() <= 1).all()
    cut = set_.norm(levels) < set_.norm(plain)
    plus = levels.clone().flatten(1)
    for row in cut.nonzero()[:, 0]:  # one value that was moved back does not fit any more
        shift = (levels[row] != plain[row]).flatten().nonzero()[:, 0]
        at = shift[plain[row].flatten()[shift].abs().argmax()]
        plus[row, at] = plain[row].flatten()[at]
        assert set_.norm(plus.view_as(levels))[row] > 255 * set_.eps


def test_linf_projects_to_the_nearest_point():
    images, delta = uniform(3, 3, 9, 12), 0.1 * random(3, 3, 9, 12)
    linf = ball("linf")
    low, high = (-images).clamp(min=-linf.eps), (1 - images).clamp(max=linf.eps)
    torch.testing.assert_close(linf.project(delta, images), delta.clamp(low, high), rtol=0, atol=1e-15)


@every_ball
def test_the_norm_is_taken_for_each_picture(name):
    delta = random(3, 3, 5, 7)
    delta[:, :, ::2] = 0
    delta[:, 1:, 1] = 0  # a pixel counts when one of its channels changes
    order = {"linf": math.inf, "l2": 2, "l1": 1}
    target = torch.full((3,), 14.0, dtype=double)
    if name in order:
        target = torch.linalg.vector_norm(delta, ord=order[name], dim=(1, 2, 3))
    torch.testing.assert_close(ball(name).norm(delta), target, rtol=1e-14, atol=0)


def test_a_linf_start_is_uniform_in_the_ball():
    linf, images = ball("linf"), torch.full((4, 3, 40, 40), 0.5, dtype=double)
    start = linf.start(images, seed()).flatten() / linf.eps
    assert kstest(start.numpy(), "uniform", args=(-1, 2)).pvalue > 0.01


@pytest.mark.parametrize("name", ["l2", "l1", "l0"])
def test_noise_has_the_full_budget(name):
    images = torch.full((5, 3, 9, 12), 0.5, dtype=double)
    noise = ball(name).noise(images, seed())
    target = torch.full((5,), float(BALLS[name][1]), dtype=double)
    torch.testing.assert_close(ball(name).norm(noise), target, rtol=1e-12, atol=0)


def test_an_l0_delta_changes_the_same_pixels_when_quantised():
    images = levels(4, 3, 9, 12, dtype=torch.float32)
    delta = ball("l0").noise(images, seed()) * 0.7
    assert torch.equal((ball("l0").quantise(delta, images) != 0).any(1), (delta != 0).any(1))


@every_ball
def test_quantising_keeps_most_of_the_budget(name):
    # 7.44 levels for L-inf: one shrink takes 7.44 to 7, not to nothing.
    images = torch.full((2, 3, 64, 64), 128 / 255)
    perturbation = ball(name, eps={"linf": 7.44 / 255, "l2": 4.0, "l1": 12.3, "l0": 40}[name])
    norm = perturbation.norm(perturbation.quantise(perturbation.noise(images, seed()), images))
    assert (norm > 0.9 * perturbation.eps).all()


@pytest.mark.parametrize("kind", [Linf, L2, L1, L0])
def test_eps_must_be_a_positive_number_in_the_unit_of_the_set(kind):
    for eps in (0.0, -0.1, math.nan, math.inf, *((8,) if kind is Linf else (2.5,) if kind is L0 else ())):
        with pytest.raises(ValueError, match="did you mean 8/255" if eps == 8 else "`eps` must"):
            kind(eps)
    for eps in ("8/255", "3", True, None):
        with pytest.raises(ValueError, match=f"`eps` must be a number, such as [0-9/]+; got {eps!r}"):
            kind(eps)
    assert kind(np.int64(1)).eps == 1

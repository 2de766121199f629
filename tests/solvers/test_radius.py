"""The search for the smallest radius: known radii, its passes, and its laws."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import EOT, L0, L2, Linf, Wiener
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Objective
from attacks.perturbations import L1, Grey, LowFrequency, Masked, Smoothed
from attacks.perturbations.radii import Radii, RadiusByRow
from attacks.solvers.checks import Silent
from attacks.solvers.radius import HALF, RadiusTrial, smallest_radius, trial_plan
from tests.helpers.sets import double, levels, random, seed
from tests.helpers.solving import Dot

SIZE, COUNT = (3, 8, 8), 5


class Linear(nn.Module):
    """The pixels themselves."""

    def forward(self, pixels):
        return pixels.flatten(1)


def case(inner, files=False, steps=60, passes=None, limits=None):
    """Pictures that are broken where <weight, delta> falls below a limit, which is known in each norm."""
    images = (0.25 + levels(COUNT, *SIZE) / 2) if not files else (levels(COUNT, *SIZE) * 127).round() / 255 + 64 / 255
    weight = random(COUNT, *SIZE, value=3)
    limits = torch.linspace(0.2, 0.6, COUNT, dtype=double) if limits is None else limits
    problem = Problem(images, weight.flatten(1), Linear().eval(), Dot(), inner)
    slopes = {Linf: weight.abs().sum((1, 2, 3)), L2: weight.flatten(1).norm(dim=1)}
    bounds = limits * slopes[type(inner)] * inner.eps

    def success(delta):
        return (-(weight * delta).sum((1, 2, 3)) >= bounds).double()

    options = Options(Wiener(), EOT(views=1), steps=steps)
    first = inner.farthest(-weight, images)
    trial = RadiusTrial(success, 1, files)
    return problem, options, trial, first, limits * inner.eps, passes or 2 * (2 * steps + 5)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [Linf(0.2), L2(1.0)], ids=str)
def test_the_search_finds_the_smallest_radius_of_a_linear_loss(inner):
    problem, options, trial, first, smallest, passes = case(inner)
    *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    assert (end.smallest >= smallest * (1 - 1e-9)).all()
    assert (end.smallest <= smallest * 1.01).all()
    torch.testing.assert_close(inner.norm(end.delta), end.smallest)
    assert (trial.success(end.delta) >= HALF).all()


def test_the_radius_of_a_file_is_a_sufficient_number_of_whole_levels():
    inner = Linf(20 / 255)
    problem, options, trial, first, smallest, passes = case(inner, files=True)
    *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    torch.testing.assert_close(255 * end.smallest, (255 * end.smallest).round(), rtol=0, atol=1e-6)
    assert (end.smallest >= smallest - 1e-9).all()
    assert (end.smallest <= smallest + 1.01 / 255).all()
    files = 255 * (problem.images + end.delta)
    torch.testing.assert_close(files, files.round(), rtol=0, atol=1e-9)
    assert (trial.success(end.delta) >= HALF).all()


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 10, 57, 400])
def test_the_search_keeps_to_its_passes(passes):
    problem, options, trial, first, _, _ = case(L2(1.0))
    *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    assert end.passes <= max(passes, 2 * trial.views)
    step_count, trials = trial_plan(options, trial, passes)
    assert end.trials == 1 + trials
    assert passes < 10 or end.passes + 2 * step_count * options.eot.views + trial.views > passes  # and uses them


@pytest.mark.slow
def test_a_picture_that_resists_at_the_largest_radius_has_no_radius():
    limits = torch.tensor([0.3, 1.5, 0.3, 1.5, 0.3], dtype=double)
    problem, options, trial, first, _, passes = case(L2(1.0), limits=limits)
    *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    assert end.broken.tolist() == [True, False, True, False, True]
    assert end.smallest[~end.broken].tolist() == [math.inf] * 2
    assert torch.equal(end.delta[~end.broken], first[~end.broken])


class Hinge(Objective):
    """The sum of the pixels, down to 92."""

    def __call__(self, features, anchor):
        return features.flatten(1).sum(1).clamp(min=92)


def test_a_search_goes_on_where_every_picture_has_left():
    problem, options, trial, first, _, passes = case(L2(1.0))
    images = torch.full_like(first, 0.5)  # their sum is 96, and can fall by 14
    problem = replace(problem, images=images, objective=Hinge())
    trial = trial._replace(success=lambda delta: delta.new_zeros(len(delta)))  # so the radius stays the largest
    with pytest.warns(Silent, match="they leave"):
        *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    assert bool(end.inner.solved.all()) and end.trials == 1 + trial_plan(options, trial, passes)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("inner", "files"), [(L2(1.0), False), (L2(1.0), True), (Linf(0.1), True)])
def test_a_picture_that_is_broken_as_it_is_has_the_radius_zero(inner, files):
    limits = torch.tensor([0.3, 0.0, 0.3, -1.0, 0.3], dtype=double)
    problem, options, trial, first, _, passes = case(inner, files, limits=limits)
    *_, end = smallest_radius(problem, options, trial, first, passes=passes)
    assert (end.smallest == 0).tolist() == [False, True, False, True, False]
    assert not end.delta[[1, 3]].any()


@pytest.mark.slow
def test_a_search_resumes_after_any_trial_to_the_bit():
    problem, options, trial, first, _, passes = case(L2(1.0), passes=90)
    states = list(smallest_radius(problem, options, trial, first, passes=passes))
    for state in states[:-1]:
        *_, end = smallest_radius(problem, options, trial, first, passes=passes, state=state)
        assert torch.equal(end.smallest, states[-1].smallest) and torch.equal(end.delta, states[-1].delta)


@pytest.mark.slow
def test_a_picture_does_not_depend_on_its_neighbours():
    problem, options, trial, first, _, passes = case(L2(1.0), passes=90)
    *_, batch = smallest_radius(problem, options, trial, first, passes=passes)
    rows = torch.tensor([1, 3])
    part = trial._replace(success=lambda delta: trial.success(batch.delta.index_copy(0, rows, delta))[rows])
    *_, subset = smallest_radius(problem.take(rows), options, part, first[rows], passes=passes)
    torch.testing.assert_close(subset.smallest, batch.smallest[rows], rtol=1e-9, atol=0)


MASK = (torch.rand(1, 1, 8, 8, generator=seed(3)) < 0.5).double()
SETS = [Linf(0.1), L2(1.0), L1(3.0), L0(9), Masked(L2(1.0), MASK), Grey(Linf(0.1)), Smoothed(L2(1.0), 1.0)]


@pytest.mark.parametrize("inner", [*SETS, LowFrequency(L2(1.0), 4)], ids=lambda inner: type(inner).__name__)
def test_each_picture_moves_in_the_set_of_its_own_radius(inner):
    images, grad, delta = levels(3, *SIZE), random(3, *SIZE), random(3, *SIZE, value=1)
    shares = torch.tensor([0.25, 0.5, 1.0], dtype=double)
    sets = Radii(inner, inner.in_files(shares * inner.eps) if isinstance(inner, L0) else shares * inner.eps, delta)
    result = sets.move(sets.project(delta, images), sets.descend(grad, 0.3, delta, images), images)
    for i, ball in enumerate(inner.sized(float(eps)) for eps in sets.radii):
        row = slice(i, i + 1)
        by = ball.descend(grad[row], 0.3 * ball.reach, delta[row], images[row])
        assert torch.equal(result[row], ball.move(ball.project(delta[row], images[row]), by, images[row]))
        assert (ball.norm(result[row]) <= ball.eps * (1 + 1e-12)).all()
    rows = RadiusByRow(inner, shares)
    start, by = rows.inside(delta, images), rows.descend(grad, 0.3 * rows.reach, delta, images)
    point = rows.move(rows.project(delta, images), by, images)
    assert torch.allclose(point, result, atol=1e-12) and (rows.norm(point) <= rows.eps * (1 + 1e-12)).all()
    assert torch.equal(rows.in_levels(point, images), sets.quantise(point, images))
    assert torch.allclose(rows.length(by) / rows.reach, sets.length(by))
    for i, share in enumerate(shares.tolist()):
        assert torch.equal(start[[i]], inner.sized(share * inner.eps).inside(delta[[i]], images[[i]]))
    part = sets.take(torch.tensor([2, 0]))
    assert part.radii.tolist() == sets.radii[[2, 0]].tolist() and part.eps == sets.eps

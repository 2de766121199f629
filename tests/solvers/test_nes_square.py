"""The attack in two phases: each has its laws, and a known optimum is reached."""

from dataclasses import replace

import pytest
import torch

from attacks import EOT, L2, NES, Linf
from attacks.eot.problem import Options, Problem
from attacks.optimisers import NESSquare
from attacks.solvers.sampled import sampled_descent
from attacks.solvers.search import PHASE, PHASE_OF_BITS, first_steps, windows_after
from attacks.solvers.search import nes_then_square as attack
from tests.helpers.solving import VIEWS, Dot, small_problem
from transforms import Compose

TURNS = 20
FIRST = round(PHASE * TURNS)


def case(ball=None, transforms=VIEWS, views=4, turns=TURNS):
    images, anchor, parts = small_problem()
    problem = Problem(images, anchor, parts["encoder"], parts["objective"], ball or Linf(0.1))
    return problem, Options(NESSquare(keep=4), EOT(transforms, views=views), steps=turns, seed=5)


def test_the_first_phase_is_a_whole_run_of_nes():
    problem, options = case()
    alone = [*sampled_descent(problem, replace(options, optimiser=NES(keep=4), steps=FIRST))]
    steps = [*attack(problem, options)]
    assert len(steps) == TURNS and len(alone) == FIRST
    for step, expected in zip(steps, alone, strict=False):
        torch.testing.assert_close(step.delta, expected.delta, rtol=0, atol=1e-12)
        torch.testing.assert_close(step.estimate.mean, expected.estimate.mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transforms", [Compose(), VIEWS], ids=["one view", "views"])
def test_the_second_phase_never_gives_up_what_was_reached(transforms):
    problem, options = case(transforms=transforms)
    losses = torch.stack([step.state.estimate.value for step in attack(problem, options)][FIRST:])
    assert (losses.diff(dim=0) <= 0).all() and (losses[-1] < losses[0]).all()


@pytest.mark.parametrize("ball", [Linf(0.05, random_start=False), L2(0.5, random_start=False)])
def test_it_reaches_the_least_of_a_linear_loss_at_the_edge_of_the_set(ball):
    """Its slope is one of the patterns, so the direction is right long before delta reaches the edge."""
    images, slope = torch.full((1, 3, 16, 16), 0.5).double(), torch.ones(1, 3 * 16 * 16).double()
    problem = Problem(images, slope, torch.nn.Flatten().eval(), Dot(), ball)
    *_, end = attack(
        problem, Options(NESSquare(keep=1, rel_step_size=0.01), EOT(Compose(), views=4), steps=8, seed=1)
    )
    least = ball.descend(slope.view_as(images), 2 * ball.reach, torch.zeros_like(images), images)
    torch.testing.assert_close(end.delta, ball.move(torch.zeros_like(images), least, images), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("transforms", "views", "candidates"), [(Compose(), 20, 20), (VIEWS, 20, 5), (VIEWS, 4, 4), (VIEWS, 14, 7)]
)
def test_a_step_of_windows_asks_as_much_as_one_of_nes(transforms, views, candidates):
    problem, options = case(transforms=transforms, views=views)
    windows = windows_after(FIRST, TURNS, problem, options, torch.Generator())
    assert windows.candidates == candidates
    assert candidates * len(windows.search.views.u) == views


def test_answers_in_bits_leave_more_to_the_first_phase():
    problem, _ = case()
    shares = [first_steps(replace(problem, anchor=anchor), 10) for anchor in (problem.anchor, problem.anchor.sign())]
    assert shares == [round(10 * PHASE), round(10 * PHASE_OF_BITS)]


def test_windows_are_as_small_as_after_as_many_queries():
    problem, options = case(turns=2)
    generator = torch.Generator().manual_seed(0)
    windows = windows_after(1, 2, problem, options, generator)
    delta = torch.zeros_like(problem.images)
    sizes = [int((windows.candidate(k, delta)[0, 0] != 0).sum()) for k in (2, 3)]
    assert sizes[0] == 12 * 14 and sizes[1] < 12 * 14 / 64


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_shortest_runs(turns):
    problem, options = case(turns=turns)
    *_, end = attack(problem, options)
    assert end.index == turns - 1 and end.last

"""Attacks on answers that only say same or not."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done
from attacks.objectives.embedding import Away
from attacks.optimisers.gradient import PGD
from attacks.optimisers.nes import LabelOnly
from attacks.perturbations.ball import Ball
from attacks.perturbations.radii import Radii, reaches
from attacks.runtime.values import stored
from attacks.solvers.checks import pass_budget
from attacks.solvers.descent import descend
from attacks.solvers.loop import LoopState, Steps, Turn, TurnPlan, drive, first_state, generator_of
from attacks.solvers.sampled import check_sampled, estimate_of, nes_step, probe_deltas, query_losses
from transforms.draws import stream

#: The radius of the first step along a gradient, and the smallest, in radii of the attack's own set.
FIRST, MIN_RADIUS = 8.0, 1 / 64
#: Steps of the attack on a surrogate that the search begins with.
TRANSFER = 10


@stored("decided")
class WalkMemory(NamedTuple):
    """The memory of `label_walk`: the delta of the walk and its optimiser's memory, the radii (N,) of its sets, the
    mean loss (N,) of the untouched pictures and the lowest so far."""

    walk: Tensor
    memory: object
    radii: Tensor
    high: Tensor
    low: Tensor


def label_walk(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Optimise one perturbation per image by `LabelOnly`; yields after every step.

    Within the budget an answer of same or not is the same nearly everywhere, so no loss shows a direction. The attack
    therefore walks in a larger set, where about half of its queries change the answer, and the set shrinks as these
    become more. A step is one of `sampled_descent` in a ball with a radius of its own for each image. The delta that
    it yields has the walk's direction and the length that the perturbation allows, so it lies in that set.

    The first step only asks: half of its losses are those of the untouched images, the other half those of patterns
    as large as the box allows. They show which losses stand for the same and which for another answer; of an
    objective whose loss is no decision, the middle between them is the boundary.

    The estimate of a step is that of the walk, whose mean loss stays near the middle.

    Raises as `sampled_descent`, and ValueError for a perturbation that is no ball round each image.
    """
    check_sampled(problem, options)
    ball = problem.perturbation
    if not isinstance(ball, Ball):
        raise ValueError(f"LabelOnly needs a ball round each image; got {type(ball).__name__}: use NES")
    total = pass_budget(problem, options, options.eot.views)
    if state is None:
        state = first_state(torch.zeros_like(problem.images), total)
    propose = partial(_propose, problem, options, generator_of(options, state))
    yield from drive(propose, problem, options, state, total)


def _propose(
    problem: Problem, options: Options, generator: torch.Generator, state: LoopState, turn: Turn
) -> TurnPlan:
    ball = cast(Ball, problem.perturbation)
    if not turn.number:
        return _first(problem, options, generator, state)
    images, memory = problem.images, cast(WalkMemory, state.optimiser)
    sets = Radii(ball, memory.radii, memory.walk)
    walk = state._replace(delta=memory.walk, optimiser=memory.memory)
    next_state, move, estimate = nes_step(replace(problem, perturbation=sets), options, generator, None, walk, turn)

    def follow(progress: Done) -> tuple[Tensor, WalkMemory]:
        delta, inner = move(progress)
        active = turn.active.to(images.device)
        mean = estimate.mean.to(memory.high)
        low = torch.where(active, memory.low.minimum(mean), memory.low)
        gap = memory.high - low
        share = torch.where(gap > 0, (memory.high - mean) / gap, 0).clamp(0, 1)
        widest = ball.norm(torch.ones_like(images)).to(sets.radii)
        radii = (sets.radii * LabelOnly.factor(share).to(sets.radii)).clamp(min=MIN_RADIUS * ball.eps)
        radii = torch.where(active, radii.minimum(widest), sets.radii)
        delta = delta * _ratio(ball, radii, sets.radii, delta)
        next_memory = WalkMemory(delta, inner, radii, memory.high, low)
        return _clip_walk(ball, next_memory, images), next_memory

    return TurnPlan(next_state._replace(delta=state.delta), follow, estimate)


@torch.no_grad()
def _first(problem: Problem, options: Options, generator: torch.Generator, state: LoopState) -> TurnPlan:
    ball = cast(Ball, problem.perturbation)
    images, eot, optimiser = problem.images, options.eot, cast(LabelOnly, options.optimiser)
    u = eot.points(stream(options.seed, "attack"), 0, images)[: eot.views // 2]
    zeros, widest = torch.zeros_like(images), ball.norm(torch.ones_like(images)).double()
    wide = replace(problem, perturbation=Radii(ball, widest, zeros))
    patterns = optimiser.directions(zeros, len(u), generator)
    farthest = [probe_deltas(wide, zeros, pattern, options) for pattern in patterns[:, None]]
    near, far = (query_losses(problem, deltas, u, options) for deltas in ([zeros] * len(u), farthest))
    radii = (FIRST * torch.full_like(widest, ball.eps)).minimum(widest)
    if optimiser.surrogate is None:  # not from zero, round which answers are alike on both sides
        first = torch.stack(farthest, 1)[range(len(problem)), far.argmin(1)]
        first = first * _ratio(ball, radii, widest, first)
    else:
        first = _surrogate_start(problem, ball, radii, options)
    estimate = estimate_of(torch.cat([near, far], 1), zeros, options)
    high, inner = near.mean(1), optimiser.init(first, reach=1.0, steps=options.steps)
    memory = WalkMemory(first, inner, radii, high, far.amin(1).minimum(high))
    delta = _clip_walk(ball, memory, images)
    next_state = state._replace(estimate=estimate, generator=generator.get_state())
    return TurnPlan(next_state, lambda _: (delta, memory), estimate)


def _surrogate_start(problem: Problem, ball: Ball, radii: Tensor, options: Options) -> Tensor:
    images, surrogate = problem.images, cast(LabelOnly, options.optimiser).surrogate
    assert surrogate is not None
    noise = ball.noise(images, torch.Generator().manual_seed(stream(options.seed, "start")))
    transfer = Problem(images, surrogate(images), surrogate, Away(), Radii(ball, radii, noise))
    with torch.enable_grad():
        *_, end = descend(transfer, replace(options, optimiser=PGD(), steps=TRANSFER, budget=None, penalty=None))
    return end.delta


def _ratio(ball: Ball, radii: Tensor, old_radii: Tensor, like: Tensor) -> Tensor:
    """The factor (N,1,1,1) by which the values of deltas change when the radii (N,) of their sets change."""
    return (reaches(ball, radii) / reaches(ball, old_radii)).to(like)[:, None, None, None]


def _clip_walk(ball: Ball, memory: WalkMemory, images: Tensor) -> Tensor:
    walk = memory.walk
    scale = _ratio(ball, torch.full_like(memory.radii, ball.eps), memory.radii, walk)
    return ball.move(torch.zeros_like(walk), walk * scale, images)

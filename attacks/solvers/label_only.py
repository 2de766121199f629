"""The loop of an attack on answers that say same or not the same, and no more.

Within the budget such an answer is the same nearly everywhere, so no loss shows a direction. The attack therefore
walks in a larger set, where about half of its queries change the answer, and the set shrinks as these become more.
"""

from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from attacks.eot.problem import Options, Problem
from attacks.objectives.embedding import Away
from attacks.optimisers.gradient import PGD
from attacks.optimisers.nes import LabelOnly
from attacks.perturbations.ball import Ball
from attacks.perturbations.radii import Radii
from attacks.runtime.stored import stored
from attacks.solvers.checks import budgeted
from attacks.solvers.loop import LoopState, Step, Steps, descend, done_of
from attacks.solvers.search import answered, check_sampled, estimate_of, probed, sampled
from transforms import stream

#: The radius of the first step along a gradient, and the smallest, in radii of the attack's own set.
FIRST, LEAST = 8.0, 1 / 64
#: Steps of the attack on a surrogate that the search begins with.
TRANSFER = 10


@stored("decided")
class Decided(NamedTuple):
    """What the next step of `decided` depends on: the state of the walk, the radii (N,) of its sets, and the losses
    (N,) between which an answer changes, the mean of the untouched pictures' and the lowest so far."""

    walk: LoopState
    radii: Tensor
    high: Tensor
    low: Tensor


def decided(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Optimise one perturbation per image by `LabelOnly`; yields after every step.

    A step is one of `sampled` in a ball with a radius of its own for each image. The delta that it yields has the
    walk's direction and the length that the perturbation allows, so it lies in that set. The first step only asks:
    half of its losses are those of the untouched images, the other half those of patterns as large as the box
    allows. They show which losses stand for the same and which for another answer; of an objective whose loss is no
    decision, the middle between them is the boundary.

    The estimate of a step is that of the walk, whose mean loss stays near the middle. Errors and what `send` does are
    those of `sampled`.

    Raises ValueError as `sampled`, and for a perturbation that is no ball round each image.
    """
    check_sampled(problem, options)
    ball = problem.perturbation
    if not isinstance(ball, Ball):
        raise ValueError(
            f"LabelOnly needs a ball round each image, whose radius it changes; got {type(ball).__name__}: use NES"
        )
    if state is None:
        first = _first(problem, ball, options)
        answer, state = (yield first), first.state
        state = state if answer is None else state._replace(solved=answer.cpu())
    while True:
        memory = cast(Decided, state.optimiser)
        sets = Radii(ball, memory.radii, memory.walk.delta)
        walk = sampled(replace(problem, perturbation=sets), options, memory.walk._replace(solved=state.solved))
        step = next(walk, None)
        walk.close()
        if step is None:
            return
        memory = _followed(memory, step, sets, ball, problem.images)
        delta = _within(ball, memory, problem.images)
        delta = torch.where(step.active.to(delta.device)[:, None, None, None], delta, state.delta)
        state = memory.walk._replace(delta=delta, optimiser=memory)
        answer = yield step._replace(delta=delta, state=state)
        if answer is not None:
            state = state._replace(solved=state.solved | answer.cpu())


@torch.no_grad()
def _first(problem: Problem, ball: Ball, options: Options) -> Step:
    """The first step."""
    images, eot, optimiser = problem.images, options.eot, cast(LabelOnly, options.optimiser)
    generator = torch.Generator().manual_seed(stream(options.seed, "search"))
    u = eot.points(stream(options.seed, "attack"), 0, images)[: eot.views // 2]
    nothing, widest = torch.zeros_like(images), ball.norm(torch.ones_like(images)).double()
    wide = replace(problem, perturbation=Radii(ball, widest, nothing))
    patterns = optimiser.directions(nothing, len(u), generator)
    farthest = [probed(wide, nothing, each, options) for each in patterns[:, None]]
    untouched, far = (answered(problem, deltas, u, options) for deltas in ([nothing] * len(u), farthest))
    radii = (FIRST * torch.full_like(widest, ball.eps)).minimum(widest)
    if optimiser.surrogate is None:  # not from zero, round which answers are alike on both sides
        first = torch.stack(farthest, 1)[range(len(problem)), far.argmin(1)]
        first = first * (radii / widest).to(first)[:, None, None, None]
    else:
        first = _transferred(problem, ball, radii, options)
    estimate = estimate_of(torch.cat([untouched, far], 1), nothing, options)
    memory, evals = optimiser.init(first, reach=1.0, steps=options.steps), eot.views * len(problem)
    total, none = budgeted(options, len(problem), eot.views), torch.zeros(len(problem), dtype=torch.bool)
    left, high = total - eot.views, untouched.mean(1)
    walk = LoopState(1, first, memory, estimate, evals, left, none, generator=generator.get_state())
    begun = Decided(walk, radii, high, far.amin(1).minimum(high))
    state = walk._replace(delta=_within(ball, begun, images), optimiser=begun)
    last = options.steps == 1 or not bool((left >= eot.views).any())
    after = done_of(False, 0, options.steps, torch.stack([total, left]) / total.double()).after
    after = torch.ones_like(after) if last else after
    return Step(0, state.delta, estimate, evals, ~none, after, last, state)


def _transferred(problem: Problem, ball: Ball, radii: Tensor, options: Options) -> Tensor:
    """The result of an attack on the surrogate within these radii."""
    images, surrogate = problem.images, cast(LabelOnly, options.optimiser).surrogate
    assert surrogate is not None
    noise = ball.noise(images, torch.Generator().manual_seed(stream(options.seed, "start")))
    own = Problem(images, surrogate(images), surrogate, Away(), Radii(ball, radii, noise))
    with torch.enable_grad():
        *_, last = descend(own, replace(options, optimiser=PGD(), steps=TRANSFER, budget=None, penalty=None))
    return last.delta


def _followed(memory: Decided, step: Step, sets: Radii, ball: Ball, images: Tensor) -> Decided:
    """After a step of the walk: the radii of the next one, and the walk moved along with them."""
    active = step.active.to(images.device)
    mean = step.estimate.mean.to(memory.high)
    low = torch.where(active, memory.low.minimum(mean), memory.low)
    apart = memory.high - low
    share = torch.where(apart > 0, (memory.high - mean) / apart, 0).clamp(0, 1)
    widest = ball.norm(torch.ones_like(images)).to(sets.radii)
    radii = (sets.radii * LabelOnly.factor(share).to(sets.radii)).clamp(min=LEAST * ball.eps).minimum(widest)
    radii = torch.where(active, radii, sets.radii)
    scale = (radii / sets.radii).to(step.delta)[:, None, None, None]
    return Decided(step.state._replace(delta=step.delta * scale), radii, memory.high, low)


def _within(ball: Ball, memory: Decided, images: Tensor) -> Tensor:
    """The walk's deltas, as long as the ball allows."""
    walk = memory.walk.delta
    scale = (ball.eps / memory.radii).to(walk)[:, None, None, None]
    return ball.move(torch.zeros_like(walk), walk * scale, images)

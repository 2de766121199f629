"""The loop of every attack.

The loop is a generator: the caller's iteration is the callback. Progress, checkpoints and early stopping live in
the caller.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.batch_norm import settles
from attacks.encoders.engine import engine_agree, fall_back
from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive, Views
from attacks.eot.estimate import Estimate, combined
from attacks.eot.estimator import EOT
from attacks.eot.faults.locate import located
from attacks.eot.problem import STEPS, Options, Problem
from attacks.eot.protocols import Adversarial, Objective, Optimiser, Penalty, Perturbation
from attacks.objectives.penalties import penalised
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import kept
from attacks.solvers.checks import DEAD, budgeted, checked, watched_over
from transforms import stream


@kept
class LoopState(NamedTuple):
    """All that the next step depends on, besides the problem and the options: a value, from which `attack` resumes to
    the bit."""

    index: int  # type: ignore[assignment]  # of the next step; hides tuple.index, which is not needed here
    delta: Tensor
    optimiser: Any
    estimate: Estimate | None
    evals: int
    left: Tensor  # encoder passes that each image may still have (N,)
    solved: Tensor  # images that have left (N,)
    silent: Tensor | None = None  # for how many steps in a row a delta has had no gradient
    drawn: int = 0  # blocks of views, so far
    size: Views = Views()
    generator: Tensor | None = None  # of a search


@kept
class Step(NamedTuple):
    """After step `index`: the perturbation, the estimate that led there (it belongs to the perturbation *before* the
    step), the encoder passes (forward and backward of one view) so far, which images took part (N,), and whether this
    is the last step. For an image that took no part, the estimate is its last one. The attack resumes from `state`
    (None: it cannot)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    delta: Tensor
    estimate: Estimate
    evals: int
    active: Tensor
    last: bool
    state: Any = None


Steps = Generator[Step, Tensor | None, None]


def attack(
    images: Tensor,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    optimiser: Optimiser,
    eot: EOT,
    steps: int = STEPS,
    seed: int = 0,
    budget: int | Tensor | None = None,
    adaptive: Adaptive | None = None,
    world: World = ALONE,
    penalty: Penalty | None = None,
    adversary: Adversarial | None = None,
    state: LoopState | None = None,
) -> Steps:
    """Optimise one perturbation per image, or one for all, over the expected views; yields after every step.

    An image leaves the batch when its budget is spent, or when the caller declares it solved: `send` a mask (N,) of
    solved images to the generator, which answers with the next step. Its delta then stays as it is.

    Args:
        images, anchor, encoder, objective, perturbation: see `attacks.eot.problem.Problem`.
        optimiser, eot, steps, seed, budget, adaptive, world, penalty, adversary: see `attacks.eot.problem.Options`.
        state: of an earlier step of this very attack, to resume from; images declared solved after that step belong
            in its `solved`.

    Raises:
        ValueError: wrong shapes or ranges, an encoder in training mode, a start where the gradient is zero, or a
            gradient that is zero in the first step. One that is zero in five later steps in a row is a warning, and
            its image leaves.
        NotFinite: (a FloatingPointError) a loss or gradient that is not finite, with the step and the view.
    """
    problem = Problem(images, anchor, encoder, objective, perturbation)
    options = Options(optimiser, eot, steps, seed, budget, adaptive, world, penalty, adversary)
    return descend(problem, options, state)


@settles
def descend(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """The loop of `attack`, for a problem and options as values."""
    extra = _checked(problem, options)
    world, eot, seed = options.world, options.eot, stream(options.seed, "attack")
    if state is None:
        state = _start(problem, options, extra)
    elif state.estimate is not None:
        eot = replace(eot, chunk=state.estimate.chunk)
    for index in range(state.index, options.steps):
        size, cost = state.size, state.size.times * eot.n + extra
        active = ~state.solved & (state.left >= cost)
        rows = active.nonzero()[:, 0].to(problem.images.device)
        if not len(rows):
            return
        part, delta = problem.take(rows), state.delta if problem.shared else state.delta[rows]
        own = len(problem) if problem.shared else None
        points = eot.points(seed, state.drawn, problem.images, times=size.times, pictures=own)
        u = points[rows] if problem.shared else points
        if options.adversary is not None:
            u = options.adversary.views(part, delta, eot, cost - extra, seed=seed, step=state.drawn, world=world)
        fresh = _estimate(part, delta, eot, u, world, index)
        estimate = fresh if state.estimate is None else merged(state.estimate, fresh, rows, problem.shared)
        why = partial(_why_silent, problem, state.delta, eot, points)
        silent = watched_over(estimate, index, active.to(delta.device), state.silent, why)
        eot = replace(eot, chunk=world.least(fresh.chunk))
        estimate = estimate._replace(chunk=eot.chunk)
        priced = estimate if options.penalty is None else penalised(estimate, options.penalty, problem, state.delta)
        moved, memory = options.optimiser.step(state.delta, priced, state.optimiser, problem.constraint)
        if len(rows) < len(problem) and not problem.shared:
            moved = torch.where(active.to(moved.device)[:, None, None, None], moved, state.delta)
        left, remaining = state.left - cost * active, options.steps - index - 1
        if options.adaptive is not None:
            size = options.adaptive.next(size, fresh, base=eot.n, steps=remaining, budget=int(left[active].min()))
        solved = state.solved | (silent >= DEAD).cpu().expand(len(problem))
        last = not remaining or not bool((~solved & (left >= size.times * eot.n + extra)).any())
        evals, drawn = state.evals + cost * len(rows), state.drawn + state.size.times
        state = LoopState(index + 1, moved, memory, estimate, evals, left, solved, silent, drawn, size)
        answer = yield Step(index, moved, estimate, evals, active, last, state)
        if answer is not None:
            state = state._replace(solved=solved | answer.cpu())

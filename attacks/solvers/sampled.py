"""Attacks along a gradient that is estimated from losses alone."""

from collections.abc import Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done
from attacks.objectives.embedding import Away
from attacks.objectives.penalties import add_price, price_of
from attacks.optimisers.nes import NES
from attacks.solvers import loop
from attacks.solvers.checks import DEAD, check_problem, pass_budget, warn_unmoved
from attacks.solvers.loop import LoopState, Steps, Turn, TurnPlan
from transforms.devices import uploaded
from transforms.draws import stream


def sampled_descent(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Optimise one perturbation per image, or one for all, by `NES`; yields after every step.

    A step takes `eot.views` losses of each image: on both sides of delta along half as many directions, the same for
    all images. A pair has one view, and each pair another, new in every step. The estimate is the mean of the
    directions, weighted by the difference of their two losses; its loss is the mean over both sides, its snr NaN.

    Raises ValueError as `attack`, and for an odd number of views, a risk that is no mean, `adaptive` and `adversary`;
    FloatingPointError for a loss that is not finite, with the step.
    """
    check_sampled(problem, options)
    nes, total = cast(NES, options.optimiser), pass_budget(problem, options, options.eot.views)
    if state is None:
        delta = loop.start(problem, options.seed)
        memory = nes.init(delta, reach=problem.perturbation.reach, steps=options.steps)
        state = loop.first_state(delta, total, memory)
    base = None if state.index else state.delta
    propose = partial(nes_step, problem, options, loop.generator_of(options, state), base)
    yield from loop.drive(propose, problem, options, state, total)


def nes_step(
    problem: Problem, options: Options, generator: torch.Generator, base: Tensor | None, state: LoopState, turn: Turn
) -> TurnPlan:
    """The estimated gradient of each image, and the step along it; a warning where a delta does not leave `base`,
    that of the start."""
    eot, nes, images, index = options.eot, cast(NES, options.optimiser), problem.images, turn.number
    rows = uploaded(turn.rows, images.device)
    u = eot.points(stream(options.seed, "attack"), index, images)[: eot.views // 2]
    part, delta = problem.take(rows), state.delta if problem.shared else state.delta[rows]
    latest = nes_estimate(part, delta, _directions(part, delta, u, options, generator), u, options)
    if not bool(latest.mean.isfinite().all()):
        bad = rows[~latest.mean.isfinite()].tolist()
        raise FloatingPointError(f"step {index}: the loss is not finite for image(s) {bad}")
    estimate = loop.merge_estimates(state.estimate, latest, turn.rows, problem.shared)
    price = None if options.penalty is None else price_of(options.penalty, problem, state.delta)
    with_price = estimate if price is None else add_price(estimate, price)
    if price is not None and not bool(with_price.grad.isfinite().all()):
        raise FloatingPointError(f"step {index}: the gradient of the penalty is not finite")

    def move(progress: Done) -> tuple[Tensor, object]:
        delta, memory = nes.step(state.delta, with_price, state.optimiser, problem.constraint, progress)
        delta = loop.move_active(state.delta, delta, turn.active)
        if base is not None and index + 1 == min(DEAD, options.steps):
            warn_unmoved((delta == base) & (memory.momentum == 0), index + 1, nes.probe)
        return delta, memory

    next_state = state._replace(estimate=estimate, generator=generator.get_state())
    return TurnPlan(next_state, move, estimate)


def _directions(problem: Problem, delta: Tensor, u: Tensor, options: Options, generator: torch.Generator) -> Tensor:
    """A step's directions (n,Q,...), with the gradient of the surrogate if there is one."""
    nes, images = cast(NES, options.optimiser), problem.images
    free = nes.directions(delta, len(u), generator)
    if nes.surrogate is None:
        return free[None]
    with torch.no_grad():
        anchor = nes.surrogate(images)
    transfer = Problem(images, anchor, nes.surrogate, Away(), problem.perturbation)
    return nes.mix(free, options.eot.estimate(transfer, delta, u).grad)


@torch.no_grad()
def nes_estimate(problem: Problem, delta: Tensor, directions: Tensor, u: Tensor, options: Options) -> Estimate:
    """The gradient at `delta`, from the losses on both sides along directions (n,Q,...) of length 1, of each delta or
    (n = 1) the same for all, each from one view of `u` (Q,dims)."""

    def on_side(sign: int) -> Tensor:
        deltas = (probe_deltas(problem, delta, sign * direction, options) for direction in directions.unbind(1))
        return query_losses(problem, deltas, u, options)

    plus, minus = on_side(1), on_side(-1)
    weights = (plus - minus).mean(0, keepdim=True) if problem.shared else plus - minus
    all_directions = directions.expand(len(weights), *directions.shape[1:])
    grad = torch.einsum("nq,nqchw->nchw", weights.to(all_directions), all_directions) / len(u)
    return estimate_of(torch.cat([plus, minus], 1), grad, options)


def probe_deltas(problem: Problem, delta: Tensor, direction: Tensor, options: Options) -> Tensor:
    """The deltas on one side, along a direction (n,...) of each or (n = 1) the same for all."""
    perturbation = problem.perturbation
    length = cast(NES, options.optimiser).probe * perturbation.reach / perturbation.length(direction)
    by = (length[:, None, None, None] * direction).expand_as(delta)
    return perturbation.move(delta, by, problem.images)


def query_losses(problem: Problem, deltas: Iterable[Tensor], u: Tensor, options: Options) -> Tensor:
    """The losses (N,Q) with each of Q deltas (N,...) or (1,...), each from one view of `u` (Q,dims)."""
    count, columns = len(problem), []
    for delta, point in zip(deltas, u, strict=True):
        candidate = delta.expand(count, *delta.shape[1:])
        parts = [
            problem.losses(options.eot.transforms, candidate[numbers], numbers, point.expand(len(numbers), -1))
            for numbers in torch.arange(count, device=problem.images.device).split(options.eot.chunk)
        ]
        columns.append(torch.cat(parts))
    return torch.stack(columns, 1)


def check_sampled(problem: Problem, options: Options) -> None:
    check_problem(problem, options.eot.transforms)
    eot = options.eot
    if options.adaptive is not None or options.adversary is not None:
        raise ValueError("`adaptive` and `adversary` follow a gradient, which NES only estimates; leave them out")
    if eot.views % 2:
        raise ValueError(f"`views` must be even for NES, which asks in pairs; got {eot.views}")
    if not eot.risk.uniform:
        raise ValueError(f"NES takes differences of losses: use the risk Mean(); got {type(eot.risk).__name__}")


def estimate_of(losses: Tensor, grad: Tensor, options: Options) -> Estimate:
    """The estimate from losses (N,n) and a gradient, without an snr."""
    mean = losses.mean(1)
    snr = torch.full_like(grad[:, 0, 0, 0], torch.nan)
    views = torch.full_like(snr, losses.shape[1], dtype=torch.long)
    return Estimate(mean, losses.std(1) / losses.shape[1] ** 0.5, snr, grad, views, options.eot.chunk, mean)

"""Attacks that propose a move, compute its loss, and keep what is better."""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from attacks.eot.bank import Bank, judged
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Penalty, Proposer
from attacks.solvers.checks import check_problem, pass_budget
from attacks.solvers.loop import OF_IMAGES, LoopState, Steps, Turn, TurnPlan, drive, first_state, generator_of, start
from transforms.compose import seen
from transforms.devices import uploaded
from transforms.draws import stream


def random_search(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Search one perturbation per image, or one for all, with forward passes only; yields after every query.

    The first move is always taken; every other one where it does not raise the loss, picture by picture, or the mean
    loss of a delta that all share. A move is as long as it takes to flip a delta of full size within the direction's
    window. Losses are the risk over the same `eot.views` views in all steps, which the search may fit: judge it on
    others.

    Errors and what `send` does are those of `attack`. The gradient of an estimate is zero, its snr NaN; in the first
    step the estimate belongs to the delta *after* the step.

    Raises ValueError as `attack`, and for `adaptive` and `adversary`; FloatingPointError for a loss that is not
    finite, with the step.
    """
    check_problem(problem, options.eot.transforms)
    if options.adaptive is not None:
        raise ValueError("`adaptive` follows the noise of a gradient, and a search has none; leave it out")
    if options.adversary is not None:
        raise ValueError("`adversary` chooses new views in each step, and a search keeps the same; leave it out")
    eot, images = options.eot, problem.images
    views = Bank(eot.transforms, eot.points(stream(options.seed, "attack"), 0, images))
    total = pass_budget(problem, options, eot.views)
    if state is None:
        delta = start(problem, options.seed)
        state = first_state(delta, total, estimate=_empty_estimate(delta, images, eot))
    propose = partial(_propose, problem, options, views, generator_of(options, state))
    yield from drive(propose, problem, options, state, total)


def _propose(
    problem: Problem, options: Options, views: Bank, generator: torch.Generator, state: LoopState, turn: Turn
) -> TurnPlan:
    images, eot, previous, index = problem.images, options.eot, state.estimate, turn.number
    assert previous is not None
    rows, active = (uploaded(tensor, images.device) for tensor in (turn.rows, turn.active))
    proposer = cast(Proposer, options.optimiser)
    direction = proposer.direction(state.delta, step=index, steps=options.steps, generator=generator)
    # A move against the direction, by its window's share of the diameter of the set.
    share = problem.perturbation.norm(direction.sign()) / problem.perturbation.norm(torch.ones_like(direction))
    length = 2 * problem.perturbation.reach * float(share)
    by = problem.perturbation.descend(direction.expand_as(state.delta), length, state.delta, images)
    candidate = problem.perturbation.move(state.delta, by, images)
    query = candidate if problem.shared else candidate[rows]
    losses = bank_losses(problem.take(rows), query, views, eot, options.penalty, index)
    latest = _with_losses(previous, losses, rows, eot)
    bad = rows[~latest.value[rows].isfinite()].tolist()
    if bad:
        raise FloatingPointError(f"step {index}: the loss is not finite for image(s) {bad}")
    better = active & ((latest.value <= previous.value) | (index == 0))
    if problem.shared:
        lower = latest.value[rows].mean() <= previous.value[rows].mean()
        better = lower.expand_as(better) | (index == 0)
    delta = torch.where(better[: len(candidate), None, None, None], candidate, state.delta)
    columns: dict[str, Any] = {
        name: torch.where(better, getattr(latest, name), getattr(previous, name)) for name in OF_IMAGES
    }
    latest = previous._replace(**columns)
    next_state = state._replace(estimate=latest, generator=generator.get_state())
    return TurnPlan(next_state, lambda _: (delta, None), previous if index else latest)


def bank_losses(
    problem: Problem, delta: Tensor, views: Bank, eot: EOT, penalty: Penalty | None, step: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The losses (N,V) of the attacked pictures on a bank of views, and the penalty (N,) of the perturbation."""
    images = problem.images
    scene = problem.perturbation.scene(images, delta)
    finished = judged(scene, problem.anchor, problem.encoder, problem.objective, images)
    losses = views.losses_of(finished, eot.chunk, eot.world, step)
    return losses, None if penalty is None else penalty(delta, seen(scene), images)


def _empty_estimate(delta: Tensor, images: Tensor, eot: EOT) -> Estimate:
    infinite = images.new_full((len(images),), torch.inf)
    snr = torch.full_like(delta[:, 0, 0, 0], torch.nan)
    views = torch.full_like(snr, eot.views, dtype=torch.long)
    return Estimate(infinite, infinite, snr, torch.zeros_like(delta), views, eot.chunk, infinite)


def _with_losses(previous: Estimate, update: tuple[Tensor, Tensor | None], rows: Tensor, eot: EOT) -> Estimate:
    """The losses (R,n) and the penalty (R,) of a candidate on some pictures, among the estimates of the others."""
    losses, penalty = update
    value = eot.risk.value(losses).to(losses)
    value = value if penalty is None else value + penalty
    stderr = losses.std(1) / eot.views**0.5 if eot.views > 1 else torch.zeros_like(value)
    return previous._replace(
        mean=previous.mean.index_copy(0, rows, losses.mean(1)),
        stderr=previous.stderr.index_copy(0, rows, stderr),
        value=previous.value.index_copy(0, rows, value),
    )

"""Attacks that propose a move, compute its loss, and keep what is better; one of them follows estimated gradients
first."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attacks.eot.bank import Bank, judged
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done, Penalty, Proposer
from attacks.optimisers.nes import NESSquare
from attacks.optimisers.square import Square
from attacks.solvers.checks import check_problem, pass_budget
from attacks.solvers.loop import OF_IMAGES, LoopState, Steps, Turn, TurnPlan, drive, first_state, generator_of, start
from attacks.solvers.sampled import check_sampled, nes_step
from transforms.compose import seen
from transforms.devices import uploaded
from transforms.draws import stream

SQUARE = Square()
#: The first phase's share of the steps; and that where the answers are bits, which few windows change.
PHASE, PHASE_OF_BITS = 0.3, 0.8
#: A step of the second phase has at least so many candidates, if it has as many views.
CANDIDATES = 5


class Point(NamedTuple):
    """Where a search is: the delta, and the estimate there."""

    delta: Tensor
    estimate: Estimate


class Search(NamedTuple):
    """What stays the same in a search: the problem, the options, and the views that all losses are of."""

    problem: Problem
    options: Options
    views: Bank

    def candidate(self, delta: Tensor, direction: Tensor) -> Tensor:
        """Delta after a move against a direction (1,...), as long as the window's share of the set's diameter."""
        perturbation, images = self.problem.perturbation, self.problem.images
        share = perturbation.norm(direction.sign()) / perturbation.norm(torch.ones_like(direction))
        length = 2 * perturbation.reach * float(share)
        by = perturbation.descend(direction.expand_as(delta), length, delta, images)
        return perturbation.move(delta, by, images)

    def better(self, point: Point, candidate: Tensor, turn: Turn, *, always: bool = False) -> Point:
        """The candidate where it is not worse than the point, or `always`: picture by picture, or for all of a delta
        that they share. Raises FloatingPointError."""
        problem, options, previous = self.problem, self.options, point.estimate
        rows, active = (uploaded(tensor, problem.images.device) for tensor in (turn.rows, turn.active))
        query = candidate if problem.shared else candidate[rows]
        losses = bank_losses(problem.take(rows), query, self.views, options.eot, options.penalty, turn.number)
        latest = _with_losses(previous, losses, rows, options.eot)
        if bad := rows[~latest.value[rows].isfinite()].tolist():
            raise FloatingPointError(f"step {turn.number}: the loss is not finite for image(s) {bad}")
        better = active & ((latest.value <= previous.value) | always)
        if problem.shared:
            lower = latest.value[rows].mean() <= previous.value[rows].mean()
            better = lower.expand_as(better) | always
        delta = torch.where(better[: len(candidate), None, None, None], candidate, point.delta)
        columns: dict[str, Any] = {
            name: torch.where(better, getattr(latest, name), getattr(previous, name)) for name in OF_IMAGES
        }
        return Point(delta, previous._replace(**columns))


def search_of(problem: Problem, options: Options, purpose: str = "attack") -> Search:
    points = options.eot.points(stream(options.seed, purpose), 0, problem.images)
    return Search(problem, options, Bank(options.eot.transforms, points))


def random_search(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Search one perturbation per image, or one for all, with forward passes only; yields after every query.

    The first move is always taken; every other one where it does not raise the loss, picture by picture, or the mean
    loss of a delta that all share. A move is as long as it takes to flip a delta of full size within the direction's
    window. Losses are the risk over the same `eot.views` views in all steps, which the search may fit: judge it on
    others.

    The gradient of an estimate is zero, its snr NaN; in the first step it belongs to the delta *after* the step.

    Raises ValueError as `attack`, and for `adaptive` and `adversary`; FloatingPointError for a loss that is not
    finite, with the step.
    """
    check_problem(problem, options.eot.transforms)
    if options.adaptive is not None:
        raise ValueError("`adaptive` follows the noise of a gradient, and a search has none; leave it out")
    if options.adversary is not None:
        raise ValueError("`adversary` chooses new views in each step, and a search keeps the same; leave it out")
    total = pass_budget(problem, options, options.eot.views)
    if state is None:
        delta = start(problem, options.seed)
        state = first_state(delta, total, estimate=_no_estimate(delta, problem, options.eot))
    propose = partial(_propose, search_of(problem, options), generator_of(options, state))
    yield from drive(propose, problem, options, state, total)


def _propose(search: Search, generator: torch.Generator, state: LoopState, turn: Turn) -> TurnPlan:
    options, index, previous = search.options, turn.number, state.estimate
    assert previous is not None
    proposer = cast(Proposer, options.optimiser)
    direction = proposer.direction(state.delta, step=index, steps=options.steps, generator=generator)
    candidate = search.candidate(state.delta, direction)
    point = search.better(Point(state.delta, previous), candidate, turn, always=index == 0)
    next_state = state._replace(estimate=point.estimate, generator=generator.get_state())
    return TurnPlan(next_state, lambda _: (point.delta, None), previous if index else point.estimate)


def nes_then_square(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Optimise one perturbation per image, or one for all, by `NESSquare`; yields after every step.

    Steps of the first phase are those of `sampled_descent`, whose schedule ends with the phase. Of the second, each
    takes as many losses: of several candidates, as in `random_search`. The first three are the delta that the first
    phase has reached, the same moved outwards as far as the set reaches, and the stripes that `Square` begins with.
    Errors are those of `sampled_descent`.
    """
    check_sampled(problem, options)
    nes, views = cast(NESSquare, options.optimiser), options.eot.views
    total = pass_budget(problem, options, views)
    turns = min(options.steps, int(total.max()) // views)
    first = first_steps(problem, turns)
    if state is None:
        delta = start(problem, options.seed)
        memory = nes.init(delta, reach=problem.perturbation.reach, steps=first)
        state = first_state(delta, total, memory)
    generator, base = generator_of(options, state), None if state.index else state.delta
    estimated = partial(nes_step, problem, replace(options, steps=first), generator, base)
    windows = windows_after(first, turns, problem, options, generator)

    def propose(state: LoopState, turn: Turn) -> TurnPlan:
        if turn.number >= first:
            return windows.propose(state, turn)
        plan = estimated(state, turn)

        def move(done: Done) -> tuple[Tensor, object]:
            before, after = (share * turns / first for share in done)
            return plan.move(Done(before.clamp(max=1), after.clamp(max=1)))

        return plan._replace(move=move)

    yield from drive(propose, problem, options, state, total)


def first_steps(problem: Problem, turns: int) -> int:
    """Those of the first phase, of a run of so many."""
    anchor = problem.anchor
    of_bits = isinstance(anchor, Tensor) and anchor.is_floating_point() and bool((anchor.abs() == 1).all())
    return max(1, round((PHASE_OF_BITS if of_bits else PHASE) * turns))


class Windows(NamedTuple):
    """The second phase: a search with so many `candidates` in a step, after `first` steps."""

    search: Search
    candidates: int
    first: int
    generator: torch.Generator

    def propose(self, state: LoopState, turn: Turn) -> TurnPlan:
        number, estimate = self.candidates * (turn.number - self.first), state.estimate
        assert estimate is not None
        begin = point = Point(state.delta, estimate._replace(grad=torch.zeros_like(estimate.grad)))
        for k in range(number, number + self.candidates):
            point = self.search.better(point, self.candidate(k, point.delta), turn, always=k == 0)
        next_state = state._replace(estimate=point.estimate, generator=self.generator.get_state())
        shown = begin.estimate if number else point.estimate
        return TurnPlan(next_state, lambda _: (point.delta, state.optimiser), shown)

    def candidate(self, number: int, delta: Tensor) -> Tensor:
        """That of a number, counted from the start of the phase."""
        perturbation, images = self.search.problem.perturbation, self.search.problem.images
        if number == 0:
            return delta
        if number == 1:
            outwards = perturbation.descend(-delta, 2 * perturbation.reach, delta, images)
            return perturbation.move(delta, outwards, images)
        step = 0 if number == 2 else self.candidates * self.first + number
        steps, generator = self.search.options.steps, self.generator
        return self.search.candidate(delta, SQUARE.direction(delta, step=step, steps=steps, generator=generator))


def windows_after(first: int, turns: int, problem: Problem, options: Options, generator: torch.Generator) -> Windows:
    """The second phase of a run of `turns` steps. Candidates have as many views as leave `CANDIDATES` to a step."""
    eot = options.eot
    most = max(1, eot.views // CANDIDATES) if eot.transforms.dims else 1
    views = next(n for n in range(most, 0, -1) if eot.views % n == 0)
    count = eot.views // views
    options = replace(options, eot=replace(eot, views=views), steps=turns * count)
    return Windows(search_of(problem, options, "search"), count, first, generator)


def bank_losses(
    problem: Problem, delta: Tensor, views: Bank, eot: EOT, penalty: Penalty | None, step: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The losses (N,V) of the attacked pictures on a bank of views, and the penalty (N,) of the perturbation."""
    images = problem.images
    scene = problem.perturbation.scene(images, delta)
    finished = judged(scene, problem.anchor, problem.encoder, problem.objective, images)
    losses = views.losses_of(finished, eot.chunk, eot.world, step)
    return losses, None if penalty is None else penalty(delta, seen(scene), images)


def _no_estimate(delta: Tensor, problem: Problem, eot: EOT) -> Estimate:
    infinite = problem.images.new_full((len(problem),), torch.inf)
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

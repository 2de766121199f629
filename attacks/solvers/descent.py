"""Attacks by gradient."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from attacks.encoders.engine.batch_norm import settles
from attacks.encoders.engine.preparation import fall_back
from attacks.eot.adaptive import Noise
from attacks.eot.estimate import Estimate, OnHost, combine, on_host
from attacks.eot.estimator import EOT
from attacks.eot.faults.locate import Query, not_finite, why_silent
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser
from attacks.objectives.penalties import Price, add_price, price_of
from attacks.solvers import loop
from attacks.solvers.checks import DEAD, check_problem, pass_budget, watched_over
from transforms.devices import picked, uploaded
from transforms.draws import stream


@settles
def descend(problem: Problem, options: Options, state: loop.LoopState | None = None) -> loop.Steps:
    """The steps of an attack by gradient. Arguments, errors and what `send` does are those of `attack`."""
    extra = _check_options(problem, options)
    cost = options.eot.views + extra
    total = pass_budget(problem, options, cost)
    state = _start(problem, options, total, cost) if state is None else state
    propose = partial(_propose, problem, options, total.double(), stream(options.seed, "attack"))
    return loop.drive(propose, problem, options, state, total, extra)


def _propose(
    problem: Problem, options: Options, total: Tensor, seed: int, state: loop.LoopState, turn: loop.Turn
) -> loop.TurnPlan:
    if problem.minibatches is not None:
        problem = problem.minibatch(seed, turn.number)
    images, eot, shared = problem.images, options.eot, problem.perturbation.shared
    count, device = len(images), images.device
    if state.estimate is not None and state.estimate.chunk != eot.chunk:
        eot = replace(eot, chunk=state.estimate.chunk)
    parts, zero = [], torch.zeros(len(state.delta), dtype=torch.bool)
    price = None if options.penalty is None else price_of(options.penalty, problem, state.delta)
    for rows in [turn.rows] if state.noise is None else with_same_views(turn.rows, state):
        numbers = rows if len(rows) == count else uploaded(rows, device)
        part = problem if len(rows) == count else problem.take(numbers)
        delta = state.delta if shared or len(rows) == count else state.delta[numbers]
        u = _points(problem, eot, seed, state, rows)
        if options.adversary is not None:
            number = int(state.drawn[rows[0]])
            u = options.adversary.views(part, delta, eot, eot.views, seed=seed, step=number)
        members, estimates = list(part.members()) or [part], []
        for member in members:  # no comprehension or function: each would be one more frame in every traceback
            estimates.append(eot.estimate(member, delta, u))
        query = Query(part, eot.transforms, delta, u, numbers, step=turn.number)
        estimate, zero[0 if shared else rows] = _check_estimates(query, members, estimates, eot, price)
        parts.append((rows, estimate))
    latest = gather_estimates(parts) if len(parts) > 1 else parts[0][1]
    estimate = loop.merge_estimates(state.estimate, latest, turn.rows, shared)
    reason = partial(_silence_reason, problem, eot, seed, state)
    silent = watched_over(zero, turn.number, turn.active, cast(Tensor, state.silent), reason)
    estimate = estimate._replace(chunk=eot.world.minimum(latest.chunk))
    times, noise = state.times, state.noise
    if options.adaptive is not None and noise is not None:
        noise = noise.update(estimate)
        blocks = options.adaptive.next_blocks(noise, total, turn.left, eot.views)
        times = torch.where(turn.active, blocks, times)
    leavers = state.solved | (silent >= DEAD).expand(count)
    with_price = estimate if price is None else add_price(estimate, price)
    step = cast(Optimiser, options.optimiser).step
    move = partial(step, state.delta, with_price, state.optimiser, problem.constraint)
    drawn = state.drawn + state.times * turn.active
    state = state._replace(estimate=estimate, solved=leavers, silent=silent, drawn=drawn, times=times, noise=noise)
    return loop.TurnPlan(state, move, estimate)


def _check_options(problem: Problem, options: Options) -> int:
    """The encoder passes of an adversary in each step. Raises ValueError for what cannot be combined."""
    check_problem(problem, options.eot.transforms)
    eot, adversary, adaptive = options.eot, options.adversary, options.adaptive
    if problem.minibatches is None and eot.pictures is not None and len(problem) > eot.pictures:
        raise ValueError(
            f"`pictures` of an EOT is for attack, solve and problem_for, which draw minibatches; got {eot.pictures} "
            f"with a Problem of {len(problem)} images: make it by problem_for, or leave `pictures` out"
        )
    if adversary is not None and adaptive is not None:
        raise ValueError("`adaptive` trusts random views, and `adversary` chooses them: leave one of them out")
    if not eot.risk.uniform and (adversary is not None or problem.objective.combine == "gradients"):
        raise ValueError(
            f"{type(eot.risk).__name__} weighs views by their losses; an `adversary`, or members combined by their "
            "gradients, do not: use the risk Mean()"
        )
    images = problem.images
    if adaptive is not None and torch.equal(eot.points(options.seed, 0, images), eot.points(options.seed, 1, images)):
        raise ValueError(f"`adaptive` needs draws that are new in every step; {type(eot.draws).__name__} repeats")
    return 0 if adversary is None else adversary.cost(eot.views)


def _start(problem: Problem, options: Options, total: Tensor, cost: int) -> loop.LoopState:
    """The state before the first step, of images with `total` encoder passes (N,); a step has `cost` of them or a
    multiple."""
    perturbation, adaptive, delta = problem.perturbation, options.adaptive, loop.start(problem, options.seed)
    steps = min(options.steps, int(total.max()) // cost)
    memory = cast(Optimiser, options.optimiser).init(delta, reach=perturbation.reach, steps=steps)
    state = loop.first_state(delta, total, memory)
    silent, zeros = torch.zeros(len(delta), dtype=torch.long), torch.zeros(len(delta), dtype=torch.float64)
    state = state._replace(silent=silent, drawn=torch.zeros_like(total))
    if adaptive is None:
        return state
    times = adaptive.start(total.double(), options.eot.views)
    return state._replace(times=times, noise=Noise(zeros, zeros, torch.zeros_like(silent)))


def with_same_views(rows: Tensor, state: loop.LoopState) -> list[Tensor]:
    """The images `rows` in groups whose next step has the same views."""
    kinds = torch.stack([state.drawn[rows], state.times[rows]], 1)
    if bool((kinds == kinds[0]).all()):
        return [rows]
    _, group = kinds.unique(dim=0, return_inverse=True)
    return [rows[group == i] for i in range(int(group.max()) + 1)]


def _points(problem: Problem, eot: EOT, seed: int, state: loop.LoopState, rows: Tensor) -> Tensor:
    """The coordinates of the views of the next step of some images: (n,dims), or (rows,n,dims), those of each."""
    used_blocks, times = int(state.drawn[rows[0]]), int(state.times[rows[0]])
    if not problem.perturbation.shared:
        return eot.points(seed, used_blocks, problem.images, times=times)
    return eot.points(seed, used_blocks, problem.images, times=times, pictures=len(problem))[rows]


def _silence_reason(problem: Problem, eot: EOT, seed: int, state: loop.LoopState, row: int) -> str:
    indices = torch.arange(len(problem))
    points = _points(problem, eot, seed, state, indices if problem.shared else indices[row, None])
    return why_silent(Query(problem, eot.transforms, state.delta, points, indices), row)


def _check_estimates(
    query: Query, members: Sequence[Problem], estimates: Sequence[Estimate], eot: EOT, price: Price | None
) -> tuple[Estimate, Tensor]:
    """The estimate from those of the members, checked to be finite, if need be in float32, as must be the gradient of
    the penalty, `price`; in the first step no member's is zero. And which deltas have a gradient of zero."""
    results = [*estimates, combine(estimates)] if len(members) > 1 else estimates
    result = on_host(results, None if price is None else price.grad)
    if not all(result.finite):
        first = result.finite.index(False)
        owner = [*members, query.problem][first]

        def recompute() -> OnHost:
            estimates = [eot.estimate(member, query.delta, query.u) for member in members]
            return on_host(estimates if len(members) == 1 else [*estimates, combine(estimates)])

        exact = fall_back(owner.encoder, recompute, lambda result: all(result.finite))
        if exact is None:
            raise not_finite(replace(query, problem=owner), _not_finite(result.estimates[first]))
        result = exact._replace(other=result.other)
    if not result.other:
        raise FloatingPointError(f"step {query.step}: the gradient of the penalty is not finite")
    if members[0] is not query.problem and not query.step:
        for i, zero in enumerate(result.zeros[: len(members)]):
            if bool(zero.all()):
                raise ValueError(
                    f"encoder {i} of the ensemble has a gradient of exactly zero: it cuts the graph (uint8, "
                    ".numpy(), no_grad), or it is flat there"
                )
    return result.estimates[-1], result.zeros[-1]


def _not_finite(estimate: Estimate) -> Tensor:
    bad = ~(estimate.mean.isfinite() & estimate.value.isfinite())
    if len(estimate.grad) == len(bad):
        bad = bad | ~estimate.grad.flatten(1).isfinite().all(1).cpu()
    return bad


def gather_estimates(parts: Sequence[tuple[Tensor, Estimate]]) -> Estimate:
    order = torch.cat([rows for rows, _ in parts]).argsort()
    names = loop.OF_IMAGES + loop.OF_DELTAS
    columns = {name: picked(torch.cat([getattr(estimate, name) for _, estimate in parts]), order) for name in names}
    return parts[0][1]._replace(**columns, chunk=min(estimate.chunk for _, estimate in parts))

"""The loop of every attack.

The loop is a generator: the caller's iteration is the callback. Progress, checkpoints and early stopping live in
the caller.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attacks.encoders.batch_norm import settles
from attacks.encoders.engine.preparation import fall_back
from attacks.eot.adaptive import Noise
from attacks.eot.estimate import Estimate, Known, combined, known
from attacks.eot.estimator import EOT
from attacks.eot.faults.locate import Query, located, why_silent
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done, Optimiser
from attacks.objectives.penalties import Price, penalised, priced
from attacks.runtime.distributed import World
from attacks.runtime.stored import stored
from attacks.solvers.checks import DEAD, budgeted, checked, watched_over
from transforms.devices import picked, uploaded
from transforms.draws import stream

#: Fields of an estimate with a row for each image, and for each delta.
OF_IMAGES, OF_DELTAS = ("mean", "stderr", "value"), ("snr", "grad", "views")
#: For a search, whose views do not change.
NONE = torch.zeros(0, dtype=torch.long)


@stored("loop_state")
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
    drawn: Tensor = NONE  # blocks of views that each image has had (N,)
    times: Tensor = NONE  # blocks of views that each image's next step has (N,)
    noise: Noise | None = None  # of each delta's gradients, where it chooses the views
    generator: Tensor | None = None  # of a search


@stored("step")
class Step(NamedTuple):
    """After step `index`: the perturbation, the estimate that led there (it belongs to the perturbation *before* the
    step), the encoder passes (forward and backward of one view) so far, which images took part (N,), the share of
    each image's run that is done (N,), and whether this is the last step. For an image that took no part, the
    estimate is its last one. The attack resumes from `state` (None: it cannot).

    Examples:
        >>> import torch
        >>> from attacks import EOT, Linf, PGD, Toward, attack
        >>> from attacks.solvers import Step
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "perturbation": Linf()}
        >>> parts |= {"optimiser": PGD(), "eot": EOT(views=4)}
        >>> run: list[Step] = [*attack(torch.full((2, 3, 8, 8), 0.5), torch.zeros(2, 192), **parts, steps=2)]
        >>> [(step.index, step.evals, step.done.tolist(), step.last) for step in run]
        [(0, 8, [0.5, 0.5], False), (1, 16, [1.0, 1.0], True)]
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    delta: Tensor
    estimate: Estimate
    evals: int
    active: Tensor
    done: Tensor
    last: bool
    state: Any = None


Steps = Generator[Step, Tensor | None, None]


@settles
def descend(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """The loop of `attack` by gradient, for a problem and options as values."""
    extra, optimiser = _checked(problem, options), cast(Optimiser, options.optimiser)
    world, eot, seed = options.world, options.eot, stream(options.seed, "attack")
    total = budgeted(problem, options, eot.views + extra).double()
    if state is None:
        state = _start(problem, options, total, eot.views + extra)
    elif state.estimate is not None:
        eot = replace(eot, chunk=state.estimate.chunk)
    shared, count, device = problem.shared, len(problem), problem.images.device
    for index in range(state.index, options.steps):
        cost = state.times * eot.views + extra
        active = ~state.solved & (state.left >= cost)
        rows = active.nonzero()[:, 0]
        if not len(rows):
            return
        parts, zero = [], torch.zeros(len(state.delta), dtype=torch.bool)
        price = None if options.penalty is None else priced(options.penalty, problem, state.delta)
        for same in [rows] if state.noise is None else with_same_views(rows, state):
            where = same if (whole := len(same) == count) else uploaded(same, device)
            part = problem if whole else problem.take(where)
            delta = state.delta if shared or whole else state.delta[where]
            u = _points(problem, eot, seed, state, same)
            if options.adversary is not None:
                step = int(state.drawn[same[0]])
                u = options.adversary.views(part, delta, eot, eot.views, seed=seed, step=step, world=world)
            fresh, zero[0 if shared else same] = _estimate(part, delta, eot, u, world, index, where, price)
            parts.append((same, fresh))
        fresh = gathered(parts) if len(parts) > 1 else parts[0][1]
        estimate = merged(state.estimate, fresh, rows, shared) if state.estimate and len(rows) < count else fresh
        why = partial(_why, problem, eot, seed, state)
        silent = watched_over(zero, index, active, cast(Tensor, state.silent), why)
        estimate = estimate._replace(chunk=world.minimum(fresh.chunk))
        eot = eot if eot.chunk == estimate.chunk else replace(eot, chunk=estimate.chunk)
        left, times, noise = state.left - cost * active, state.times, state.noise
        if options.adaptive is not None and noise is not None:
            noise = noise.after(estimate)
            times = torch.where(active, options.adaptive.next(noise, total, left, eot.views), times)
        solved = state.solved | (silent >= DEAD).expand(count)
        goes_on = (left >= times * eot.views + extra) & (index + 1 < options.steps)
        done = done_of(shared, index, options.steps, torch.stack([state.left, left * goes_on]) / total)
        with_price = estimate if price is None else penalised(estimate, price)
        delta, memory = optimiser.step(state.delta, with_price, state.optimiser, problem.constraint, done)
        if not (moves := active.any()[None] if shared else active).all():
            delta = torch.where(uploaded(moves, device)[:, None, None, None], delta, state.delta)
        evals, drawn = state.evals + int(cost[rows].sum()), state.drawn + state.times * active
        state = LoopState(index + 1, delta, memory, estimate, evals, left, solved, silent, drawn, times, noise)
        last = not bool((~solved & goes_on).any())
        answer = yield Step(index, delta, estimate, evals, active, done.after.expand(count), last, state)
        if answer is not None:
            state = state._replace(solved=solved | answer.cpu())


def _checked(problem: Problem, options: Options) -> int:
    """The encoder passes of an adversary in each step. Raises ValueError for what cannot be combined."""
    checked(problem, options.eot.transforms)
    eot, adversary, adaptive = options.eot, options.adversary, options.adaptive
    if adversary is not None and adaptive is not None:
        raise ValueError("`adaptive` trusts random views, and `adversary` chooses them: leave one of them out")
    if not eot.risk.uniform and (adversary is not None or problem.objective.combine == "gradients"):
        raise ValueError(
            f"{type(eot.risk).__name__} weighs views by their losses; an `adversary`, or members combined by their "
            "gradients, weigh them otherwise: use the risk Mean() with these"
        )
    images = problem.images
    if adaptive is not None and torch.equal(eot.points(options.seed, 0, images), eot.points(options.seed, 1, images)):
        raise ValueError(
            f"`adaptive` needs draws that are new in every step; {type(eot.draws).__name__} repeats its points"
        )
    return 0 if adversary is None else adversary.cost(eot.views)


def _start(problem: Problem, options: Options, total: Tensor, cost: int) -> LoopState:
    """The state before the first step, of images with `total` encoder passes (N,); a step has `cost` of them or a
    multiple."""
    perturbation, count, adaptive = problem.perturbation, len(problem), options.adaptive
    delta, steps = start(problem, options.seed), min(options.steps, int(total.max()) // cost)
    memory = cast(Optimiser, options.optimiser).init(delta, reach=perturbation.reach, steps=steps)
    silent = torch.zeros(len(delta), dtype=torch.long)
    drawn, none = torch.zeros(count, dtype=torch.long), torch.zeros(len(delta), dtype=torch.float64)
    times = torch.ones_like(drawn) if adaptive is None else adaptive.start(total, options.eot.views)
    noise = None if adaptive is None else Noise(none, none, torch.zeros_like(silent))
    return LoopState(0, delta, memory, None, 0, total.long(), drawn > 0, silent, drawn, times, noise)


def done_of(shared: bool, index: int, steps: int, left: Tensor) -> Done:
    """The share of the run that is done before and after step `index`: of the `steps` or, where that is larger, of
    the gradients, of which shares (2,N) are `left` before and after."""
    least = torch.tensor([index, index + 1], dtype=torch.float64)[:, None] / steps
    shares = torch.maximum(1 - left, least)
    return Done(*(shares.amin(1, keepdim=True) if shared else shares))


def start(problem: Problem, seed: int) -> Tensor:
    """The delta that every run of a problem with this seed begins with."""
    if problem.first is not None:
        return problem.first
    return problem.perturbation.start(problem.images, torch.Generator().manual_seed(stream(seed, "start")))


def with_same_views(rows: Tensor, state: LoopState) -> list[Tensor]:
    """The images `rows` in groups whose next step has the same views."""
    kinds = torch.stack([state.drawn[rows], state.times[rows]], 1)
    if bool((kinds == kinds[0]).all()):
        return [rows]
    _, group = kinds.unique(dim=0, return_inverse=True)
    return [rows[group == i] for i in range(int(group.max()) + 1)]


def _points(problem: Problem, eot: EOT, seed: int, state: LoopState, rows: Tensor) -> Tensor:
    """The coordinates of the views of the next step of some images, which is the same for all of them: (n,dims), or
    (rows,n,dims) where each has its own."""
    drawn, times = int(state.drawn[rows[0]]), int(state.times[rows[0]])
    if not problem.perturbation.shared:
        return eot.points(seed, drawn, problem.images, times=times)
    return eot.points(seed, drawn, problem.images, times=times, pictures=len(problem))[rows]


def _why(problem: Problem, eot: EOT, seed: int, state: LoopState, row: int) -> str:
    """Why an image has no gradient."""
    every = torch.arange(len(problem))
    points = _points(problem, eot, seed, state, every if problem.shared else every[row, None])
    return why_silent(Query(problem, eot.transforms, state.delta, points, every), row)


def _estimate(
    problem: Problem, delta: Tensor, eot: EOT, u: Tensor, world: World, step: int, rows: Tensor, price: Price | None
) -> tuple[Estimate, Tensor]:
    """The estimate of the images with numbers `rows`, checked: finite, if need be in float32, as must be the gradient
    of the penalty, `price`; of members whose gradients are combined, each by itself, and in the first step none of
    them zero. And whose gradient is zero."""
    parts = list(problem.members()) or [problem]
    each = []
    for part in parts:  # no comprehension: in Python 3.11 its frame would be one more in every traceback
        each.append(eot.estimate(part, delta, u, world=world))
    if len(parts) > 1:
        each.append(combined(each))
    result = known(each, None if price is None else price.grad)
    if not all(result.finite):
        first = result.finite.index(False)
        owner = [*parts, problem][first]

        def again() -> Known:
            members = [eot.estimate(part, delta, u, world=world) for part in parts]
            return known(members if len(parts) == 1 else [*members, combined(members)])

        exact = fall_back(owner.encoder, again, lambda result: all(result.finite))
        if exact is None:
            bad = _not_finite(result.estimates[first])
            raise located(Query(owner, eot.transforms, delta, u, rows, step=step), bad)
        result = exact._replace(other=result.other)
    if not result.other:
        raise FloatingPointError(f"step {step}: the gradient of the penalty is not finite")
    if parts[0] is not problem and not step:
        for i, zero in enumerate(result.zeros[: len(parts)]):
            if bool(zero.all()):
                raise ValueError(
                    f"encoder {i} of the ensemble has a gradient of exactly zero: it cuts the graph (uint8, "
                    ".numpy(), no_grad), or it is flat there"
                )
    return result.estimates[-1], result.zeros[-1]


def _not_finite(estimate: Estimate) -> Tensor:
    """The images (N,) whose loss is not finite, or whose gradient is not."""
    bad = ~(estimate.mean.isfinite() & estimate.value.isfinite())
    if len(estimate.grad) == len(bad):
        bad = bad | ~estimate.grad.flatten(1).isfinite().all(1).cpu()
    return bad


def gathered(parts: Sequence[tuple[Tensor, Estimate]]) -> Estimate:
    """The estimates of some groups of images as one, in the order of the images."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    names = OF_IMAGES + OF_DELTAS
    joined = {name: picked(torch.cat([getattr(each, name) for _, each in parts]), order) for name in names}
    return parts[0][1]._replace(**joined, chunk=min(each.chunk for _, each in parts))


def merged(previous: Estimate, fresh: Estimate, rows: Tensor, shared: bool) -> Estimate:
    """The estimates of all images, with a step's fresh ones for some, whose numbers `rows` are on the host; the
    others have no gradient."""
    if len(rows) == len(previous.mean):
        return fresh
    old = previous._replace(grad=torch.zeros_like(previous.grad))

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, uploaded(rows, old.device), new)

    names = OF_IMAGES if shared else OF_IMAGES + OF_DELTAS
    every: dict[str, Any] = {name: put(getattr(old, name), getattr(fresh, name)) for name in names}
    return fresh._replace(**every)

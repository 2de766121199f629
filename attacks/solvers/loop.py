"""The loop of every attack.

The loop is a generator: the caller's iteration is the callback. Progress, checkpoints and early stopping live in
the caller.
"""

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attacks.encoders.batch_norm import settles
from attacks.encoders.engine.fallback import engine_agree, fall_back
from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive, Views
from attacks.eot.estimate import Estimate, combined
from attacks.eot.estimator import EOT
from attacks.eot.faults.locate import Query, located, why_silent
from attacks.eot.problem import STEPS, Options, Problem
from attacks.eot.protocols import Adversarial, Objective, Optimiser, Penalty, Perturbation
from attacks.objectives.penalties import penalised
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.stored import stored
from attacks.solvers.checks import DEAD, budgeted, checked, watched_over
from transforms import stream


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
    drawn: int = 0  # blocks of views, so far
    size: Views = Views()
    generator: Tensor | None = None  # of a search


@stored("step")
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
    extra, optimiser = _checked(problem, options), cast(Optimiser, options.optimiser)
    world, eot, seed = options.world, options.eot, stream(options.seed, "attack")
    if state is None:
        state = _start(problem, options, extra)
    elif state.estimate is not None:
        eot = replace(eot, chunk=state.estimate.chunk)
    shared, count, device = problem.shared, len(problem), problem.images.device
    for index in range(state.index, options.steps):
        size, cost = state.size, state.size.times * eot.views + extra
        active = ~state.solved & (state.left >= cost)
        rows = active.nonzero()[:, 0].to(device)
        if not len(rows):
            return
        part, delta = problem.take(rows), state.delta if shared else state.delta[rows]
        own = count if shared else None
        points = eot.points(seed, state.drawn, problem.images, times=size.times, pictures=own)
        u = points[rows] if shared else points
        if options.adversary is not None:
            u = options.adversary.views(part, delta, eot, cost - extra, seed=seed, step=state.drawn, world=world)
        fresh = _estimate(part, delta, eot, u, world, index, rows)
        estimate = fresh if state.estimate is None else merged(state.estimate, fresh, rows, shared)
        why = partial(why_silent, Query(problem, eot.transforms, state.delta, points, torch.arange(count)))
        silent = watched_over(estimate, index, active.to(delta.device), cast(Tensor, state.silent), why)
        eot = replace(eot, chunk=world.least(fresh.chunk))
        estimate = estimate._replace(chunk=eot.chunk)
        priced = estimate
        if options.penalty is not None:
            priced = penalised(estimate, options.penalty, problem, state.delta, index)
        moved, memory = optimiser.step(state.delta, priced, state.optimiser, problem.constraint)
        moves = active.any()[None] if shared else active
        moved = torch.where(moves.to(moved.device)[:, None, None, None], moved, state.delta)
        left, remaining = state.left - cost * active, options.steps - index - 1
        if options.adaptive is not None:
            size = options.adaptive.next(size, fresh, base=eot.views, steps=remaining, budget=int(left[active].min()))
        solved = state.solved | (silent >= DEAD).cpu().expand(count)
        last = not remaining or not bool((~solved & (left >= size.times * eot.views + extra)).any())
        evals, drawn = state.evals + cost * len(rows), state.drawn + state.size.times
        state = LoopState(index + 1, moved, memory, estimate, evals, left, solved, silent, drawn, size)
        answer = yield Step(index, moved, estimate, evals, active, last, state)
        if answer is not None:
            state = state._replace(solved=solved | answer.cpu())


def _checked(problem: Problem, options: Options) -> int:
    """The encoder passes of an adversary in each step. Raises ValueError for what cannot be combined."""
    checked(problem, options.steps)
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


def _start(problem: Problem, options: Options, extra: int) -> LoopState:
    """The state before the first step."""
    perturbation, count = problem.perturbation, len(problem)
    delta = start(problem, options.seed)
    memory = cast(Optimiser, options.optimiser).init(delta, reach=perturbation.reach, steps=options.steps)
    left = budgeted(options, count, options.eot.views + extra)
    silent = torch.zeros(len(delta), dtype=torch.long, device=delta.device)
    return LoopState(0, delta, memory, None, 0, left, torch.zeros(count, dtype=torch.bool), silent)


def start(problem: Problem, seed: int) -> Tensor:
    """The delta that every run of a problem with this seed begins with."""
    return problem.perturbation.start(problem.images, torch.Generator().manual_seed(stream(seed, "start")))


def _estimate(
    problem: Problem, delta: Tensor, eot: EOT, u: Tensor, world: World, step: int, rows: Tensor
) -> Estimate:
    """The estimate of the images with numbers `rows`, checked: finite, if need be in float32; of members whose
    gradients are combined, each by itself, and in the first step none of them zero."""
    members = [_estimate(member, delta, eot, u, world, step, rows) for member in problem.members()]
    for i, member in enumerate(members):
        if not step and not bool(member.grad.any()):
            raise ValueError(
                f"encoder {i} of the ensemble has a gradient of exactly zero: it cuts the graph (uint8, .numpy(), "
                "no_grad), or it is flat there"
            )
    if members:
        return combined(members)
    estimate = eot.estimate(problem, delta, u, world=world)
    if not estimate.finite:
        again = partial(eot.estimate, problem, delta, u, world=world)
        exact = fall_back(problem.encoder, again, attrgetter("finite"))
        if exact is None:
            bad = ~(estimate.mean.isfinite() & estimate.value.isfinite())
            if len(estimate.grad) == len(bad):
                bad = bad | ~estimate.grad.flatten(1).isfinite().all(1)
            raise located(Query(problem, eot.transforms, delta, u, rows, step=step), bad)
        estimate = exact
    engine_agree(problem.encoder, world)
    return estimate


def merged(previous: Estimate, fresh: Estimate, rows: Tensor, shared: bool) -> Estimate:
    """The estimates of all images, with a step's fresh ones for some `rows`; the others have no gradient."""
    if len(rows) == len(previous.mean):
        return fresh
    old = previous._replace(grad=torch.zeros_like(previous.grad))
    names = ("mean", "stderr", "value") if shared else ("mean", "stderr", "value", "snr", "grad")
    return fresh._replace(**{name: getattr(old, name).index_copy(0, rows, getattr(fresh, name)) for name in names})

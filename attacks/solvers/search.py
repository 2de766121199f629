"""The loops of attacks without gradients: propose a move, compute its loss, and keep what is better; estimate the
gradient from losses; or do so where answers that only say same or not change.

Where such a search does better than an attack that follows the gradient, the encoder hides its gradient.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attacks.eot.bank import Bank, judged
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser, Perturbation, Proposer
from attacks.objectives.embedding import Away
from attacks.objectives.penalties import penalised, priced
from attacks.optimisers.gradient import PGD
from attacks.optimisers.nes import NES, LabelOnly
from attacks.perturbations.ball import Ball
from attacks.perturbations.radii import Radii, reaches
from attacks.runtime.stored import stored
from attacks.solvers.checks import DEAD, budgeted, checked, warn_unmoved
from attacks.solvers.loop import OF_IMAGES, LoopState, Step, Steps, descend, done_of, start
from transforms.compose import seen
from transforms.draws import stream

#: The radius of the first step along a gradient, and the smallest, in radii of the attack's own set.
FIRST, LEAST = 8.0, 1 / 64
#: Steps of the attack on a surrogate that the search begins with.
TRANSFER = 10


def loop_of(optimiser: Optimiser | Proposer) -> Callable[[Problem, Options, LoopState | None], Steps]:
    """The loop that suits the optimiser: `descend`, `sampled`, `decided` or `search`."""
    if isinstance(optimiser, LabelOnly):
        return decided
    if isinstance(optimiser, NES):
        return sampled
    return search if optimiser.gradient_free else descend


def search(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Search one perturbation per image, or one for all, with forward passes only; yields after every query.

    The first move is always taken; every other one where it does not raise the loss, picture by picture, or the mean
    loss of a delta that all pictures share: an encoder that answers in steps, such as a hash, leaves most losses as
    they are, and moves that change nothing now lead to others that do. A move is as long as it takes to flip a delta
    of full size within the direction's window. Losses are the risk over the same `eot.views` views in all steps, so a
    query costs `eot.views` encoder passes for each image. The search may fit these views: take more than a gradient
    needs, and judge it on others.

    Errors and what `send` does are those of `attack`. The gradient of an estimate is zero, its snr NaN; in the first
    step the estimate belongs to the delta *after* the step. At most `eot.chunk` views go through the encoder at a
    time.

    Raises:
        ValueError: as `attack`; and for `adaptive` and `adversary`, which belong to a gradient.
        FloatingPointError: a loss that is not finite, with the step.
    """
    checked(problem, options.eot.transforms)
    if options.adaptive is not None:
        raise ValueError("`adaptive` follows the noise of a gradient, and a search has none; leave it out")
    if options.adversary is not None:
        raise ValueError("`adversary` chooses new views in each step, and a search keeps the same; leave it out")
    eot, images, perturbation = options.eot, problem.images, problem.perturbation
    proposer = cast(Proposer, options.optimiser)
    views = Bank(eot.transforms, eot.points(stream(options.seed, "attack"), 0, images))
    generator = torch.Generator().manual_seed(stream(options.seed, "search"))
    total = budgeted(problem, options, eot.views)
    if state is None:
        delta, left = start(problem, options.seed), total
        none = torch.zeros(len(problem), dtype=torch.bool)
        state = LoopState(0, delta, None, _nothing(delta, images, eot), 0, left, none)
    else:
        assert state.generator is not None  # of an attack with gradients otherwise
        generator.set_state(state.generator)

    for index in range(state.index, options.steps):
        known, delta = state.estimate, state.delta
        assert known is not None
        active = ~state.solved & (state.left >= eot.views)
        rows = active.nonzero()[:, 0].to(images.device)
        if not len(rows):
            return
        direction = proposer.direction(delta, step=index, steps=options.steps, generator=generator)
        candidate = _moved(delta, direction, perturbation, images)
        queried = candidate if problem.shared else candidate[rows]
        fresh = _learned(known, bank_losses(problem.take(rows), queried, views, eot.chunk, options, index), rows, eot)
        if not bool(fresh.value[rows].isfinite().all()):
            bad = rows[~fresh.value[rows].isfinite()].tolist()
            raise FloatingPointError(f"step {index}: the loss is not finite for image(s) {bad}")
        better = active.to(images.device) & ((fresh.value <= known.value) | (index == 0))
        if problem.shared:
            better = (fresh.value[rows].mean() <= known.value[rows].mean()).expand_as(better) | (index == 0)
        delta = torch.where(better[: len(delta), None, None, None], candidate, delta)
        latest = _chosen(better, fresh, known)
        evals, left = state.evals + eot.views * len(rows), state.left - eot.views * active
        last = index + 1 == options.steps or not bool((~state.solved & (left >= eot.views)).any())
        state = LoopState(index + 1, delta, None, latest, evals, left, state.solved, generator=generator.get_state())
        share = (1 - left.double() / total).clamp(min=1.0 if last else (index + 1) / options.steps)
        answer = yield Step(index, delta, known if index else latest, evals, active, share, last, state)
        if answer is not None:
            state = state._replace(solved=state.solved | answer.cpu())


def bank_losses(
    problem: Problem, delta: Tensor, views: Bank, chunk: int, options: Options, step: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The losses (N,V) of the attacked pictures on a bank of views, and the penalty (N,) of the perturbation."""
    images, penalty = problem.images, options.penalty
    attacked = problem.perturbation.scene(images, delta)
    finished = judged(attacked, problem.anchor, problem.encoder, problem.objective, images)
    losses = views.losses_of(finished, chunk, options.world, step)
    return losses, None if penalty is None else penalty(delta, seen(attacked), images)


def _moved(delta: Tensor, direction: Tensor, perturbation: Perturbation, images: Tensor) -> Tensor:
    """Delta after a move against the direction. The diameter of the set would flip a delta of full size everywhere;
    within the direction's window, its share of that (in the L-inf norm all of it)."""
    whole = torch.ones_like(direction)
    share = perturbation.norm(direction.sign()) / perturbation.norm(whole)
    length = 2 * perturbation.reach * float(share)
    by = perturbation.descend(direction.expand_as(delta), length, delta, images)
    return perturbation.move(delta, by, images)


def _nothing(delta: Tensor, images: Tensor, eot: EOT) -> Estimate:
    """Before the first query."""
    none = images.new_full((len(images),), torch.inf)
    snr = torch.full_like(delta[:, 0, 0, 0], torch.nan)
    views = torch.full_like(snr, eot.views, dtype=torch.long)
    return Estimate(none, none, snr, torch.zeros_like(delta), views, eot.chunk, none)


def _learned(known: Estimate, fresh: tuple[Tensor, Tensor | None], rows: Tensor, eot: EOT) -> Estimate:
    """The losses (R,n) and the penalty (R,) of a candidate on some pictures, among the estimates of the others."""
    losses, penalty = fresh
    value = eot.risk.value(losses).to(losses)
    value = value if penalty is None else value + penalty
    stderr = losses.std(1) / eot.views**0.5 if eot.views > 1 else torch.zeros_like(value)
    return known._replace(
        mean=known.mean.index_copy(0, rows, losses.mean(1)),
        stderr=known.stderr.index_copy(0, rows, stderr),
        value=known.value.index_copy(0, rows, value),
    )


def _chosen(better: Tensor, fresh: Estimate, known: Estimate) -> Estimate:
    """Picture by picture, the estimate of the delta that was kept."""
    values: dict[str, Any] = {
        name: torch.where(better, getattr(fresh, name), getattr(known, name)) for name in ("mean", "stderr", "value")
    }
    return known._replace(**values)


def sampled(problem: Problem, options: Options, state: LoopState | None = None) -> Steps:
    """Optimise one perturbation per image, or one for all, by `NES`; yields after every step.

    A step takes `eot.views` losses of each image: those of a perturbation on both sides of delta along half as many
    directions, the same for all images. Both sides of a pair are seen from one view, and each pair has another, new
    in every step. The estimate is the mean of the directions, weighted by the difference of their two losses.

    Errors and what `send` does are those of `attack`. The estimate's loss is the mean over both sides, its snr NaN.

    Raises:
        ValueError: as `attack`; and for an odd number of views, a risk that is no mean, `adaptive` and `adversary`.
        FloatingPointError: a loss that is not finite, with the step.
    """
    check_sampled(problem, options)
    eot, nes, images = options.eot, cast(NES, options.optimiser), problem.images
    generator = torch.Generator().manual_seed(stream(options.seed, "search"))
    total, seed = budgeted(problem, options, eot.views), stream(options.seed, "attack")
    if state is None:
        delta = start(problem, options.seed)
        memory = nes.init(delta, reach=problem.perturbation.reach, steps=options.steps)
        state = LoopState(0, delta, memory, None, 0, total, torch.zeros(len(problem), dtype=torch.bool))
    else:
        assert state.generator is not None  # of an attack with gradients otherwise
        generator.set_state(state.generator)
    begun = None if state.index else state.delta
    for index in range(state.index, options.steps):
        active = ~state.solved & (state.left >= eot.views)
        rows = active.nonzero()[:, 0].to(images.device)
        if not len(rows):
            return
        u = eot.points(seed, index, images)[: eot.views // 2]
        part, some = problem.take(rows), state.delta if problem.shared else state.delta[rows]
        directions = _directions(part, some, u, options, generator)
        fresh = estimated(part, some, directions, u, options)
        if not bool(fresh.mean.isfinite().all()):
            raise FloatingPointError(
                f"step {index}: the loss is not finite for image(s) {rows[~fresh.mean.isfinite()].tolist()}"
            )
        estimate = _among(state.estimate, fresh, rows, state.delta, len(problem))
        price = None if options.penalty is None else priced(options.penalty, problem, state.delta)
        with_price = estimate if price is None else penalised(estimate, price)
        if price is not None and not bool(with_price.grad.isfinite().all()):
            raise FloatingPointError(f"step {index}: the gradient of the penalty is not finite")
        left = state.left - eot.views * active
        done = done_of(problem.shared, index, options.steps, torch.stack([state.left, left]) / total.double())
        moved, memory = nes.step(state.delta, with_price, state.optimiser, problem.constraint, done)
        moves = (active.any()[None] if problem.shared else active).to(moved.device)
        moved = torch.where(moves[:, None, None, None], moved, state.delta)
        evals = state.evals + eot.views * len(rows)
        last = index + 1 == options.steps or not bool((~state.solved & (left >= eot.views)).any())
        state = LoopState(
            index + 1, moved, memory, estimate, evals, left, state.solved, generator=generator.get_state()
        )
        if begun is not None and index + 1 == min(DEAD, options.steps):
            warn_unmoved((moved == begun) & (memory.momentum == 0), index + 1, nes.probe)
        after = torch.ones_like(done.after) if last else done.after
        answer = yield Step(index, moved, estimate, evals, active, after.expand(len(problem)), last, state)
        if answer is not None:
            state = state._replace(solved=state.solved | answer.cpu())


def _directions(problem: Problem, delta: Tensor, u: Tensor, options: Options, generator: torch.Generator) -> Tensor:
    """A step's directions (n,Q,...), with the gradient of the surrogate if there is one."""
    nes, images = cast(NES, options.optimiser), problem.images
    free = nes.directions(delta, len(u), generator)
    if nes.surrogate is None:
        return free[None]
    with torch.no_grad():
        anchor = nes.surrogate(images)
    own = Problem(images, anchor, nes.surrogate, Away(), problem.perturbation)
    return nes.mixed(free, options.eot.estimate(own, delta, u).grad)


@torch.no_grad()
def estimated(problem: Problem, delta: Tensor, directions: Tensor, u: Tensor, options: Options) -> Estimate:
    """The gradient at `delta`, from the losses on both sides along directions (n,Q,...) of length 1, of each delta or
    (n = 1) the same for all, each from one view of `u` (Q,dims)."""
    plus, minus = (
        answered(problem, (probed(problem, delta, sign * each, options) for each in directions.unbind(1)), u, options)
        for sign in (1, -1)
    )
    weights = (plus - minus).mean(0, keepdim=True) if problem.shared else plus - minus
    whole = directions.expand(len(weights), *directions.shape[1:])
    grad = torch.einsum("nq,nqchw->nchw", weights.to(whole), whole) / len(u)
    return estimate_of(torch.cat([plus, minus], 1), grad, options)


def probed(problem: Problem, delta: Tensor, direction: Tensor, options: Options) -> Tensor:
    """The deltas on one side, along a direction (n,...) of each or (n = 1) the same for all."""
    perturbation = problem.perturbation
    length = cast(NES, options.optimiser).probe * perturbation.reach / perturbation.length(direction)
    by = (length[:, None, None, None] * direction).expand_as(delta)
    return perturbation.move(delta, by, problem.images)


def answered(problem: Problem, deltas: Iterable[Tensor], u: Tensor, options: Options) -> Tensor:
    """The losses (N,Q) with each of Q deltas (N,...) or (1,...), each from one view of `u` (Q,dims)."""
    count, columns = len(problem), []
    for delta, point in zip(deltas, u, strict=True):
        candidate = delta.expand(count, *delta.shape[1:])
        parts = [
            problem.losses(options.eot.transforms, candidate[which], which, point.expand(len(which), -1))
            for which in torch.arange(count, device=problem.images.device).split(options.eot.chunk)
        ]
        columns.append(torch.cat(parts))
    return torch.stack(columns, 1)


def check_sampled(problem: Problem, options: Options) -> None:
    """Refuse what `sampled` cannot do. Raises ValueError."""
    checked(problem, options.eot.transforms)
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


def _among(known: Estimate | None, fresh: Estimate, rows: Tensor, delta: Tensor, count: int) -> Estimate:
    """A step's estimates of some images, among the last ones of the others, which have no gradient."""
    if len(rows) == count or known is None:
        return fresh
    grad = fresh.grad if len(delta) == 1 < count else torch.zeros_like(delta).index_copy(0, rows, fresh.grad)
    return known._replace(
        grad=grad, **{name: getattr(known, name).index_copy(0, rows, getattr(fresh, name)) for name in OF_IMAGES}
    )


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

    Within the budget an answer of same or not is the same nearly everywhere, so no loss shows a direction. The attack
    therefore walks in a larger set, where about half of its queries change the answer, and the set shrinks as these
    become more. A step is one of `sampled` in a ball with a radius of its own for each image. The delta that it
    yields has the walk's direction and the length that the perturbation allows, so it lies in that set.

    The first step only asks:
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
        first = first * _ratio(ball, radii, widest, first)
    else:
        first = _transferred(problem, ball, radii, options)
    estimate = estimate_of(torch.cat([untouched, far], 1), nothing, options)
    memory, evals = optimiser.init(first, reach=1.0, steps=options.steps), eot.views * len(problem)
    total, none = budgeted(problem, options, eot.views), torch.zeros(len(problem), dtype=torch.bool)
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
    walk = step.delta * _ratio(ball, radii, sets.radii, step.delta)
    return Decided(step.state._replace(delta=walk), radii, memory.high, low)


def _ratio(ball: Ball, radii: Tensor, before: Tensor, like: Tensor) -> Tensor:
    """By how much the values of deltas change where the radii (N,) of their sets do, (N,1,1,1)."""
    return (reaches(ball, radii) / reaches(ball, before)).to(like)[:, None, None, None]


def _within(ball: Ball, memory: Decided, images: Tensor) -> Tensor:
    """The walk's deltas, as long as the ball allows."""
    walk = memory.walk.delta
    scale = _ratio(ball, torch.full_like(memory.radii, ball.eps), memory.radii, walk)
    return ball.move(torch.zeros_like(walk), walk * scale, images)

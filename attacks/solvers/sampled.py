"""The loop of an attack that estimates the gradient from losses: forward passes only."""

from typing import cast

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done
from attacks.objectives.penalties import penalised
from attacks.optimisers.nes import NES
from attacks.solvers.checks import budgeted, checked
from attacks.solvers.loop import LoopState, Step, Steps, start
from transforms import stream


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
    checked(problem, options.steps)
    eot, nes, images = options.eot, cast(NES, options.optimiser), problem.images
    if options.adaptive is not None or options.adversary is not None:
        raise ValueError("`adaptive` and `adversary` follow a gradient, which NES only estimates; leave them out")
    if eot.views % 2:
        raise ValueError(f"`views` must be even for NES, which asks in pairs; got {eot.views}")
    if not eot.risk.uniform:
        raise ValueError(f"NES takes differences of losses: use the risk Mean(); got {type(eot.risk).__name__}")
    generator = torch.Generator().manual_seed(stream(options.seed, "search"))
    total, seed = budgeted(options, len(problem), eot.views), stream(options.seed, "attack")
    if state is None:
        delta = start(problem, options.seed)
        memory = nes.init(delta, reach=problem.perturbation.reach, steps=options.steps)
        state = LoopState(0, delta, memory, None, 0, total, torch.zeros(len(problem), dtype=torch.bool))
    else:
        assert state.generator is not None  # of an attack with gradients otherwise
        generator.set_state(state.generator)
    for index in range(state.index, options.steps):
        active = ~state.solved & (state.left >= eot.views)
        rows = active.nonzero()[:, 0].to(images.device)
        if not len(rows):
            return
        u = eot.points(seed, index, images)[: eot.views // 2]
        directions = nes.directions(state.delta, len(u), generator)
        part, some = problem.take(rows), state.delta if problem.shared else state.delta[rows]
        fresh = estimated(part, some, directions, u, options)
        if not bool(fresh.mean.isfinite().all()):
            raise FloatingPointError(
                f"step {index}: the loss is not finite for image(s) {rows[~fresh.mean.isfinite()].tolist()}"
            )
        estimate = _among(state.estimate, fresh, rows, state.delta, len(problem))
        priced = (
            estimate if options.penalty is None else penalised(estimate, options.penalty, problem, state.delta, index)
        )
        left = state.left - eot.views * active
        least = torch.tensor([index, index + 1], dtype=torch.float64)[:, None] / options.steps
        shares = torch.maximum(1 - torch.stack([state.left, left]) / total.double(), least)
        done = Done(*(shares.amin(1, keepdim=True) if problem.shared else shares))
        moved, memory = nes.step(state.delta, priced, state.optimiser, problem.constraint, done)
        moves = (active.any()[None] if problem.shared else active).to(moved.device)
        moved = torch.where(moves[:, None, None, None], moved, state.delta)
        evals = state.evals + eot.views * len(rows)
        last = index + 1 == options.steps or not bool((~state.solved & (left >= eot.views)).any())
        state = LoopState(
            index + 1, moved, memory, estimate, evals, left, state.solved, generator=generator.get_state()
        )
        after = torch.ones_like(done.after) if last else done.after
        answer = yield Step(index, moved, estimate, evals, active, after.expand(len(problem)), last, state)
        if answer is not None:
            state = state._replace(solved=state.solved | answer.cpu())


@torch.no_grad()
def estimated(problem: Problem, delta: Tensor, directions: Tensor, u: Tensor, options: Options) -> Estimate:
    """The gradient at `delta`, from the losses on both sides along directions (Q,...) of length 1, each from one view
    of `u` (Q,dims)."""
    nes, images = cast(NES, options.optimiser), problem.images
    perturbation, count = problem.perturbation, len(problem)
    sides = []
    for sign in (1, -1):
        columns = []
        for direction, point in zip(directions, u, strict=True):
            length = nes.probe * perturbation.reach / perturbation.norm(direction[None])
            by = (sign * length[:, None, None, None] * direction).expand_as(delta)
            candidate = perturbation.move(delta, by, images).expand(count, *delta.shape[1:])
            parts = [
                problem.losses(options.eot.transforms, candidate[which], which, point.expand(len(which), -1))
                for which in torch.arange(count, device=images.device).split(options.eot.chunk)
            ]
            columns.append(torch.cat(parts))
        sides.append(torch.stack(columns, 1))
    plus, minus = sides
    weights = (plus - minus).mean(0, keepdim=True) if problem.shared else plus - minus
    grad = torch.einsum("nq,qchw->nchw", weights.to(directions), directions) / len(directions)
    losses = torch.cat(sides, 1)
    mean = losses.mean(1)
    snr = torch.full_like(delta[:, 0, 0, 0], torch.nan)
    views = torch.full_like(snr, losses.shape[1], dtype=torch.long)
    return Estimate(mean, losses.std(1) / losses.shape[1] ** 0.5, snr, grad, views, options.eot.chunk, mean)


def _among(known: Estimate | None, fresh: Estimate, rows: Tensor, delta: Tensor, count: int) -> Estimate:
    """A step's estimates of some images, among the last ones of the others, which have no gradient."""
    if len(rows) == count or known is None:
        return fresh
    grad = fresh.grad if len(delta) == 1 < count else torch.zeros_like(delta).index_copy(0, rows, fresh.grad)
    names = ("mean", "stderr", "value")
    return known._replace(
        grad=grad, **{name: getattr(known, name).index_copy(0, rows, getattr(fresh, name)) for name in names}
    )

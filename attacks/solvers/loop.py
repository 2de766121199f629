"""The loop of every attack.

The loop is a generator: the caller's iteration is the callback. Progress, checkpoints and early stopping live in
the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.batch_norm import settles
from attacks.encoders.engine.fallback import engine_agree
from attacks.encoders.randomness import drawn as own_draws
from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive, Views
from attacks.eot.estimate import Estimate, combined
from attacks.eot.estimator import EOT
from attacks.eot.faults.certain import certain, looks_of
from attacks.eot.faults.silence import why_silent
from attacks.eot.protocols import Ground, Inner, Look, Objective, Optimiser, Penalty, Perturbation
from attacks.objectives.penalties import penalised
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import stored
from attacks.solvers.checks import DEAD, budgeted, checked, watched_over
from transforms import stream

STEPS = 100


@stored("loop_state")
class Position(NamedTuple):
    """Where an attack stands after a step: all that the next one depends on, but for what the attack was started
    with. `attack(..., position=...)` goes on from here, to the bit. It is a value: nothing of it changes afterwards.
    """

    index: int  # type: ignore[assignment]  # of the next step; hides tuple.index, which nobody needs here
    delta: Tensor
    state: Any  # the optimiser's
    estimate: Estimate
    evals: int
    left: Tensor  # encoder passes that each image may still have (N,)
    solved: Tensor  # images that have left (N,)
    silent: Tensor | None = None  # for how many steps running a delta has had no gradient
    drawn: int = 0  # blocks of views, so far
    size: Views = Views()
    chance: Tensor | None = None  # of a search: its generator


@stored("step")
class Step(NamedTuple):
    """After step `index`: the perturbation as it stands now, the estimate that led there (it belongs to the
    perturbation *before* the step), the encoder passes (forward and backward of one view) spent so far, which images
    took part (N,), and whether no step can follow. Of an image that took no part, the estimate is its last. From
    `position` the attack can be taken up again (None: not from here)."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    delta: Tensor
    estimate: Estimate
    evals: int
    active: Tensor
    last: bool
    position: Any = None


@settles
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
    adversary: Inner | None = None,
    position: Position | None = None,
) -> Generator[Step, Tensor | None, None]:
    """Optimise one perturbation per image, or one for all, over the expected views; yields after every step.

    An image leaves the batch when its budget is spent, or when the caller says that it is solved: `send` a mask
    (N,) of solved images to the generator, which answers with the next step. Its delta then stays as it is.

    Args:
        images: (N,3,H,W) in [0,1].
        anchor: what the objective compares with, a row for each picture: (N,D) embeddings to move away from, or
            toward; (N,) labels; or several of these, as the objective says.
        encoder: images to embeddings, in evaluation mode; its preprocessing belongs to it.
        steps: gradient steps; each costs eot.n encoder passes for each image.
        seed: of the start and of the views. The same seed gives the same bits on the same machine.
        budget: the most encoder passes to spend on each image, or on each of them (N,); None for no limit.
        adaptive: whether and when to raise the number of views; needs a budget.
        world: the processes that share the work; every one of them yields the same steps.
        penalty: a price on the look of the perturbation; its value and gradient are added to the risk's.
        adversary: chooses the `eot.n` views of each step, picture by picture, to the attacker's harm (see
            `attacks.solvers.worst.Adversary`); what it spends on that counts as encoder passes. Not with `adaptive`.
        position: of an earlier step of this very attack, to go on from; images that were said to be solved after
            that step belong into its `solved`.

    Raises:
        ValueError: wrong shapes or ranges, an encoder in training mode, a start where the gradient is zero, or a
            gradient that is zero in the first step. One that is zero in five later steps running is a warning, and
            its image leaves.
        NotFinite: (a FloatingPointError) a loss or gradient that is not finite, with the step and the view.
    """
    checked(images, anchor, encoder, objective, perturbation, steps)
    if adversary is not None and adaptive is not None:
        raise ValueError("`adaptive` trusts random views, and `adversary` chooses them: leave one of them out")
    if not eot.risk.uniform and (adversary is not None or getattr(objective, "combine", None) == "gradients"):
        raise ValueError(
            f"{type(eot.risk).__name__} weighs views by their losses; an `adversary`, or members combined by their "
            "gradients, weigh them otherwise: use the risk Mean() with these"
        )
    extra = 0 if adversary is None else adversary.cost(eot.n)
    left = budgeted(budget, len(images), steps, eot.n + extra, adaptive)
    if adaptive is not None and torch.equal(eot.points(seed, 0, images), eot.points(seed, 1, images)):
        raise ValueError(
            f"`adaptive` needs draws that are new in every step; {type(eot.draws).__name__} repeats its points"
        )
    ground = Ground(
        lambda grad, length, at: perturbation.descend(grad, length, at, images),
        lambda at, by: perturbation.move(at, by, images),
    )
    views, estimate = stream(seed, "attack"), None
    if position is None:
        delta = perturbation.start(images, torch.Generator().manual_seed(stream(seed, "start")))
        state, begin = optimiser.init(delta, reach=perturbation.reach, steps=steps), 0
        drawn, evals, size, solved = 0, 0, Views(), torch.zeros(len(images), dtype=torch.bool)
        silent = torch.zeros(len(delta), dtype=torch.long, device=delta.device)
    else:
        begin, delta, state, estimate, evals, left, solved, quiet, drawn, size, _ = position
        assert quiet is not None  # of a search otherwise
        silent, eot = quiet, replace(eot, chunk=estimate.chunk)

    for index in range(begin, steps):
        n = size.times * eot.n
        active = ~solved & (left >= n + extra)
        rows = active.nonzero()[:, 0].to(images.device)
        if not len(rows):
            return
        own = len(images) if perturbation.shared else None
        points = eot.points(views, drawn, images, times=size.times, pictures=own)
        u: Tensor | Callable[[Look], Tensor] = points if own is None else points[rows]
        if adversary is not None:
            choose, count = adversary.views, len(rows)
            u = partial(choose, eot=eot, n=n, like=images, count=count, seed=views, step=drawn, world=world)
        found = _estimate(delta, images, anchor, rows, encoder, objective, perturbation, eot, u, world, index)
        estimate = found if estimate is None else merged(estimate, found, rows, perturbation.shared)
        every = torch.arange(len(images), device=images.device)
        given = (delta, images, anchor, every, encoder, objective, perturbation, eot.transforms, points, index)
        why = partial(why_silent, partial(looks_of, *given))
        silent = watched_over(estimate, index, active.to(delta.device), silent, why)
        solved = solved | (silent >= DEAD).cpu().expand(len(solved))
        eot = replace(eot, chunk=world.least(found.chunk))
        estimate = estimate._replace(chunk=eot.chunk)
        priced = estimate
        if penalty is not None:
            priced = penalised(estimate, penalty, perturbation.scene, delta, images)
            if not bool(priced.grad.isfinite().all()):
                raise FloatingPointError(f"step {index}: the gradient of the penalty is not finite")
        moved, state = optimiser.step(delta, priced, state, ground)
        takes_part = active if len(delta) == len(images) else active.any()[None]
        delta = torch.where(takes_part.to(delta.device)[:, None, None, None], moved, delta)
        drawn, evals = drawn + size.times, evals + (n + extra) * len(rows)
        left = left - (n + extra) * active
        remaining = steps - index - 1
        if adaptive is not None:
            size = adaptive.next(size, found, base=eot.n, steps=remaining, budget=int(left[active].min()))
        last = not remaining or not bool((~solved & (left >= size.times * eot.n + extra)).any())
        at = Position(index + 1, delta, state, estimate, evals, left, solved, silent, drawn, size)
        said = yield Step(index, delta, estimate, evals, active, last, at)
        if said is not None:
            solved = solved | said.cpu()


def _estimate(
    delta: Tensor,
    images: Tensor,
    anchor: Tree,
    rows: Tensor,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    eot: EOT,
    u: Tensor | Callable[[Look], Tensor],
    world: World,
    step: int,
) -> Estimate:
    """The estimate for some of the images, from the views `u` or from those that it chooses; of members that are to
    be estimated apart, theirs combined. In the first step each of them must have a gradient."""

    looks = looks_of(delta, images, anchor, rows, encoder, objective, perturbation, eot.transforms, images[:0], step)
    part, scene, paired = looks.delta, looks.scene, looks.twin

    def loss(pixels: Tensor, which: Tensor, untouched: Tensor | None = None, **draws: Tensor) -> Tensor:
        if untouched is None:
            return objective(encoder(pixels, **draws), looks.anchor(which))
        # Its pixels have a gradient where an adversary moves the view of both.
        with torch.set_grad_enabled(torch.is_grad_enabled() and untouched.requires_grad):
            beside = encoder(untouched, **draws)
        return objective(encoder(pixels, **draws), beside)

    def look(which: Tensor, at: Tensor) -> Tensor:
        rows_of = part.expand(len(which), *part.shape[1:]) if perturbation.shared else part[which]
        each = which.repeat_interleave(len(at) // len(which))
        seen = [eot.transforms(scene(rows_of, which), at)]
        if paired is not None:
            seen.append(eot.transforms(paired(which), at))
        return loss(seen[0], each, *seen[1:], **own_draws(eot.transforms, at))

    u = u if isinstance(u, Tensor) else u(look)  # the same views for all members
    apart = getattr(objective, "apart", None)
    members = None if apart is None else apart(encoder, anchor)
    if members is not None:
        found = [
            _estimate(delta, images, own, rows, run, wish, perturbation, eot, u, world, step)
            for run, wish, own in members
        ]
        for i, each in enumerate(found):
            if not step and not bool(each.grad.any()):
                raise ValueError(
                    f"encoder {i} of the ensemble has a gradient of exactly zero: it cuts the graph (uint8, "
                    ".numpy(), no_grad), or it is flat there"
                )
        return combined(found)
    ask = partial(eot.estimate, part, scene, loss, u, count=len(rows), world=world, twin=paired)
    one = certain(replace(looks, u=u), ask)
    engine_agree(encoder, world)
    return one


def merged(before: Estimate, now: Estimate, rows: Tensor, shared: bool) -> Estimate:
    """What is known of all images, from what a step has learned of some; those that have left have no gradient."""
    if len(rows) == len(before.mean):
        return now
    old = before._replace(grad=torch.zeros_like(before.grad))
    names = ("mean", "stderr", "value") if shared else ("mean", "stderr", "value", "snr", "grad")
    return now._replace(**{name: getattr(old, name).index_copy(0, rows, getattr(now, name)) for name in names})

"""The loop of an attack that knows no gradient: propose, look, and keep what is better.

Whether an encoder hides its gradient shows where such a search does better than an attack that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree, take
from attacks.eot.adaptive import Adaptive
from attacks.eot.bank import Bank
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.protocols import Inner, Objective, Optimiser, Penalty, Perturbation, Proposer, among
from attacks.runtime.distributed import ALONE, World
from attacks.solvers.checks import budgeted, checked
from attacks.solvers.loop import STEPS, Position, Step, attack
from transforms import stream
from transforms.compose import seen


def gradient_free(optimiser: Optimiser | Proposer) -> bool:
    """Whether it asks for no gradient."""
    return bool(getattr(optimiser, "gradient_free", False))


def loop_of(optimiser: Optimiser | Proposer) -> Callable[..., Generator[Step, Tensor | None, None]]:
    """The loop that suits the optimiser: `attack`, or `search`."""
    return search if gradient_free(optimiser) else attack


def search(
    images: Tensor,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    optimiser: Proposer,
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
    """Search one perturbation per image, or one for all, with forward passes only; yields after every query.

    The first step moves the start along the proposer's first direction, and takes it. Every other step moves delta
    along a direction, and takes the move, picture by picture, if it lowers the loss; of a delta that all pictures
    share, the mean loss. Losses are the risk over `eot.n` views, *the same in all steps* (the first ones that
    `eot.draws` gives): the loss of the current delta is known then, a query costs `eot.n` encoder passes for each
    image, and no move is taken for the luck of its draw. So the search may fit its views; take more of them than a
    gradient needs, and judge it on others.

    A move is as long as it takes to flip a delta of full size within the direction's window.

    Arguments, errors and what `send` does are those of `attack`. The gradient of an estimate is zero, its snr NaN; in
    the first step the estimate belongs to the delta *after* the step. Views go through the encoder picture by
    picture, at most `eot.chunk` at a time.

    Raises:
        ValueError: as `attack`; and for `adaptive` and `adversary`, which belong to a gradient.
        FloatingPointError: a loss that is not finite, with the step.
    """
    checked(images, anchor, encoder, objective, perturbation, steps)
    if adaptive is not None:
        raise ValueError("`adaptive` follows the noise of a gradient, and a search has none; leave it out")
    if adversary is not None:
        raise ValueError("`adversary` chooses new views in each step, and a search keeps the same; leave it out")
    left = budgeted(budget, len(images), steps, eot.n, None)
    views = Bank(eot.transforms, eot.points(stream(seed, "attack"), 0, images))
    chance = torch.Generator().manual_seed(stream(seed, "search"))
    if position is None:
        delta = perturbation.start(images, torch.Generator().manual_seed(stream(seed, "start")))
        solved, begin, evals, known = torch.zeros(len(images), dtype=torch.bool), 0, 0, _nothing(delta, images, eot)
    else:
        begin, delta, evals, left, solved = (
            position.index,
            position.delta,
            position.evals,
            position.left,
            position.solved,
        )
        known = position.estimate
        assert position.chance is not None  # of an attack with gradients otherwise
        chance.set_state(position.chance)

    for index in range(begin, steps):
        active = ~solved & (left >= eot.n)
        rows = active.nonzero()[:, 0].to(images.device)
        if not len(rows):
            return
        direction = optimiser.direction(delta, step=index, steps=steps, generator=chance)
        candidate = _moved(delta, direction, perturbation, images)
        part = candidate if perturbation.shared else candidate[rows]
        attacked = among(perturbation, rows).scene(images[rows], part)
        own = take(anchor, rows)
        losses = views.losses(attacked, own, encoder, objective, eot.chunk, world, untouched=images[rows], step=index)
        price = None if penalty is None else penalty(part, seen(attacked), images[rows])
        found = _learned(known, losses, price, rows, eot)
        if not bool(found.value[rows].isfinite().all()):
            bad = rows[~found.value[rows].isfinite()].tolist()
            raise FloatingPointError(f"step {index}: the loss is not finite for image(s) {bad}")
        better = active.to(images.device) if index == 0 else found.value < known.value
        if perturbation.shared:
            better = (found.value[rows].mean() < known.value[rows].mean()).expand_as(better) | (index == 0)
        delta = torch.where(better[: len(delta), None, None, None], candidate, delta)
        now = _chosen(better, found, known)
        evals, left = evals + eot.n * len(rows), left - eot.n * active
        last = index + 1 == steps or not bool((~solved & (left >= eot.n)).any())
        at = Position(index + 1, delta, None, now, evals, left, solved, chance=chance.get_state())
        said = yield Step(index, delta, known if index else now, evals, active, last, at)
        known = now
        if said is not None:
            solved = solved | said.cpu()


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
    return Estimate(none, none, snr, torch.zeros_like(delta), eot.n, eot.chunk, none)


def _learned(known: Estimate, losses: Tensor, price: Tensor | None, rows: Tensor, eot: EOT) -> Estimate:
    """The losses (R,n) of a candidate on some pictures, among what is known of the others."""
    value = eot.risk.value(losses).to(losses)
    value = value if price is None else value + price
    stderr = losses.std(1) / eot.n**0.5 if eot.n > 1 else torch.zeros_like(value)
    return known._replace(
        mean=known.mean.index_copy(0, rows, losses.mean(1)),
        stderr=known.stderr.index_copy(0, rows, stderr),
        value=known.value.index_copy(0, rows, value),
    )


def _chosen(better: Tensor, found: Estimate, known: Estimate) -> Estimate:
    """Picture by picture, what is known of the delta that was kept."""
    return known._replace(
        mean=torch.where(better, found.mean, known.mean),
        stderr=torch.where(better, found.stderr, known.stderr),
        value=torch.where(better, found.value, known.value),
    )

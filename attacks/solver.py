"""The loop run to its end, keeping for each picture the iterate that is best on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Candidates are therefore compared on common views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attacks.distributed import ALONE
from attacks.evaluation import Bank, bank
from attacks.loop import STEPS, Step, attack
from attacks.parts import Perturbation, Setup
from attacks.penalties import seen
from attacks.trees import Tree, take

#: Views of the bank that chooses the best iterate.
VIEWS = 64
#: How many times during a run the current iterate is compared.
LOOKS = 10


class Best(NamedTuple):
    """The best perturbation so far (of each picture, or the one that all share), the loss of each picture under it on
    the bank (N,), the step that it comes from (N,), and the last comparison's loss (N,)."""

    delta: Tensor
    loss: Tensor
    step: Tensor
    latest: Tensor


def solve(images: Tensor, anchor: Tree, *, stop: float | None = None, **setup: Unpack[Setup]) -> Best:
    """Run `attack` to its end; arguments and errors as there, and `stop` as in `watch`."""
    best = None
    for _, found in watch(images, anchor, stop=stop, **setup):
        best = found
    assert best is not None  # the last step is always compared
    return best


def watch(
    images: Tensor, anchor: Tree, *, stop: float | None = None, **setup: Unpack[Setup]
) -> Iterator[tuple[Step, Best | None]]:
    """The steps of `attack`, each with the best iterate so far (None until the first comparison).

    A picture whose loss on the bank is `stop` or less is solved and leaves the batch; where all share one delta, they
    leave together, when one delta solves all.
    """
    eot, steps = setup["eot"], setup.setdefault("steps", STEPS)
    views = bank(eot.transforms, _size(setup), seed=setup.get("seed", 0), purpose="select")
    views = views._replace(u=views.u.to(images))
    every, best, shared = max(1, steps // LOOKS), None, setup["perturbation"].shared
    running, solved = attack(images, anchor, **setup), None
    moved = torch.zeros(len(images), dtype=torch.bool)
    while True:
        try:
            step = running.send(solved)
        except StopIteration:
            return
        solved, moved = None, moved | step.active
        if (step.index + 1) % every == 0 or step.last:
            best = _better(best, _look(step, best, moved, views, images, anchor, setup), shared)
            if stop is not None:
                solved = best.loss <= stop
                solved = solved.all().expand_as(solved) if shared else solved
            moved = torch.zeros_like(moved)
        yield step, best


def pictures(perturbation: Perturbation, images: Tensor, delta: Tensor) -> Tensor:
    """The attacked pictures themselves, seen directly: (N,C,H,W)."""
    return seen(perturbation.scene(images, delta))


def _size(setup: Setup) -> int:
    """Views of the bank: as many as the risk can be taken of."""
    eot = setup["eot"]
    multiple = eot.risk.multiple
    return max(multiple, VIEWS // multiple * multiple) if eot.transforms.dims else multiple


def _look(
    step: Step, best: Best | None, moved: Tensor, views: Bank, images: Tensor, anchor: Tree, setup: Setup
) -> Best:
    """The current iterate on the bank; a picture that has not `moved` since the last look is as it was."""
    shared = setup["perturbation"].shared
    rows = torch.arange(len(images)) if best is None or shared else moved.nonzero()[:, 0]
    rows = rows.to(images.device)
    delta = step.delta if shared else step.delta[rows]
    attacked = pictures(setup["perturbation"], images[rows], delta)
    losses = views.losses(
        attacked,
        take(anchor, rows),
        setup["encoder"],
        setup["objective"],
        step.estimate.chunk,
        setup.get("world", ALONE),
        untouched=images[rows],
    )
    loss, penalty = setup["eot"].risk.value(losses).to(losses), setup.get("penalty")
    if penalty is not None:
        loss = loss + penalty(delta, attacked, images[rows])
    if best is not None:
        latest = best.latest.clone()
        latest[rows] = loss
        loss = latest
    return Best(step.delta, loss, torch.full_like(loss, step.index, dtype=torch.long), loss)


def _better(best: Best | None, now: Best, shared: bool) -> Best:
    """Picture by picture, the one with the lower loss; of a shared perturbation, the one with the lower mean."""
    if best is None:
        return now
    better = (now.loss.mean() < best.loss.mean()).expand_as(now.loss) if shared else now.loss < best.loss
    delta = torch.where(better[: len(now.delta), None, None, None], now.delta, best.delta)
    return Best(delta, torch.where(better, now.loss, best.loss), torch.where(better, now.step, best.step), now.loss)

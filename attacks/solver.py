"""The loop run to its end, keeping for each picture the iterate that is best on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Candidates are therefore compared on common views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attacks.evaluation import bank
from attacks.loop import STEPS, Setup, Step, attack

#: Views of the bank that chooses the best iterate.
VIEWS = 64
#: How many times during a run the current iterate is compared.
LOOKS = 10


class Best(NamedTuple):
    """The best perturbation so far of each picture, its mean loss on the bank (N,), the step that it comes from
    (N,), and the last comparison's loss (N,)."""

    delta: Tensor
    loss: Tensor
    step: Tensor
    latest: Tensor


def solve(images: Tensor, anchor: Tensor, **setup: Unpack[Setup]) -> Best:
    """Run `attack` to its end; arguments and errors as there."""
    best = None
    for _, found in watch(images, anchor, **setup):
        best = found
    assert best is not None  # the last step is always compared
    return best


def watch(images: Tensor, anchor: Tensor, **setup: Unpack[Setup]) -> Iterator[tuple[Step, Best | None]]:
    """The steps of `attack`, each with the best iterate so far (None until the first comparison)."""
    eot, steps = setup["eot"], setup.setdefault("steps", STEPS)
    views = bank(eot.transforms, VIEWS if eot.transforms.dims else 1, seed=setup.get("seed", 0), purpose="select")
    views = views._replace(u=views.u.to(images))
    every, best = max(1, steps // LOOKS), None
    for step in attack(images, anchor, **setup):
        if (step.index + 1) % every == 0 or step.index + 1 == steps:
            loss = views.losses(images + step.delta, anchor, setup["encoder"], setup["objective"], eot.chunk)
            best = _better(best, Best(step.delta, loss, torch.full_like(loss, step.index, dtype=torch.long), loss))
        yield step, best


def _better(best: Best | None, now: Best) -> Best:
    """Picture by picture, the one with the lower loss."""
    if best is None:
        return now
    better = now.loss < best.loss
    delta = torch.where(better[:, None, None, None], now.delta, best.delta)
    return Best(delta, torch.where(better, now.loss, best.loss), torch.where(better, now.step, best.step), now.loss)

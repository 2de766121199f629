"""Short runs of one attack, and the views on which all of them are judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.bank import Bank, bank
from attacks.eot.protocols import Setup
from attacks.runtime.distributed import ALONE
from attacks.solvers.search import loop_of
from transforms import stream
from transforms.compose import seen

#: Views on which a run is judged, and those that choose among its iterates.
JUDGES, CHOOSERS = 32, 16
#: The iterates to choose among, as shares of a run: not every optimiser ends at its best one.
CANDIDATES = (0.5, 0.75, 1.0)


class Run(NamedTuple):
    """What a run has found: the `delta`, its `losses` on the judging views (N,V), the (delta, gradient) that its
    first and its last step left from, and the noise `c` of one view's gradient in every step (steps,deltas)."""

    delta: Tensor
    losses: Tensor
    start: tuple[Tensor, Tensor]
    end: tuple[Tensor, Tensor]
    c: Tensor


class Tally:
    """How many views encoders have seen, and how many of them a gradient was asked of."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

    def of(self, encoder: Encoder) -> Encoder:
        """The encoder, counted."""

        @wraps(encoder, assigned=(), updated=())  # so that the engine finds its own behind it
        def counted(images: Tensor, **which: Any) -> Tree:
            self.forward += len(images)
            self.backward += len(images) * images.requires_grad
            return encoder(images, **which)

        return counted


@dataclass(frozen=True)
class Trial:
    """An attack in small: pictures (N,3,H,W), what they are compared with, the parts, banks of views, a count."""

    images: Tensor
    anchor: Tree
    setup: Setup
    judges: Bank
    choosers: Bank
    tally: Tally

    def run(self, **changes: Any) -> Run:
        """The attack with some of its parts, or its `anchor`, changed. Errors as `attack`."""
        anchor, setup = self._changed(changes)
        last = setup["steps"] - 1
        wanted = [round(share * last) for share in CANDIDATES]
        start = setup["perturbation"].start(self.images, _generator(setup))
        at, kept, ends, noise = start, [], [], []
        for step in loop_of(setup["optimiser"])(self.images, anchor, **setup):
            if step.index in (0, last):
                ends.append((at, step.estimate.grad))
            kept += [step.delta] * wanted.count(step.index)
            noise.append(step.estimate.c)
            at = step.delta
        delta = self._best(kept, anchor, setup)
        return Run(
            delta, self._losses(self.judges, delta, anchor, setup), ends[0], ends[-1], torch.stack(noise).cpu()
        )

    def start(self) -> Tensor:
        """The delta that every run begins with."""
        return self.setup["perturbation"].start(self.images, _generator(self.setup))

    def untouched(self) -> Tensor:
        """The losses (N,V) of the pictures without a perturbation."""
        setup, world = self.setup, self.setup.get("world", ALONE)
        encoder, objective, chunk = setup["encoder"], setup["objective"], setup["eot"].chunk
        return self.judges.losses(self.images, self.anchor, encoder, objective, chunk, world, untouched=self.images)

    def judge(self, delta: Tensor, **changes: Any) -> Tensor:
        """The losses (N,V) of a perturbation on the judging views."""
        return self._losses(self.judges, delta, *self._changed(changes))

    def _changed(self, changes: dict[str, Any]) -> tuple[Tree, Setup]:
        anchor = changes.pop("anchor", self.anchor)
        return anchor, cast(Setup, {**self.setup, **changes})

    def _best(self, deltas: list[Tensor], anchor: Tree, setup: Setup) -> Tensor:
        """Of each picture, or of all that share one, the delta with the lowest loss on the choosing views."""
        score = torch.stack([self._losses(self.choosers, delta, anchor, setup).mean(1) for delta in deltas])
        score = score.mean(1, keepdim=True) if setup["perturbation"].shared else score
        first, every = score.argmin(0), torch.stack(deltas)
        return every[first, torch.arange(every.shape[1], device=every.device)]

    def _losses(self, views: Bank, delta: Tensor, anchor: Tree, setup: Setup) -> Tensor:
        with torch.no_grad():
            attacked = setup["perturbation"].scene(self.images, delta)
        chunk, world, price = setup["eot"].chunk, setup.get("world", ALONE), setup.get("penalty")
        losses = views.losses(
            attacked, anchor, setup["encoder"], setup["objective"], chunk, world, untouched=self.images
        )
        return losses if price is None else losses + price(delta, seen(attacked), self.images)[:, None]


def trial(images: Tensor, anchor: Tree, setup: Setup, tally: Tally) -> Trial:
    """A trial with banks of its own: views that neither the attack nor its judges see."""
    transforms, seed = setup["eot"].transforms, setup.get("seed", 0)
    sizes = (JUDGES, CHOOSERS) if transforms.dims else (1, 1)
    judges, choosers = (
        bank(transforms, size, seed=seed, purpose=purpose)
        for size, purpose in zip(sizes, ("sanity", "sanity-select"), strict=True)
    )
    return Trial(
        images,
        anchor,
        setup,
        judges._replace(u=judges.u.to(images)),
        choosers._replace(u=choosers.u.to(images)),
        tally,
    )


def pictures_of(trial: Trial, delta: Tensor) -> Tensor:
    """The attacked pictures, seen directly (N,3,H,W)."""
    with torch.no_grad():
        return seen(trial.setup["perturbation"].scene(trial.images, delta))


def _generator(setup: Setup) -> torch.Generator:
    """The one that `attack` starts with."""
    return torch.Generator().manual_seed(stream(setup.get("seed", 0), "start"))

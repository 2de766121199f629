"""The cost of a run: encoder passes, counted in views, and seconds."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.runtime.distributed import World
from attacks.runtime.stored import stored
from transforms.doors import unchecked


class Counted:
    """An encoder that counts the views it encodes, and those that require a gradient."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.forward, self.backward = encoder, 0, 0

    def __call__(self, images: Tensor, **which: Any) -> Tree:
        self.forward += len(images)
        self.backward += len(images) * images.requires_grad
        return unchecked(self.encoder)(images, **which)


@stored("cost")
@dataclass(frozen=True)
class Spent:
    """Encoder passes, counted in views, and seconds. Of these, `selection` forward passes and `selection_seconds`
    chose among iterates."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    selection: int = 0
    selection_seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Counts the passes of some encoders on all processes, and the seconds, between readings."""

    def __init__(self, encoders: Iterable[Counted], world: World) -> None:
        self.encoders = list({id(each): each for each in encoders}.values())
        self.world = world
        self.chosen = 0, 0.0  # passes and seconds of choosing, so far
        self.last, self.earlier = self._now(), Spent()

    def read(self) -> Spent:
        """The cost since the last reading. Every process must call this."""
        cost = self.peek()
        self.last, self.earlier = self._now(), Spent()
        return cost

    def peek(self) -> Spent:
        """The same without resetting the meter. Every process must call this."""
        now = self._now()
        counts = torch.tensor([b - a for a, b in zip(self.last[0], now[0], strict=True)], dtype=torch.long)
        self.world.sum(counts)
        forward, backward, selection = counts.tolist()
        seconds, choosing = (b - a for a, b in zip(self.last[1], now[1], strict=True))
        return self.earlier + Spent(forward, backward, seconds, selection, choosing)

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """What is counted within is counted as spent on choosing among iterates too."""
        (forward, *_), (began, _) = self._now()
        yield
        (after, *_), (ended, _) = self._now()
        self.chosen = self.chosen[0] + after - forward, self.chosen[1] + ended - began

    def begin(self, earlier: Spent) -> None:
        """Start from now, with the cost `earlier` of the run before it was interrupted."""
        self.last, self.earlier = self._now(), earlier

    def _now(self) -> tuple[tuple[int, int, int], tuple[float, float]]:
        forward, backward = (sum(getattr(each, key) for each in self.encoders) for key in ("forward", "backward"))
        return (forward, backward, self.chosen[0]), (time.perf_counter(), self.chosen[1])

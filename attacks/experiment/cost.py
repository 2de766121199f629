"""The cost of a run: encoder passes, counted in views, and seconds."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.runtime.distributed import World
from attacks.runtime.stored import stored


class Counted:
    """An encoder that counts the views it encodes, and those that require a gradient."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.forward, self.backward = encoder, 0, 0

    def __call__(self, images: Tensor, **which: Any) -> Tree:
        self.forward += len(images)
        self.backward += len(images) * images.requires_grad
        return self.encoder(images, **which)


@stored("cost")
@dataclass(frozen=True)
class Spent:
    """Encoder passes, counted in views, and seconds."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.forward + other.forward, self.backward + other.backward, self.seconds + other.seconds)


class Meter:
    """Counts the passes of some encoders on all processes, and the seconds, between readings."""

    def __init__(self, encoders: Iterable[Counted], world: World) -> None:
        self.encoders = list({id(each): each for each in encoders}.values())
        self.world = world
        self.last, self.earlier = self._now(), Spent()

    def read(self) -> Spent:
        """The cost since the last reading. Every process must call this."""
        cost = self.peek()
        self.last, self.earlier = self._now(), Spent()
        return cost

    def peek(self) -> Spent:
        """The same without resetting the meter. Every process must call this."""
        forward, backward, seconds = (b - a for a, b in zip(self.last, self._now(), strict=True))
        passes = torch.tensor([forward, backward], dtype=torch.long)
        self.world.sum(passes)
        return self.earlier + Spent(int(passes[0]), int(passes[1]), seconds)

    def begin(self, earlier: Spent) -> None:
        """Start from now, with the cost `earlier` of the run before it was interrupted."""
        self.last, self.earlier = self._now(), earlier

    def _now(self) -> tuple[int, int, float]:
        forward = sum(each.forward for each in self.encoders)
        return forward, sum(each.backward for each in self.encoders), time.perf_counter()

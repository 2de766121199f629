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
from attacks.runtime.values import stored
from transforms.doors import unchecked


class CountedCalls:
    """An encoder that counts the views it encodes, and those that require a gradient."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.forward, self.backward = encoder, 0, 0

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        self.forward += len(images)
        self.backward += len(images) * images.requires_grad
        return unchecked(self.encoder)(images, **draws)


@stored("cost")
@dataclass(frozen=True)
class Cost:
    """Encoder passes, counted in views, and seconds. Of these, `selection` forward passes and `selection_seconds`
    chose among iterates."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    selection: int = 0
    selection_seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Counts the passes of some encoders on all processes, and the seconds, between readings."""

    def __init__(self, encoders: Iterable[CountedCalls], world: World) -> None:
        self.encoders = list({id(encoder): encoder for encoder in encoders}.values())
        self.world = world
        self.choices = 0, 0.0  # passes and seconds of choosing, so far
        self.reading, self.offset = self._read_counters(), Cost()

    def read(self) -> Cost:
        """The cost since the last reading. Every process must call this."""
        cost = self.peek()
        self.reading, self.offset = self._read_counters(), Cost()
        return cost

    def peek(self) -> Cost:
        """The same without resetting the meter. Every process must call this."""
        reading = self._read_counters()
        counts = torch.tensor([b - a for a, b in zip(self.reading[0], reading[0], strict=True)], dtype=torch.long)
        self.world.sum(counts)
        forward, backward, selection = counts.tolist()
        seconds, choosing = (b - a for a, b in zip(self.reading[1], reading[1], strict=True))
        return self.offset + Cost(forward, backward, seconds, selection, choosing)

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """What is counted within is counted as spent on choosing among iterates too."""
        (forward, *_), (began, _) = self._read_counters()
        yield
        (after, *_), (ended, _) = self._read_counters()
        self.choices = self.choices[0] + after - forward, self.choices[1] + ended - began

    def begin(self, offset: Cost) -> None:
        """Start from now, with the cost `offset` of the run before it was interrupted."""
        self.reading, self.offset = self._read_counters(), offset

    def _read_counters(self) -> tuple[tuple[int, int, int], tuple[float, float]]:
        forward, backward = (
            sum(getattr(encoder, key) for encoder in self.encoders) for key in ("forward", "backward")
        )
        return (forward, backward, self.choices[0]), (time.perf_counter(), self.choices[1])

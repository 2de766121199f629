"""What a run has so far, in files of its directory, so that a run that was stopped goes on and ends the same.

A run is made of tasks. What a task has found is kept in a file; the task in hand keeps the place where it stands, now
and then and when it is stopped. Every file is written whole or not at all, so a run may die at any moment, in the
middle of a write too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import CPU, read, write

Found = TypeVar("Found")


@dataclass(frozen=True)
class Checkpoint:
    """A folder of what is done. Of several processes of a `world` the first writes, and all read.

    Args:
        folder: None keeps nothing.
        key: of the run; files of another are refused.
        seconds: a task in hand writes down where it stands when so many have passed since it last did.
        steps: and after so many steps.
        device: where tensors go that were not on the CPU.
        prefix: of the names of tasks.
    """

    folder: Path | None = None
    key: str = ""
    seconds: float | None = None
    steps: int | None = None
    world: World = ALONE
    device: torch.device = CPU
    prefix: str = ""

    def under(self, name: str) -> Checkpoint:
        """The same for tasks within one called `name`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    @property
    def alone(self) -> Checkpoint:
        """The same for the first process by itself, while the others wait for what it says."""
        return replace(self, world=ALONE)

    def once(self, name: str, make: Callable[[], Found]) -> Found:
        """What the task `name` finds: what was kept of it, or else what `make` finds, which is then kept."""
        path = self._path(name)
        if self.has(name):
            assert path is not None
            found: Found = read(path, self.key, self.device)
            return found
        found = make()
        if path is not None and self.world.first:
            write(path, found, self.key)
        self.drop(f"{name}.")
        return found

    def has(self, name: str) -> bool:
        """Whether the task is done."""
        path = self._path(name)
        return path is not None and bool(self.world.agree(path.exists()))

    def going(self, name: str) -> Going:
        """The place where the task `name` stands, which a later run takes up; see `Going`."""
        path = self._path(f"{name}.now")
        start = None
        if path is not None and self.world.agree(path.exists()):
            start = read(path, self.key, self.device)
        return Going(self, path, start)

    def drop(self, name: str) -> None:
        """Forget all tasks whose names begin so: another, which is kept, holds what they have found."""
        if self.folder is not None and self.world.first:
            for path in self.folder.glob(f"{self.prefix}{name}*.safetensors"):
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.prefix}{name}.safetensors"


class Going:
    """A context manager for a task in hand: `start` is where it stood when the run was stopped (None: at its
    beginning), and `at` is told how to say where it stands now. When it is left by an exception, whatever that is,
    the place is written down first."""

    def __init__(self, checkpoint: Checkpoint, path: Path | None, start: Any) -> None:
        self.start = start
        self._checkpoint, self._path = checkpoint, path if checkpoint.world.first else None
        self._place: Callable[[], Any] | None = None
        self._since, self._written = 0, time.monotonic()

    def __enter__(self) -> Going:
        return self

    def at(self, place: Callable[[], Any]) -> None:
        """The task stands at `place()`: a value (see `kept.py`) that is the same whenever it is asked for."""
        if self._path is None:
            return
        self._place, self._since = place, self._since + 1
        pace = self._checkpoint
        late = pace.seconds is not None and time.monotonic() - self._written >= pace.seconds
        if late or (pace.steps is not None and self._since >= pace.steps):
            self._write()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._write()

    def _write(self) -> None:
        if self._path is not None and self._place is not None:
            write(self._path, self._place(), self._checkpoint.key)
            self._place = None
        self._since, self._written = 0, time.monotonic()


#: Keeps nothing.
NOWHERE = Checkpoint()

"""Checkpoints of a run, which can be killed at any moment and resumed with the same result.

The result of a finished task is stored in a file; a running task stores its state now and then, and when it is
stopped. A file that is damaged, or a copy of another task's, is noticed, and its task done again.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from attacks.runtime.command_line import print_notes
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import CPU, Damaged, check_value, load_values, write_values

Result = TypeVar("Result")


@dataclass(frozen=True)
class Checkpoint:
    """A `folder` of stored tasks (None stores nothing), whose names begin with `prefix`. Of several processes of a
    `world` the first writes, and all read. `key` is the fingerprint of the run: files of another are refused. A task
    stores its state after so many `seconds`, and `steps`; what was not on the CPU is read back to `device`."""

    folder: Path | None = None
    key: str = ""
    seconds: float | None = None
    steps: int | None = None
    world: World = ALONE
    device: torch.device = CPU
    prefix: str = ""

    def under(self, name: str) -> "Checkpoint":
        """The same for the tasks within the task `name`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def once(self, name: str, make: Callable[[], Result]) -> Result:
        """The result of the task `name`: read if it is stored, else computed by `make` and stored."""
        path = self._path(name)
        if path is not None and self.has(name):
            result: Result = load_values(path, self.key, self.device)
            return result
        result = make()
        if path is not None and self.world.first:
            write_values(path, result, self.key)
        self.drop(f"{name}.")
        return result

    def has(self, name: str) -> bool:
        """Whether the task is done. A damaged result is removed with a note, so that the task is done again."""
        path = self._path(name)
        return path is not None and bool(self.world.agree(self.world.first and _is_whole(path)))

    def task(self, name: str) -> "Task":
        """The task `name`, with the state that an earlier process stored; see `Task`."""
        path = self._path(f"{name}.now")
        state = load_values(path, self.key, self.device) if path is not None and self.has(f"{name}.now") else None
        return Task(self, path, state)

    def drop(self, name: str) -> None:
        """Remove all tasks whose names begin with `name`: the result of another task contains theirs."""
        if self.folder is not None and self.world.first:
            for path in self.folder.glob(f"{self.prefix}{name}*.safetensors"):
                path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.prefix}{name}.safetensors"


class Task(AbstractContextManager["Task"]):
    """A running task and its stored `state`, None at first; an exception in its block stores the latest one first."""

    def __init__(self, checkpoint: Checkpoint, path: Path | None, state: Any) -> None:
        self.state = state
        self._checkpoint, self._path = checkpoint, path if checkpoint.world.first else None
        self._make: Callable[[], Any] | None = None
        self._steps, self._last_time = 0, time.monotonic()

    def update(self, make: Callable[[], Any]) -> None:
        """One step is done; `make()` is the state after it (see `attacks.runtime.values`), the same at any time."""
        if self._path is None:
            return
        self._make, self._steps = make, self._steps + 1
        options = self._checkpoint
        late = options.seconds is not None and time.monotonic() - self._last_time >= options.seconds
        if late or (options.steps is not None and self._steps >= options.steps):
            self._write()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._write()

    def _write(self) -> None:
        if self._path is not None and self._make is not None:
            write_values(self._path, self._make(), self._checkpoint.key)
            self._make = None
        self._steps, self._last_time = 0, time.monotonic()


def _is_whole(path: Path) -> bool:
    """Whether there is a file that holds what was written; one that does not is removed."""
    try:
        check_value(path)
    except FileNotFoundError:
        return False
    except Damaged as error:
        print_notes([f"{error}; this part of the run is done again"])
        path.unlink(missing_ok=True)
        return False
    return True


#: Stores nothing.
NOWHERE = Checkpoint()

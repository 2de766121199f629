"""The interface of a tracker, and the one of every run: events.jsonl, one JSON object per line."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from attacks.runtime.files import named_where_unwritten

SCHEMA = 1
#: Scalars by name; None where a value is unknown.
Values = Mapping[str, float | None]


class Tracker(Protocol):
    """Receives the course of a run. It returns nothing, so it cannot change the run."""

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Scalars of one step of an arm."""

    def log_artifact(self, path: Path) -> None:
        """A file of the run directory."""

    def close(self, failed: bool = False) -> None:
        """The end of the run. `failed`: it ended with an exception."""


def finite(values: Values, arm: str = "") -> dict[str, float]:
    """The finite values, by `arm/name`."""
    known = {name: float(value) for name, value in values.items() if value is not None}
    return {f"{arm}/{name}" if arm else name: value for name, value in known.items() if math.isfinite(value)}


def leaves(content: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, by the names on the way."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


class JsonLines:
    """Appends to a file. Equal runs write equal lines except for `seconds`, counted from the start of this object.

    A resumed run appends another `start` line; a last line that was cut short is removed first.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            with path.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        self.file = path.open("a", encoding="utf-8", newline="\n")
        self.folder, self.began = path.parent, time.perf_counter()
        self._write(event="start", schema=SCHEMA)

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Every name is written; a value that is unknown or not finite is null."""
        known = finite(values)
        self._write(event="scalars", arm=arm, step=step, values={name: known.get(name) for name in values})

    def log_artifact(self, path: Path) -> None:
        """Its path, relative to the run directory."""
        file, folder = path.resolve(), self.folder.resolve()
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else path.name
        self._write(event="artifact", path=name)

    def close(self, failed: bool = False) -> None:
        try:
            self._write(event="end", failed=failed)
        finally:
            self.file.close()

    def _write(self, **event: Any) -> None:
        line = json.dumps(event | {"seconds": round(time.perf_counter() - self.began, 3)}, allow_nan=False)
        with named_where_unwritten(Path(self.file.name)):
            self.file.write(line + "\n")
            self.file.flush()

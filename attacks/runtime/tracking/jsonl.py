"""events.jsonl: the course of every run, one JSON object a line, for scripts and for whoever has no tracker."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.runtime.files import named_where_unwritten
from attacks.runtime.tracking.protocol import Values, named, picture

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 1


class JsonLines:
    """Appends to a file. Equal runs write equal lines but for `seconds`, those since this object was made.

    A run that goes on after a break adds a `start` line and goes on; a line that the break cut short is dropped.
    """

    def __init__(self, path: Path) -> None:
        _drop_torn_line(path)
        self.file = path.open("a", encoding="utf-8", newline="\n")
        self.folder, self.began = path.parent, time.perf_counter()
        self._write(event="start", schema=SCHEMA)

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Every name is kept; a figure that is no number is null."""
        finite = named(values, "")
        self._write(event="scalars", arm=arm, step=step, values={name: finite.get(name) for name in values})

    def log_image(self, name: str, image: Tensor) -> None:
        """Its size and the sha256 of its 8-bit values; the picture itself has no place in a line."""
        shown = picture(image)
        digest = hashlib.sha256(shown.tobytes()).hexdigest()
        self._write(event="image", name=name, width=shown.width, height=shown.height, sha256=digest)

    def log_artifact(self, path: Path) -> None:
        """Its path, seen from the run directory."""
        inside = path.resolve().is_relative_to(self.folder.resolve())
        said = path.resolve().relative_to(self.folder.resolve()).as_posix() if inside else path.name
        self._write(event="artifact", path=said)

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


def _drop_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)

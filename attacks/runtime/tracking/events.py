"""The interface of a tracker, and the tracker of every run: events.jsonl, one JSON object per line.

Each process of a run writes a journal. The process that makes the tables composes events.jsonl from all journals.
"""

import json
import math
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attacks.runtime.files import atomic, named_where_unwritten
from attacks.runtime.locks import Lock

SCHEMA = 1
JOURNALS = "journal.*.jsonl"
#: Scalars by name; None where a value is unknown.
Values = Mapping[str, float | None]


class Tracker:
    """Receives the course of a run. It returns nothing, so it cannot change the run. With `run_id` another process
    continues the same run of the library; empty where the library needs none."""

    run_id: str = ""

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Scalars of one step of an arm."""
        raise NotImplementedError

    def log_artifact(self, path: Path) -> None:
        """A file of the run directory."""
        raise NotImplementedError

    def close(self, failed: bool = False) -> None:
        """The end of the run. `failed`: it ended with an exception."""
        raise NotImplementedError


def finite(values: Values, arm: str = "") -> dict[str, float]:
    """The finite values, by `arm/name`."""
    prefix = f"{arm}/" if arm else ""
    return {f"{prefix}{name}": float(x) for name, x in values.items() if x is not None and math.isfinite(x)}


def metric_leaves(content: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, by the names on the way."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from metric_leaves(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


class JsonLines(Tracker):
    """Appends to an open file. Equal runs write equal lines except for `seconds`, counted from the start of this
    object. Paths of artifacts are relative to `folder`, the run directory. `lock` is held until the file is closed.
    """

    def __init__(self, file: TextIO, folder: Path, lock: Lock | None = None) -> None:
        self.file, self.folder, self.lock, self.start = file, folder, lock, time.perf_counter()
        if lock is not None:
            lock.exclusive()

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Every name is written; a value that is unknown or not finite is null."""
        self.write(event="scalars", arm=arm, step=step, values=dict.fromkeys(values) | finite(values))

    def log_artifact(self, path: Path) -> None:
        file, folder = path.resolve(), self.folder.resolve()
        name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else path.name
        self.write(event="artifact", path=name)

    def close(self, failed: bool = False) -> None:
        """A journal has an end where its process failed; events.jsonl always has one."""
        try:
            if failed or self.lock is None:
                self.write(event="end", failed=failed)
        finally:
            self.file.close()
            if self.lock is not None:
                self.lock.close()

    def write(self, **event: Any) -> None:
        line = json.dumps(event | {"seconds": round(time.perf_counter() - self.start, 3)}, allow_nan=False)
        with named_where_unwritten(Path(self.file.name)):
            self.file.write(line + "\n")
            self.file.flush()


def journal(folder: Path, out: Path) -> JsonLines:
    """A new journal in `folder`, in the order in which processes begin, of the run in `out`. Its lock is held until
    it is closed, or its process ends. For a process that holds the lock of the tables."""
    path = folder / f"journal.{len(list(folder.glob(JOURNALS))):04d}.{secrets.token_hex(4)}.jsonl"
    lines = JsonLines(path.open("x", encoding="utf-8", newline="\n"), out, Lock(path))
    lines.write(event="start", schema=SCHEMA)
    return lines


@contextmanager
def event_file(folder: Path, out: Path) -> Iterator[JsonLines]:
    """Within the block events.jsonl in `out`, which appears at its end: the lines of all journals in `folder`, but
    none that is cut because its process was killed. Waits until other processes have closed theirs."""
    with atomic(out / "events.jsonl") as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for path in sorted(folder.glob(JOURNALS)):
            with Lock(path) as lock:
                if not lock.exclusive():
                    print(f"note: another process of the run in {out} has not ended; waiting", file=sys.stderr)
                    lock.exclusive(wait=True)
                lines = path.read_bytes()
            file.write(lines[: lines.rfind(b"\n") + 1].decode(errors="replace"))
        yield JsonLines(file, out)

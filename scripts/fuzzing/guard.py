"""Watches what Python does while a case runs: nothing may be written, started, imported or asked of a network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzzing.target import Broken

#: Packages that may load more of themselves.
OURS = ("attacks", "transforms", "configs", "fuzzing")
#: Beginnings of the events by which something gets out, or a file changes.
_OUT = """
subprocess. os.system os.exec os.posix_spawn os.fork os.spawn os.startfile socket. ctypes. pty. shutil. os.remove
os.rename os.mkdir os.rmdir os.link os.symlink os.truncate os.chmod
"""
OUT = tuple(_OUT.split())
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_seen: list[str] | None = None
_armed = False


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event == "open":
        path, mode, flags = given
        if isinstance(flags, int) and flags & WRITES and str(path) != os.devnull:
            _seen.append(f"opens {path!r} to write (mode {mode!r})")
    elif event == "import":
        name = str(given[0])
        if name.partition(".")[0] not in OURS:
            _seen.append(f"imports {name}")
    elif event.startswith(OUT):
        _seen.append(f"{event}{given!r}"[:200])


@contextmanager
def watched() -> Iterator[None]:
    """Raises `Broken` at its end where something got out. The hook stays for good, for none can be removed."""
    global _seen, _armed
    if not _armed:
        sys.addaudithook(_hook)
        _armed = True
    _seen, before = [], set(Path.cwd().iterdir())
    try:
        yield
    finally:
        seen, _seen = _seen, None
    if seen:
        raise Broken(f"a configuration {'; '.join(seen[:3])}")
    if set(Path.cwd().iterdir()) != before:
        raise Broken("a configuration makes files in the working directory")

"""Writing files whole or not at all, and saying in one line why one could not be written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attacks.runtime.processes import lives, machine

#: Why a file cannot be written, by the system's number.
REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota of the disk is used up",
    errno.EACCES: "there is no permission",
    errno.EPERM: "there is no permission",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.EFBIG: "the file is larger than the file system or a limit (ulimit -f) allows",
    errno.EIO: "the disk reports an error",
    errno.ENOENT: "its folder does not exist",
    errno.ENOTDIR: "its folder is a file",
    errno.EISDIR: "it is a folder",
}
#: File systems that cannot say that a folder is safe say so in these words.
UNSAFE = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)
#: Characters of a file's own name in that of its temporary file, which could be too long with all of them.
SHOWN = 40
#: Seconds after which what a process of another machine was writing is taken for left over.
DAY = 86400.0
#: How safetensors says the system's number, since 0.6 and before.
FOREIGN = re.compile(r"(?:\(os error |\bOs \{ code: )([0-9]+)")
LEFT_OVER = re.compile(r"\..*\.([0-9a-f]{8})-([0-9]{1,10})\.tmp", re.DOTALL)


class Unwritten(OSError):
    """A file could not be written; `errno` says why, as the system does."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.errno = number


@contextmanager
def atomic(path: str | Path, size: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends well, remove it otherwise.

    Args:
        size: bytes that are going to be written, if that is known: it is said where they do not fit.

    Raises:
        Unwritten: the disk is full, there is no permission, ...
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:SHOWN]}.{_here()}-{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except Exception as error:
        _remove(temporary)  # first, so that what is free is told without it
        number = _number(error, temporary, path)
        if number is None:
            raise
        raise Unwritten(_words(path, number, size), number) from None
    finally:
        _remove(temporary)


@contextmanager
def named_where_unwritten(path: Path) -> Iterator[None]:
    """Of a file that is written bit by bit: the system's error tells neither its name nor what is safe."""
    try:
        yield
    except OSError as error:
        if error.errno not in REASONS:
            raise
        said = f"{path} cannot be written: {REASONS[error.errno]}; what was complete before is untouched"
        raise Unwritten(said, error.errno) from None


def clean(folder: Path) -> None:
    """Remove what processes that were killed have left of files half written in this folder: those of this machine
    whose process is gone, and those of another when they are a day old."""
    for file in folder.iterdir():
        found = LEFT_OVER.fullmatch(file.name)
        with suppress(OSError):
            if found is None or file.is_symlink() or not file.is_file():
                continue
            here, pid = found[1] == _here(), int(found[2])
            if (here and not lives(pid)) or (not here and time.time() - file.stat().st_mtime > DAY):
                file.unlink()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write bytes, whole or not at all."""
    with atomic(path, len(data)) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON with sorted layout kept as given; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def sha256(path: str | Path) -> str:
    """The hex digest of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _here() -> str:
    """This machine in eight letters: the number of a process means nothing on another."""
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


def _sync(folder: Path) -> None:
    """Make the folder's own list of files safe: a file that was renamed is else lost with the power."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in UNSAFE:
            raise


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)


def _number(error: Exception, temporary: Path, path: Path) -> int | None:
    """Why a write has failed, as the system's number; None for what is no failure to write."""
    if isinstance(error, OSError):
        if error.filename is not None and Path(os.fsdecode(error.filename)) not in (temporary, path, path.parent):
            return None  # of another file, which the block reads
        number = error.errno
        if number is None and _free(path) == 0:
            number = errno.ENOSPC  # an image's encoder says only that it failed
    else:  # a library in another language: safetensors
        said = FOREIGN.search(str(error))
        number = int(said[1]) if said else None
    return number if number in REASONS else None


def _words(path: Path, number: int, size: int | None) -> str:
    free, why = _free(path), REASONS[number]
    if number == errno.ENOENT and path.parent.is_dir():
        why = "its temporary file has gone"
    if number == errno.ENOSPC and free is not None:
        why += f" ({free / 1e6:.1f} MB are free" + (")" if size is None else f", {size / 1e6:.1f} MB are needed)")
    try:
        there = path.is_file()
    except OSError:  # a name too long
        there = False
    kept = "the file of this name is as it was" if there else "no half of it is left"
    return f"{path} cannot be written: {why}; what was complete before is untouched: {kept}"


def _free(path: Path) -> int | None:
    """Bytes that we may still write beside this path."""
    try:
        room = os.statvfs(path.parent)
    except (OSError, AttributeError):
        return None
    return room.f_bavail * room.f_frsize

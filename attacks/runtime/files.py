"""Atomic writes of files, with the cause of a failed write in one line; locks on files."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

if sys.platform != "win32":
    import fcntl

#: Why a file cannot be written, by errno.
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
#: errno of file systems that cannot sync a folder.
UNSAFE = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM)
#: Characters of a file's name in that of its temporary file, whose name must not be too long.
NAME_LENGTH = 40
#: errno in the messages of safetensors, since 0.6 and before.
FOREIGN = re.compile(r"(?:\(os error |\bOs \{ code: )([0-9]+)")
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp", re.DOTALL)


class Unwritten(OSError):
    """A file could not be written; `errno` is the system's."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.errno = number


@contextmanager
def atomic(path: str | Path, size: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends well, remove it otherwise.

    `size` is the number of bytes to write, if known; the error shows it where they do not fit. Raises Unwritten: the
    disk is full, there is no permission, ...
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:NAME_LENGTH]}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except Exception as error:
        _remove(temporary)  # first, so that the free space in the message excludes it
        number = _number(error, temporary, path)
        if number is None:
            raise
        raise Unwritten(_message(path, number, size), number) from None
    finally:
        _remove(temporary)


@contextmanager
def named_where_unwritten(path: Path) -> Iterator[None]:
    """For a file written in parts: name it in a system error, which does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in REASONS:
            raise
        message = f"{path} cannot be written: {REASONS[error.errno]}; what was complete before is untouched"
        raise Unwritten(message, error.errno) from None


def clean(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder and those below it, on which no process works."""
    for file in folder.rglob(".*.tmp"):
        if is_left_over(file):
            _remove(file)


def is_left_over(file: Path) -> bool:
    """Whether this is a temporary file of a process that was killed while it wrote, or that is writing now."""
    return TEMPORARY.fullmatch(file.name) is not None and not file.is_symlink() and file.is_file()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write bytes atomically."""
    with atomic(path, len(data)) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON atomically, keys in their order. Raises ValueError for NaN, which JSON does not have."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none. Without a sync of the folder that each lies in, a power
    cut may lose it with all synced files in it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)


def sha256(path: str | Path) -> str:
    """The hex digest of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    """Sync the folder's entries: without it, a rename may be lost in a power cut."""
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
    """The errno of a failed write; None for another error."""
    if isinstance(error, OSError):
        if error.filename is not None and Path(os.fsdecode(error.filename)) not in (temporary, path, path.parent):
            return None  # of another file, which the block was reading
        number = error.errno
        if number is None and _free(path) == 0:
            number = errno.ENOSPC  # Pillow gives no errno
    else:  # a library in another language: safetensors
        match = FOREIGN.search(str(error))
        number = int(match[1]) if match else None
    return number if number in REASONS else None


def _free(path: Path) -> int | None:
    """The free bytes where a file would be; None if the system does not say."""
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return None


def _message(path: Path, number: int, size: int | None) -> str:
    needed = "" if size is None else f", {size / 1e6:.1f} MB are needed"
    reason = REASONS[number]
    if number == errno.ENOENT and path.parent.is_dir():
        reason = "its temporary file has gone"
    if number == errno.ENOSPC and (free := _free(path)) is not None:
        reason += f" ({free / 1e6:.1f} MB are free{needed})"
    try:
        exists = path.is_file()
    except OSError:  # a name that is too long
        exists = False
    rest = "the file of this name is as it was" if exists else "no part of it is left"
    return f"{path} cannot be written: {reason}; what was complete before is untouched: {rest}"


class Lock:
    """A lock on the file `path`, which is made where there is none; a context manager that releases it. The system
    releases it when a process ends. On a file system without locks every lock is granted."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def exclusive(self, wait: bool = False) -> bool:
        """Hold it alone. False if another process holds it, unless this call is to `wait` for that process."""
        return self._lock("LOCK_EX", wait)

    def shared(self) -> None:
        """Hold it together with others; waits for the end of an exclusive one."""
        self._lock("LOCK_SH", True)

    def close(self) -> None:
        """Release it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self, kind: str, wait: bool) -> bool:
        if sys.platform == "win32":
            return True
        try:
            fcntl.flock(self._file, getattr(fcntl, kind) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        return True

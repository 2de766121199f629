"""Atomic writes of files, with the system's cause of a failed write in one line; locks on files."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

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
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` when the block ends well, remove it otherwise.
    Raises Unwritten: no space left on device, permission denied, ..."""
    path = Path(path)
    temporary = path.with_name(f".{path.name[:NAME_LENGTH]}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(path.parent)
    except Exception as error:
        number = _number(error, temporary, path)
        if number is None:
            raise
        raise Unwritten(_message(path, number), number) from None
    finally:
        _remove(temporary)


@contextmanager
def named_where_unwritten(path: Path) -> Iterator[None]:
    """For a file written in parts: name it in a system error, which does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise Unwritten(_message(path, error.errno), error.errno) from None


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
    with atomic(path) as temporary:
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
    if not isinstance(error, OSError):  # of a library in another language: safetensors
        match = FOREIGN.search(str(error))
        number = int(match[1]) if match else None
    elif error.filename is not None and Path(os.fsdecode(error.filename)) not in (temporary, path, path.parent):
        return None  # of another file, which the block was reading
    else:
        number = error.errno
        with suppress(OSError):
            if number is None and shutil.disk_usage(path.parent).free == 0:  # Pillow gives no errno
                number = errno.ENOSPC
    return number if number in errno.errorcode else None


def _message(path: Path, number: int) -> str:
    return f"{path} cannot be written: {os.strerror(number).lower()}; what was complete before is untouched"


class Lock(AbstractContextManager["Lock"]):
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

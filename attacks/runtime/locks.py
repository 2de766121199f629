"""Locks on files, which the system releases when a process ends, however it ends.

They only spare work and refuse misuse: on a file system without locks every lock is granted.
"""

import os
import sys
from pathlib import Path
from typing import Self

if sys.platform != "win32":
    import fcntl


class Lock:
    """A lock on the file `path`, which is made where there is none; a context manager that releases it."""

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

"""Is the process that left this behind still there? A number alone does not say: numbers are given out again."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

#: A process that has ended but that nobody has waited for (Z), or that is just going (X, x), does no more work.
ENDED = ("Z", "X", "x")


@functools.cache
def machine() -> str:
    """Where numbers of processes can be compared with ours: host, boot, and namespace of processes. Containers may
    share the name of their host, but do not see each other's processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    return f"{socket.gethostname()} {boot} {namespace}".strip()


def born(pid: int) -> str:
    """When a process began, in the kernel's own count, which a later process of this number does not share; empty
    where that cannot be read."""
    stat = _stat(pid)
    return stat[19] if len(stat) > 19 else ""


def lives(pid: object, since: object = "") -> bool:
    """Whether the process of this number on this machine is there, and is the one that began at `since`."""
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)  # signal 0 is not sent; it only asks
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and another user's
    stat = _stat(pid)
    if stat and stat[0] in ENDED:
        return False
    return not since or len(stat) <= 19 or stat[19] == since


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before them may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []

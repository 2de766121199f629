"""Whether the process that wrote a file is still running. Process numbers are reused, so start times count too."""

import functools
import os
import socket
from pathlib import Path

#: States of a process that has ended: zombie (Z) and dead (X, x).
ENDED = ("Z", "X", "x")


@functools.cache
def machine() -> str:
    """Identifies where process numbers are comparable: host, boot and process namespace. Containers may share a host
    name without seeing each other's processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    return f"{socket.gethostname()} {boot} {namespace}".strip()


def born(pid: int) -> str:
    """The start time of a process in kernel ticks, which tells it from a later one of the same number; empty where it
    cannot be read."""
    stat = _stat(pid)
    return stat[19] if len(stat) > 19 else ""


def lives(pid: object, since: object = "") -> bool:
    """Whether the process of this number runs on this machine and, if `since` is given, is the one `born` then."""
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists and belongs to another user
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

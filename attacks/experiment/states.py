"""Who may write into a run directory: its states, and its lock.

A directory is new, at work (another process holds its lock), interrupted, finished, or of somebody else. Every
process that works on a run holds the lock `.lock` together with the others; one that begins or removes a run, alone.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from attacks.experiment.artefact_list import CHECKPOINT, artefact_paths
from attacks.experiment.directory import finished, previous_run
from attacks.runtime.files import Lock, clean, is_left_over
from attacks.runtime.untrusted import refuse_links, short_path

#: In a run directory: the lock, which is empty and stays.
LOCK = ".lock"


class State(Enum):
    """What a run directory holds."""

    NEW = "nothing"
    INTERRUPTED = "a run without results"
    FINISHED = "a finished run"
    FOREIGN = "other files"


@dataclass(frozen=True)
class RunEntry:
    """A run directory that this process has entered.

    Args:
        begun: whether there is a run to go on with.
        alone: whether no other process was at work on it.
    """

    lock: Lock
    is_resumed: bool
    is_exclusive: bool

    def share(self) -> None:
        """The run has begun: from now on other processes may join it."""
        self.lock.shared()


def state_of(out: Path) -> State:
    """The state of a run directory, whether or not a process is at work there."""
    if finished(out):
        return State.FINISHED
    if (out / "manifest.json").exists():
        return State.INTERRUPTED
    return State.FOREIGN if _other_processes(out) else State.NEW


def _other_processes(out: Path) -> list[str]:
    """Names in a directory without a run that no run has left there."""
    paths = out.iterdir() if out.is_dir() else ()
    return sorted(path.name for path in paths if path.name != LOCK and not is_left_over(path))


@contextmanager
def enter(
    out: Path, check_command: Callable[[dict[str, Any]], None], *, overwrite: bool = False
) -> Iterator[RunEntry]:
    """Within the block this process may work on the run directory, which is made where there is none.

    Args:
        check_command: called with the manifest of a run that is there; raises ValueError if it is another run.
        overwrite: first remove what the run that is there has written.

    Raises:
        ValueError: a finished run, another run, a run at work that is to be overwritten, or other files.
        OSError: the directory cannot be made or written.
    """
    _check(out, check_command, overwrite)  # before a file is touched
    out.mkdir(parents=True, exist_ok=True)
    with Lock(out / LOCK) as lock:
        is_exclusive = lock.exclusive()
        if not is_exclusive:
            lock.shared()  # waits while a run begins
        state = _check(out, check_command, overwrite and is_exclusive)
        if is_exclusive:
            clean(out)
            if state is not State.NEW and overwrite:
                remove(out)
                state = State.NEW
        elif overwrite or state is State.NEW:
            raise ValueError(f"`{out}`: another process is at work there; wait for it or stop it, then start again")
        entry = RunEntry(lock, state is State.INTERRUPTED, is_exclusive)
        if entry.is_resumed:
            print(f"note: {'going on with' if is_exclusive else 'joining'} the run in {out}", file=sys.stderr)
            inode = (out / "manifest.json").stat().st_ino
            entry.share()
            if not (out / "manifest.json").exists() or (out / "manifest.json").stat().st_ino != inode:
                raise ValueError(f"`{out}`: another process has just overwritten this run; start again")
        yield entry


def _check(out: Path, check_command: Callable[[dict[str, Any]], None], overwrite: bool) -> State:
    """The state of a directory that this process may enter. Raises ValueError for any other."""
    refuse_links(out)
    state = state_of(out)
    if state is State.FOREIGN:
        raise ValueError(
            f"`hydra.run.dir` must be a new directory, or that of a run; {out} holds other files, such as "
            f"{short_path(_other_processes(out)[0])}"
        )
    if state is State.FINISHED and not overwrite:
        raise ValueError(
            f"`hydra.run.dir`: the run in {out} is finished, and its report is {out / 'report.html'}; name another "
            "directory, or remove this run with overwrite=true"
        )
    if state is State.INTERRUPTED and not overwrite:
        check_command(previous_run(out).manifest)
    return state


def remove(out: Path) -> None:
    """Remove what the run in a directory has written, as its manifest lists it, and nothing else.

    The result goes first, the partial results next, and the manifest stays until that of the next run replaces it: at
    any moment what is left is a run that can be gone on with."""
    files = artefact_paths(previous_run(out).manifest)
    (out / "metrics.json").unlink(missing_ok=True)
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
    for name in files:
        if name != "manifest.json":
            (out / name).unlink(missing_ok=True)
    for folder in sorted({parent for name in files for parent in Path(name).parents}, reverse=True):
        if folder != Path():
            with suppress(OSError):  # it holds other files, or was never made
                (out / folder).rmdir()

"""Signals that ask a run to stop: what it has is written down, and it says how to go on.

Ctrl-C, what a scheduler sends before it ends a job (SIGTERM), and what Slurm sends some time before that where it is
asked to (SIGUSR1).
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Stopped(BaseException):
    """A signal has asked for the end. No `Exception`: what goes on after a fault must not go on after this.

    `code` is the exit code that shells expect of it: 130 of Ctrl-C, 143 of SIGTERM, 138 of SIGUSR1."""

    def __init__(self, number: int, out: Path) -> None:
        super().__init__(number, out)  # both, or it could not be pickled for the process that waits for this one
        self.number, self.out, self.code = number, out, 128 + number

    def __str__(self) -> str:
        if (self.out / "metrics.json").exists():
            said = "the run had come to its end"
        elif (self.out / "manifest.json").exists():
            said = f"go on with: {_starter()} {shlex.quote(f'resume={self.out}')}"
        else:
            said = "nothing was begun"
        return f"stopped by {signal.Signals(self.number).name}; {said}"


def _starter(environment: Mapping[str, str] = os.environ) -> str:
    """The command that starts as many processes as there are now: with fewer it would be another run."""
    count = environment.get("WORLD_SIZE", "1")
    if count == "1":
        return "python -m attacks.run"
    if environment.get("LOCAL_WORLD_SIZE") == count:
        return f"torchrun --standalone --nproc-per-node {count} -m attacks.run"
    return "torchrun with the flags of before, -m attacks.run"


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """While the block works on the run in the directory `out`, the signals raise `Stopped`, at once and wherever the
    main thread is, but once only: the second one must not tear the file that is written because of the first.
    Elsewhere than in the main thread signals cannot be caught, and stay as they are.

    An exception that a signal raises may land where Python drops it (a finaliser); so the block ends with it anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[Stopped] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not caught:
            caught.append(Stopped(number, out))
            raise caught[0]

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
        if caught:
            raise caught[0]
    except Exception:
        if caught:  # what the signal has broken on its way is not the news
            raise caught[0] from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Signals that stop a run: it writes a checkpoint and prints the command that resumes it.

They are Ctrl-C, SIGTERM and SIGUSR1 of schedulers, and SIGHUP of a terminal, unless `nohup` had it ignored.
"""

import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))


class StopSignal(BaseException):
    """A signal has stopped the run. No `Exception`: code that continues after an error must not continue after this.
    `code` is the exit code that shells expect, 130 of Ctrl-C."""

    def __init__(self, number: int, out: Path) -> None:
        super().__init__(number, out)  # both, or the parent process could not unpickle it
        self.number, self.out, self.code = number, out, 128 + number

    def __str__(self) -> str:
        if (self.out / "metrics.json").exists():
            state = "the run had finished"
        elif (self.out / "manifest.json").exists():
            state = f"go on with: {_starter()} {shlex.quote(f'resume={self.out}')}"
        else:
            state = "the run had not begun"
        return f"stopped by {signal.Signals(self.number).name}; {state}"


def _starter() -> str:
    """The command that starts the same number of processes, which is part of a run's identity."""
    count, local_count = os.environ.get("WORLD_SIZE", "1"), os.environ.get("LOCAL_WORLD_SIZE")
    flags = f"--standalone --nproc-per-node {count}" if local_count == count else "with the same flags,"
    return "python -m attacks.run" if count == "1" else f"torchrun {flags} -m attacks.run"


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Within the block, which works on the run directory `out`, the first signal raises `StopSignal` in the main
    thread at once; later ones are ignored, so that they cannot tear the checkpoint. In another thread signals cannot
    be caught, and keep their handlers. Python drops an exception that a signal raises within a finaliser, so it is
    raised once more at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops: list[StopSignal] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not stops:
            stops.append(StopSignal(number, out))
            raise stops[0]

    numbers = [number for number in SIGNALS if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
        if stops:
            raise stops[0]
    except Exception:
        if stops:  # this error is a consequence of the signal
            raise stops[0] from None
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

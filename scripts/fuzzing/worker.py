"""One process of a fuzzing run: it makes cases and checks them until its time is over, or a case ends it.

    python scripts/fuzzing/worker.py TARGET ENGINE SEED SECONDS FOLDER

FOLDER holds what the caller reads: `current`, the case in hand; `count`; and `found`, a folder of cases that break a
law with what was said of each. A case that takes too long, or ends the process otherwise, is left in `current`.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import logging
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"images": "fuzzing.images", "configs": "fuzzing.configs", "stages": "fuzzing.stages"}


class Worker:
    """Checks cases one by one, and writes down which it has in hand."""

    def __init__(self, target: Any, folder: Path) -> None:
        self.target, self.folder, self.count, self.said = target, folder, 0, 0.0
        (folder / "found").mkdir(exist_ok=True)
        self.log = (folder / "log").open("a")

    def __call__(self, case: Any) -> float:
        """Check one; returns how long it took."""
        content, start = self.target.write(case), time.monotonic()
        (self.folder / "current").write_bytes(content)
        try:
            with hurried(self.target.seconds, self.log):
                checked(self.target, case)
        except (Exception, SystemExit) as error:
            record(self.folder / "found", self.target, content, error)
        self.count += 1
        if time.monotonic() - self.said > 1:
            self.said = time.monotonic()
            (self.folder / "count").write_text(str(self.count))
        return time.monotonic() - start


@contextmanager
def hurried(seconds: float, log: IO[str]) -> Iterator[None]:
    """End the process, with its traceback in `log`, when the block has worked for so many seconds, or has taken six
    times as many of the clock's: on a machine with much else to do a case that waits for its turn is no finding."""
    faulthandler.register(signal.SIGPROF, log, chain=True)  # then as by default: the process ends
    faulthandler.dump_traceback_later(6 * seconds, exit=True, file=log)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def record(found: Path, target: Any, content: bytes, error: BaseException) -> None:
    """Keep the shortest case of each kind of error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT))] or frames
    words = re.sub(r"[\d.e+-]+|'[^']*'|\(.*\)", "#", str(error))[:80] if isinstance(error, AssertionError) else ""
    kind = repr((type(error).__name__, own[-1].name, frames[-1].name, frames[-1].lineno, words))
    file = found / f"{target.name}-{hashlib.sha256(kind.encode()).hexdigest()[:8]}{target.suffix}"
    if not file.exists() or len(content) < file.stat().st_size:
        file.write_bytes(content)
        file.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))


def checked(target: Any, case: Any) -> None:
    """Check a case, and what it needs of memory beyond what was needed before."""
    before = peak(afresh=True)
    target.check(case)
    if peak() > before + target.memory:
        raise AssertionError(f"it needs {(peak() - before) / 2**30:.1f} GiB of memory")


def peak(afresh: bool = False) -> int:
    """The most bytes that this process has had in memory; `afresh` from here on. 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    if afresh:
        Path("/proc/self/clear_refs").write_text("5")
    return status("VmHWM")


def status(key: str) -> int:
    """A figure of this process in bytes, as Linux has it."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def limited(more: int) -> None:
    """Far beyond what a case may need, memory ends: the machine has other work."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + 2 * more, -1))


def loaded(name: str) -> Any:
    """The target of that name, with warnings as errors and Pillow's remarks to itself."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    target = importlib.import_module(TARGETS[name]).TARGET
    target.ready()
    warnings.simplefilter("error")
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    logging.getLogger("PIL").propagate = False
    limited(target.memory)
    return target


def by_hypothesis(worker: Worker, seed: int, seconds: float) -> None:
    """Random cases, and near those that took longest; kept from round to round."""
    import hypothesis
    from hypothesis.database import DirectoryBasedExampleDatabase

    end = time.monotonic() + seconds
    kept = DirectoryBasedExampleDatabase(worker.folder / "examples")
    relaxed = {"deadline": None, "database": kept, "suppress_health_check": list(hypothesis.HealthCheck)}

    def check(case: Any) -> None:
        if time.monotonic() < end:
            hypothesis.target(worker(case), label="seconds")

    while time.monotonic() < end:
        seed += 1
        test = hypothesis.given(worker.target.cases)(check)
        hypothesis.seed(seed)(hypothesis.settings(max_examples=500, **relaxed)(test))()  # type: ignore[arg-type]


def by_atheris(name: str, seed: int, seconds: float, folder: Path) -> None:
    """Cases that reach new branches, by libFuzzer; it ends the process."""
    import hypothesis

    atheris: Any = importlib.import_module("atheris")
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    importlib.import_module("torch")  # not instrumented
    modules = {"images": ["PIL"], "configs": ["yaml"], "stages": ["transforms"]}[name]
    with atheris.instrument_imports(include=["attacks", *modules], enable_loader_override=False):
        worker = Worker(loaded(name), folder)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    options = [
        f"-seed={seed + 1}",
        f"-max_total_time={max(1, int(seconds))}",
        "-rss_limit_mb=0",
        "-timeout=600",
        "-len_control=0",
    ]
    target = worker.target
    # Of other cases than bytes, what hypothesis draws from: enough for any of them.
    seeds = target.seeds() or [Random(number).randbytes(4096) for number in range(64)]
    for number, content in enumerate(seeds):
        (corpus / f"seed{number}").write_bytes(content)
    if target.mutate is None:

        @hypothesis.settings(deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(target.cases)
        def test(case: Any) -> None:
            worker(case)

        atheris.Setup([sys.argv[0], str(corpus), "-max_len=16384", *options], test.hypothesis.fuzz_one_input)
    else:

        def mutated(content: bytes, most: int, number: int) -> bytes:
            own = atheris.Mutate(content, most) if number % 2 else target.mutate(content, number)
            return bytes(own)[:most]

        atheris.Setup(
            [sys.argv[0], str(corpus), "-max_len=65536", *options],
            lambda content: worker(content),
            custom_mutator=mutated,
        )
    atheris.Fuzz()


if __name__ == "__main__":
    _, name, engine, seed, seconds, place = sys.argv
    os.chdir(Path(place) / "here")
    if engine == "atheris":
        by_atheris(name, int(seed), float(seconds), Path(place))
    else:
        by_hypothesis(Worker(loaded(name), Path(place)), int(seed), float(seconds))

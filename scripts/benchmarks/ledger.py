"""The speed-up of a second process on a run: one process, two that share a ledger, and two with a run each, which is
the upper bound of the machine."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from .table import Table

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = "[astronaut,brick,camera,cell,chelsea,clock,coffee,grass,gravel,hubble,retina,rocket]"
#: A short attack and judgement: less work between two claims than in a real run, so more of it is the ledger's.
SETTINGS = ("config=evaluate", f"data.photos={PHOTOS}", "attack.steps=8", "engine.threads=1", "sanity=none")
JUDGED = ("evaluate.views=16", "evaluate.wide=1", "evaluate.one_view=false")
#: What one worker does for all, on a fixed number of pictures.
PARTS = (
    "evaluate.maps=[]",
    "evaluate.curves=[]",
    *(f"evaluate.{name}=0" for name in ("left_out", "deploy", "explain")),
)
POLL = 0.05  # seconds between two reads of the ledger
STATES = "SELECT min(state), max(state), sum(state > 0) FROM unit"
DONE = 2


class Worker(NamedTuple):
    """A process and its log."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def expect(self, code: int) -> None:
        """Wait for its end. Raises RuntimeError for another exit code."""
        if self.process.wait() != code:
            self.log.seek(0)
            raise RuntimeError(f"a run ended with {self.process.returncode}:\n{self.log.read().decode()}")


class Time(NamedTuple):
    """Seconds from the start of the processes to the end of the last, from the first claim to the last unit, and of
    processors: these say what is done twice, on a busy machine too."""

    whole: float
    attacks: float
    processors: float


def run(rounds: int, pictures: int, unit: int) -> list[Table]:
    """Times of all ways, in turns; medians. Needs two cores, and takes the first two that this process may use."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("error: this process may use one core only (taskset?), and two are compared")
    with tempfile.TemporaryDirectory() as scratch:
        begun = begin(Path(scratch) / "begun", pictures, unit, cores[0])
        ways: dict[str, list[tuple[int, ...]]] = {
            "one process": [(cores[0],)],
            "two on one ledger": [tuple(cores)],
            "two runs at once": [(cores[0],), (cores[1],)],
        }
        times: dict[str, list[Time]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name in list(ways)[turn % 3 :] + list(ways)[: turn % 3]:
                times[name].append(timed(begun, Path(scratch), ways[name]))
    return [table(times, f"{pictures} pictures in units of {unit}, {rounds} rounds, a core and a thread each")]


def table(times: dict[str, list[Time]], what: str) -> Table:
    """Medians, and the pictures a second and core over those of one process."""
    columns = {"attacks s": ".1f", "efficiency": ".3f", "whole s": ".1f", "whole eff": ".3f", "cpu s": ".1f"}
    medians = {name: Time(*map(statistics.median, zip(*each, strict=True))) for name, each in times.items()}
    one = medians["one process"]
    work = {"one process": 1.0, "two on one ledger": 0.5, "two runs at once": 1.0}  # of one run's, each core
    rows = {
        name: (
            time.attacks,
            work[name] * one.attacks / time.attacks,
            time.whole,
            work[name] * one.whole / time.whole,
            time.processors,
        )
        for name, time in medians.items()
    }
    notes = ("attacks: first claim to last unit done; whole: with the start of the processes, and the tables",)
    return Table(f"Seconds of an evaluation: {what}", columns, rows, notes=notes)


def begin(folder: Path, pictures: int, unit: int, core: int) -> Path:
    """A run directory with nothing done: the run was stopped as soon as it had a ledger."""
    overrides = [
        f"data.count={pictures}",
        f"evaluate.batch={unit}",
        f"hydra.run.dir={folder}",
        *SETTINGS,
        *JUDGED,
        *PARTS,
    ]
    worker = start(overrides, core)
    while worker.process.poll() is None and not states(folder)[2]:
        time.sleep(POLL)
    worker.process.send_signal(signal.SIGTERM)
    worker.expect(128 + signal.SIGTERM)
    return folder


def timed(begun: Path, scratch: Path, runs: Sequence[tuple[int, ...]]) -> Time:
    """Go on with copies of `begun`, each by a process for each of its cores, all at the same time."""
    folders = [scratch / f"run{i}" for i in range(len(runs))]
    for folder in folders:
        shutil.copytree(begun, folder)
    claimed, done, spent = [0.0] * len(runs), [0.0] * len(runs), processors()
    began = time.perf_counter()
    workers = [start([f"resume={at}"], core) for at, cores in zip(folders, runs, strict=True) for core in cores]
    while any(worker.process.poll() is None for worker in workers):
        for i, folder in enumerate(folders):
            lowest, highest, taken = states(folder)
            now = time.perf_counter()
            claimed[i] = claimed[i] or (now if taken else 0.0)
            done[i] = done[i] or (now if lowest >= DONE and highest else 0.0)
        time.sleep(POLL)
    ended = time.perf_counter()
    for worker in workers:
        worker.expect(0)
    for folder in folders:
        shutil.rmtree(folder)
    return Time(ended - began, max(at or ended for at in done) - min(claimed), processors() - spent)


def processors() -> float:
    """Seconds of processors that the processes which have ended have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def states(folder: Path) -> tuple[int, int, int]:
    """The least and the greatest state of a unit, and how many are not free."""
    try:
        db = sqlite3.connect(f"{(folder / 'ledger.sqlite').as_uri()}?mode=ro", uri=True)
        try:
            lowest, highest, taken = db.execute(STATES).fetchone()
        finally:
            db.close()
    except sqlite3.Error:  # just being written
        return 0, 0, 0
    return lowest, highest, taken


def start(overrides: Sequence[str], core: int) -> Worker:
    """A run on one core."""
    log = tempfile.TemporaryFile()  # noqa: SIM115
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "attacks.run", *overrides],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=log,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    return Worker(process, log)

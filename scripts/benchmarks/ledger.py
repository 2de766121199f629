"""The speed-up of a second process on a run: one process, two that share a ledger, and two with a run each, which is
the upper bound of the machine."""

import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from attacks.experiment.units import LEDGER

from .table import Table

ROOT = Path(__file__).resolve().parents[2]
#: A short attack and judgement: less work between two claims than in a real run, so more of it is the ledger's.
SETTINGS = ("config=evaluate", "attack.gradients=32", "engine.threads=1", "sanity=none")
JUDGED = ("views=16", "wide=1", "one_view=false")
#: What one worker does for all, on a fixed number of pictures.
PARTS = ("maps=[]", "curves=[]", "left_out=0", "deploy=0", "explain=0")
POLL = 0.05  # seconds between two reads of the ledger
STATES = "SELECT min(state), max(state), sum(state > 0) FROM unit"
DONE = 2


class Time(NamedTuple):
    """Seconds from the start of the processes to the end of the last, from the first claim to the last unit, and of
    processors: these say what is done twice, on a busy machine too."""

    whole: float
    attacks: float
    processors: float


def run(rounds: int = 3, pictures: int = 64, unit: int = 2) -> list[Table]:
    """The same pictures by one process and by two that share a ledger.

    Needs two cores, and takes the first two that this process may use.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("error: this process may use one core only (taskset?), and two are compared")
    with tempfile.TemporaryDirectory() as scratch:
        begun = begin(Path(scratch) / "begun", pictures, unit, cores[0])
        ways = {"one process": [cores[:1]], "two on one ledger": [cores], "two runs at once": [cores[:1], cores[1:]]}
        times: dict[str, list[Time]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name in list(ways)[turn % 3 :] + list(ways)[: turn % 3]:
                times[name].append(timed(begun, Path(scratch), ways[name]))
    return [table(times, f"{pictures} pictures in units of {unit}, {rounds} rounds, a core and a thread each")]


def table(times: dict[str, list[Time]], what: str) -> Table:
    """Medians, and the pictures a second and core over those of one process."""
    columns = {"attacks s": ".1f", "efficiency": ".3f", "whole s": ".1f", "whole eff": ".3f", "cpu s": ".1f"}
    medians = {name: Time(*map(statistics.median, zip(*each, strict=True))) for name, each in times.items()}
    one, rows = medians["one process"], {}
    for name, each in medians.items():
        work = 0.5 if name == "two on one ledger" else 1.0  # of one run's, each core
        efficiency, whole = work * one.attacks / each.attacks, work * one.whole / each.whole
        rows[name] = (each.attacks, efficiency, each.whole, whole, each.processors)
    notes = ("attacks: first claim to last unit done; whole: with the start of the processes, and the tables",)
    return Table(f"Seconds of an evaluation: {what}", columns, rows, "bars", notes)


def begin(folder: Path, pictures: int, unit: int, core: int) -> Path:
    """A run directory with nothing done: the run was stopped as soon as it had a ledger."""
    sizes = [f"data.count={pictures}", f"evaluate.batch={unit}", f"hydra.run.dir={folder}"]
    run = start([*sizes, *SETTINGS, *(f"evaluate.{part}" for part in (*JUDGED, *PARTS))], core, folder)
    while run.poll() is None and not states(folder)[2]:
        time.sleep(POLL)
    run.send_signal(signal.SIGTERM)
    expect(run, 128 + signal.SIGTERM, folder)
    return folder


def timed(begun: Path, scratch: Path, runs: Sequence[Sequence[int]]) -> Time:
    """Go on with copies of `begun`, each by a process for each of its cores, all at the same time."""
    folders = [scratch / f"run{i}" for i in range(len(runs))]
    for folder in folders:
        shutil.copytree(begun, folder)
    claimed, done, spent = [0.0] * len(runs), [0.0] * len(runs), processors()
    began = time.perf_counter()
    workers = [(start([f"resume={at}"], core, at), at) for at, own in zip(folders, runs, strict=True) for core in own]
    while any(worker.poll() is None for worker, _ in workers):
        for i, folder in enumerate(folders):
            lowest, highest, taken = states(folder)
            read = time.perf_counter()
            claimed[i] = claimed[i] or (read if taken else 0.0)
            done[i] = done[i] or (read if lowest >= DONE and highest else 0.0)
        time.sleep(POLL)
    ended = time.perf_counter()
    for worker, folder in workers:
        expect(worker, 0, folder)
    for folder in folders:
        shutil.rmtree(folder)
    return Time(ended - began, max(at or ended for at in done) - min(claimed), processors() - spent)


def processors() -> float:
    """Seconds of processors that the processes which have ended have taken."""
    used = os.times()
    return used.children_user + used.children_system


def states(folder: Path) -> tuple[int, int, int]:
    """The least and the greatest state of a unit, and how many are not free."""
    try:
        with closing(sqlite3.connect(f"{(folder / LEDGER).as_uri()}?mode=ro", uri=True)) as db:
            lowest, highest, taken = db.execute(STATES).fetchone()
    except sqlite3.Error:  # just being written
        return 0, 0, 0
    return lowest, highest, taken


def start(overrides: Sequence[str], core: int, folder: Path) -> subprocess.Popen[bytes]:
    """A run on one core; what it writes to stderr goes to a file beside the folder."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "attacks.run", *overrides],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )


def expect(run: subprocess.Popen[bytes], code: int, folder: Path) -> None:
    """Wait for the end of a run. Raises RuntimeError for another exit code."""
    if run.wait() != code:
        raise RuntimeError(f"a run ended with {run.returncode}:\n{folder.with_suffix('.log').read_text()}")

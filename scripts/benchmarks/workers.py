"""What a second process of a run is worth: one process on one core, and `workers=2` on two."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .table import Table

ROOT = Path(__file__).resolve().parents[2]
#: A short attack and judgement: more of a run is its start and its end than in a real one.
SETTINGS = ("config=evaluate", "attack.gradients=32", "engine.threads=1", "sanity=none")
JUDGED = ("views=16", "wide=1", "one_view=false")
#: What one process does for all, on a fixed number of pictures.
PARTS = ("maps=[]", "curves=[]", "left_out=0", "deploy=0", "explain=0")


class Time(NamedTuple):
    """Seconds of a whole run, and of processors: these say what is done twice, on a busy machine too."""

    whole: float
    processors: float


def run(rounds: int = 3, pictures: int = 50, unit: int = 1) -> list[Table]:
    """The same pictures by one process on one core, and by two on two. Needs two cores."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("error: this process may use one core only (taskset?), and two are compared")
    times: dict[int, list[Time]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(rounds):
            for count in sorted(times, reverse=bool(turn % 2)):
                folder = Path(scratch) / f"{turn}-{count}"
                sizes = [f"data.count={pictures}", f"evaluate.batch={unit}", f"hydra.run.dir={folder}"]
                words = [*sizes, *SETTINGS, *(f"evaluate.{part}" for part in (*JUDGED, *PARTS)), f"workers={count}"]
                times[count].append(timed(words, cores[:count]))
    return [table(times, f"{pictures} pictures in units of {unit}, {rounds} rounds, a core and a thread each")]


def table(times: dict[int, list[Time]], what: str) -> Table:
    """Medians, and the pictures a second and core over those of one process."""
    columns = {"whole s": ".1f", "efficiency": ".3f", "cpu s": ".1f"}
    medians = {count: Time(*map(statistics.median, zip(*each, strict=True))) for count, each in times.items()}
    rows = {
        f"workers={count}": (each.whole, medians[1].whole / (count * each.whole), each.processors)
        for count, each in medians.items()
    }
    notes = ("with the start of the processes, the gallery, and the tables",)
    return Table(f"Seconds of an evaluation: {what}", columns, rows, "bars", notes)


def timed(words: Sequence[str], cores: Sequence[int]) -> Time:
    """One run on these cores. Raises RuntimeError where it fails."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    before, began = _processors(), time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "attacks.run", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, set(cores)),
    )
    if ended.returncode:
        raise RuntimeError(f"a run ended with {ended.returncode}:\n{ended.stderr}")
    return Time(time.perf_counter() - began, _processors() - before)


def _processors() -> float:
    """Seconds of processors that the processes which have ended have taken."""
    used = os.times()
    return used.children_user + used.children_system

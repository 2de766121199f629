"""Where the time of an evaluation goes: the CPU seconds of its parts, with each engine."""

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from .table import Table

ROOT = Path(__file__).resolve().parents[2]
ENCODERS = {
    "pocket": ("encoder=pocket",),
    "resnet18": ("encoder=torchvision", "encoder.model=resnet18", "encoder.weights=random"),
}
ENGINES = ("fixed", "auto")
#: What no meter of a run counts: the part, the module, and the function or method in it. Pictures are written by
#: threads, which counts for the part that runs meanwhile.
UNMETERED = (
    ("engine", "attacks.experiment.preparation", "decide"),
    ("pictures", "attacks.experiment.artifacts", "Exhibits.pictures"),
    ("sanity", "attacks.experiment.batch", "check"),
    ("report", "attacks.experiment.contact_sheet", "contact_sheet"),
    ("report", "attacks.report.page", "write_report"),
)
#: Parts whose number of pictures is fixed, by their names in metrics.json; what leaves them and the checks out.
FIXED = ("response", "left_out", "deployment", "explanations")
LEAN = (
    "sanity=none",
    *(f"evaluate.{part}" for part in ("maps=[]", "curves=[]", "left_out=0", "deploy=0", "explain=0")),
)


def run(
    arch: tuple[str, ...] = ("pocket",),
    pictures: int = 50,
    gradients: int = 128,
    views: int = 32,
    rounds: int = 1,
    lean: bool = False,
) -> list[Table]:
    """CPU seconds of the parts of `config=evaluate`, with a fixed engine and with one that is measured.

    One thread. The engines take turns, and medians over rounds are given. `gradients` and `views` replace
    attack.gradients and evaluate.views in the runs; the engine is measured for 50 pictures at the default budget.
    """
    tables = []
    for name in arch:
        times: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
        settings, seconds = decided(ENCODERS[name])
        own = {"fixed": ["engine=fixed"], "auto": settings}
        with tempfile.TemporaryDirectory() as scratch:
            for turn in range(rounds):
                for engine in ENGINES[:: -1 if turn % 2 else 1]:
                    folder = Path(scratch) / f"{turn}-{engine}"
                    words = [*own[engine], f"data.count={pictures}", f"attack.gradients={gradients}"]
                    words += [f"evaluate.views={views}", *ENCODERS[name], *(LEAN if lean else ())]
                    words += ["config=evaluate", "engine.threads=1", f"hydra.run.dir={folder}"]
                    times[engine].append(measured(words, folder))
        notes = (f"auto: {' '.join(settings)}", f"measured in {seconds:.1f} s, not counted above")
        what = f"{name}, {pictures} pictures, {gradients} gradients, {views} views, {rounds} rounds, one thread"
        tables.append(table(times, what, notes))
    return tables


def table(times: dict[str, list[dict[str, float]]], what: str, notes: tuple[str, ...]) -> Table:
    """Medians by part, and the share of the fixed engine's."""
    medians = {
        engine: {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
        for engine, rounds in times.items()
    }
    fixed, auto = (medians[engine] for engine in ENGINES)
    rows = {part: (fixed[part], auto[part], auto[part] / fixed[part]) for part in fixed if fixed[part] >= 0.05}
    columns = {"fixed": ".1f", "auto": ".1f", "ratio": ".2f"}
    return Table(f"CPU seconds of config=evaluate: {what}", columns, rows, "bars", notes)


def decided(encoder: Sequence[str]) -> tuple[list[str], float]:
    """The engine's settings for an encoder on 50 pictures at the default budget, and the CPU seconds of choosing."""
    words = ["config=evaluate", "data.count=50", "engine.threads=1", "engine.compile=false", *encoder]
    lines = ran(["--decide", *words])
    return json.loads(lines[-2]), json.loads(lines[-1])["engine"]


def measured(words: list[str], folder: Path) -> dict[str, float]:
    """The CPU seconds of the parts of one run in a process of its own."""
    seconds = json.loads(ran(words)[-1])
    costs = json.loads((folder / "metrics.json").read_text())["costs"]
    arms = [costs.pop(arm) for arm in ("eot", "no_eot", "one_view") if arm in costs]
    parts = {
        "attack": sum(each["seconds"] - each["selection_seconds"] for each in arms),
        "selection": sum(each["selection_seconds"] for each in arms),
        "judging": sum(costs[name]["seconds"] for name in ("gallery", "anchors", "judging")),
        **{name.replace("_", " "): costs[name]["seconds"] for name in FIXED if name in costs},
        **{part: seconds.get(part, 0.0) for part, _, _ in UNMETERED},
    }
    return parts | {"start, tables": seconds["whole"] - sum(parts.values()), "whole": seconds["whole"]}


def ran(words: Sequence[str]) -> list[str]:
    """The lines that `child` prints. Raises RuntimeError where it fails."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-m", "scripts.benchmarks.parts", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"a run ended with {ended.returncode}:\n{ended.stderr}")
    return ended.stdout.splitlines()


def child() -> None:
    """One run, with `--decide` only its engine's decision, whose clock is that of the processor; the last line of its
    output has the seconds by part as JSON."""
    time.perf_counter = time.process_time
    from attacks import run as program  # after the clock is set
    from attacks.experiment import preparation
    from attacks.runtime.distributed import ALONE

    spent: dict[str, float] = {}
    for part, module, name in UNMETERED:
        owner, last = owner_of(module, name)
        setattr(owner, last, timed(part, getattr(owner, last), spent))
    if sys.argv[1] == "--decide":
        prepared = preparation.prepare(program.compose("evaluate", sys.argv[3:]), ALONE, "evaluate", [])
        print(json.dumps(prepared.choice.decision.settings()))
    else:
        program.cli()
    print(json.dumps(spent | {"whole": time.process_time()}))


def owner_of(module: str, name: str) -> tuple[Any, str]:
    """The owner of a function or method in a module, and its last name."""
    owner: Any = importlib.import_module(module)
    *inside, last = name.split(".")
    return reduce(getattr, inside, owner), last


def timed(part: str, function: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    """The function, which adds its CPU seconds to `spent[part]`."""

    def wrapped(*args: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **options)
        finally:
            spent[part] = spent.get(part, 0.0) + time.process_time() - began

    return wrapped


if __name__ == "__main__":
    child()

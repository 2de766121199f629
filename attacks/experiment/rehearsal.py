"""Before a run: what it will do and for how long, from timed steps, and its gallery and clean views."""

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attacks.encoders.black_box.asked import black_box
from attacks.evaluation.classes import Classes
from attacks.experiment.arms import options_of, problem_of
from attacks.experiment.bench import MAIN, Bench, bench_of
from attacks.experiment.clean_views import PICTURES, CleanViews, clean_views, refuse_loss
from attacks.experiment.preparation import prepare_run
from attacks.experiment.sections.section import sections_of
from attacks.experiment.unit import Unit, attempt_of, share_of
from attacks.experiment.units import FAULTS
from attacks.report.facts import encoder_name
from attacks.report.words import count_text, radius
from attacks.runtime.checkpoint import NOWHERE
from attacks.runtime.distributed import join
from attacks.schema.validate import Run
from attacks.solvers.solver import run_steps
from attacks.study.objective import watching_layers
from attacks.study.study import Study

#: Steps that are timed.
STEPS = 4
#: The time of a run beside that of its gradients and judged views, as it also chooses among iterates, and writes;
#: and the ends of an estimate beside it: other programs share the machine, and attacks end early.
OVERHEAD, LOW, HIGH = 1.1, 0.6, 2


@dataclass(frozen=True)
class Rehearsal:
    """What is known before a run: how many `pictures` it could attack, how many files are `unreadable`, the `gallery`
    in a line, the `clean` views of the first pictures, the seconds that a picture and the rest take, and a
    `plan`: what the run will do, in what time, memory and files."""

    pictures: int
    unreadable: int
    gallery: str
    clean: CleanViews
    seconds: float
    setup_seconds: float
    plan: str = ""

    def fitting(self, minutes: float, least: int = PICTURES) -> int:
        """How many pictures fit into so many minutes: at least `least`, a unit, and at most all."""
        number = math.floor((60 * minutes - self.setup_seconds) / max(self.seconds, 1e-9))
        return min(self.pictures, max(least, number))

    def minutes(self, count: int) -> float:
        """The minutes that so many pictures take."""
        return (self.setup_seconds + count * self.seconds) / 60


def rehearse(run: Run, preset: str, overrides: list[str]) -> Rehearsal:
    """Prepare a run as it will be, judge the clean views of its first pictures, and time steps of its attack on
    them. Raises ValueError or OSError for what would stop the run, as LostViews."""
    began, preparation = time.perf_counter(), prepare_run(run, join(), preset, overrides)
    study, decision = preparation.study, preparation.choice.decision
    if black_box(study.encoder) is not None:
        raise ValueError("`show` must not be plan for an encoder that is only asked: each question counts")
    layers = watching_layers(study.encoder, study.objective, study.members)
    with tempfile.TemporaryDirectory() as folder, layers as encoder:
        bench = bench_of(study, encoder, decision, replace(preparation.place(Path(folder)), checkpoint=NOWHERE))
        setup = time.perf_counter() - began
        refuse_loss(clean := clean_views(bench), preparation.manifest)
        pace, checks, picture = _pace(bench), share_of(bench, Unit(0, 0, 0)), share_of(bench, Unit(1, 2, 1))
    setup, seconds, count, memory = setup + pace * checks, pace * picture, len(study.queries), ""
    with suppress(ImportError):  # of what only Unix has
        import resource

        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        memory = f"memory: about {max(resident, torch.cuda.max_memory_allocated()) / 1e9:.1f} GB\n"
    files_of_run = preparation.manifest["artefacts"]
    pixels, arms = sum(map(math.prod, study.queries.shapes)), len(files_of_run["pictures"]["arms"])
    files = f"files: at most {arms * count + len(files_of_run['files'])}, {3e-6 * arms * pixels:.1f} MB of pictures"
    plan = f"{task_text(bench, preset)}; {_time_text(setup + count * seconds)}\n{memory}{files}\n{clean}"
    unreadable = sum(": left out, " in note for note in study.queries.notes)
    return Rehearsal(count, unreadable, _gallery(study), clean, seconds, setup, plan)


def task_text(bench: Bench, preset: str) -> str:
    """What a run does, and on what, in a line."""
    study, threat = bench.study, bench.study.threat
    size = "with a patch" if threat["patch"] else f"within {threat['norm']} {radius(threat)}"
    attack = f"attack {count_text(len(study.queries), 'picture')} {size}, {study.views.gradients} gradients each"
    views = count_text(len(bench.banks[MAIN].u), "unseen view")
    text = f"{preset}: {attack}; judge the encoder {encoder_name({'encoder': study.identity})} on {views}"
    parts = ", ".join(sections_of(study))
    return text + (f"; then {parts}" if parts else "")


def first_words(bench: Bench, preset: str, units: Sequence[Unit], workers: int) -> str:
    """The first line of a run that does some units: what it does, on what, and for how long from now on."""
    text = task_text(bench, preset)
    if black_box(bench.study.encoder) is None:  # where each question counts
        with suppress(*FAULTS):  # the fault of a picture costs only that, when it is attacked
            left = sum(share_of(bench, unit) for unit in units if not bench.checkpoint.has(unit.name))
            text += f"; {_time_text(_pace(bench) * left, workers)}"
    return text


def _time_text(seconds: float, workers: int = 1) -> str:
    scale, unit = (60, "minutes") if seconds > 100 else (1, "s")
    return f"about {LOW * seconds / workers / scale:.2g} to {HIGH * seconds / scale:.2g} {unit}"


def _pace(bench: Bench) -> float:
    """The seconds of a gradient of a picture, from a few steps of the attack on the first pictures."""
    rows = bench.study.queries.of_one_shape(PICTURES)
    attempt = attempt_of(bench, bench.study.only(rows), rows, bench.study.seed)
    options = replace(options_of("eot", attempt), steps=STEPS)
    times = [time.perf_counter() for _ in run_steps(problem_of("eot", attempt), options)]
    step = torch.tensor(times, dtype=torch.float64).diff().median().nan_to_num(0)  # one step has no next
    return OVERHEAD * float(step) / (len(rows) * bench.study.views.per_step)


def _gallery(study: Study) -> str:
    if isinstance(study.gallery, Classes):
        return f"{len(study.gallery)} classes, {study.gallery.source}"
    labels = study.gallery.label_numbers
    names = "none" if labels is None else len(labels.unique())
    size, pairs = len(study.gallery), len(study.duplicates)
    return f"pictures: {size}, {study.gallery.source}; near duplicates: {pairs}; identities: {names}"

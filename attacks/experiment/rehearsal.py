"""A rehearsal before a run: its gallery and its clean views are looked at, and one step is timed."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attacks.evaluation.classes import Classes
from attacks.experiment.arms import options_of, problem_of
from attacks.experiment.bench import MAIN, Bench, bench_of
from attacks.experiment.clean_views import PICTURES, CleanViews, clean_views, refuse_loss
from attacks.experiment.preparation import prepare_run
from attacks.experiment.unit import STARTS, attempt_of
from attacks.runtime.checkpoint import NOWHERE
from attacks.runtime.distributed import join
from attacks.schema.validate import Run
from attacks.solvers.solver import run_steps
from attacks.study.objective import watching_layers
from attacks.study.study import Study

#: Steps that are timed.
STEPS = 6
#: Gradients of a sanity check beside those of a short run of it, and the time of a run beside that of its gradients
#: and judged views: it also chooses among iterates, and writes.
CHECKS, OVERHEAD = 13, 1.1


@dataclass(frozen=True)
class Rehearsal:
    """What is known before a run: how many `pictures` it could attack, how many files are `unreadable`, the `gallery`
    in a line, the `clean` views of the first pictures, and the seconds that a picture and the rest take."""

    pictures: int
    unreadable: int
    gallery: str
    clean: CleanViews
    seconds: float
    setup_seconds: float

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
    rows = torch.tensor(study.queries.of_one_shape(PICTURES))
    with (
        tempfile.TemporaryDirectory() as folder,
        watching_layers(study.encoder, study.objective, study.members) as encoder,
    ):
        place = replace(preparation.place(Path(folder)), checkpoint=NOWHERE)
        bench = bench_of(study, encoder, decision, place)
        setup = time.perf_counter() - began
        images = study.queries.only(rows.tolist()).images.to(study.device)
        refuse_loss(clean := clean_views(bench), preparation.manifest)
        judging = _seconds_of(lambda: bench.judge(images, rows, bench.banks[MAIN]))
        gradient = _seconds_of_a_step(bench, rows.tolist()) / (len(rows) * study.views.per_step)
    arms, checks = len(study.arms), CHECKS * study.sanity.pictures * study.sanity.steps * study.sanity.views
    search = STARTS * (bench.refine_steps + 1) if bench.refine_steps else 0
    gradients = (arms - 2) * study.views.gradients + arms * search
    seconds = OVERHEAD * (gradients * gradient + arms * judging / len(rows))
    unreadable = sum(": left out, " in note for note in study.queries.notes)
    return Rehearsal(len(study.queries), unreadable, _gallery(study), clean, seconds, setup + checks * gradient)


def _seconds_of(task: Callable[[], object]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def _seconds_of_a_step(bench: Bench, rows: list[int]) -> float:
    """The median of a few steps of the attack on the pictures `rows`, without the first."""
    attempt = attempt_of(bench, bench.study.only(rows), rows, bench.study.seed)
    options = replace(options_of("eot", attempt), steps=STEPS)
    times = [time.perf_counter() for _ in run_steps(problem_of("eot", attempt), options)]
    return float(torch.tensor(times, dtype=torch.float64).diff().median().nan_to_num(0))  # one step has no next


def _gallery(study: Study) -> str:
    if isinstance(study.gallery, Classes):
        return f"{len(study.gallery)} classes, {study.gallery.source}"
    labels = study.gallery.label_numbers
    names = "none" if labels is None else len(labels.unique())
    size, pairs = len(study.gallery), len(study.duplicates)
    return f"pictures: {size}, {study.gallery.source}; near duplicates: {pairs}; identities: {names}"

"""The strength of attacks for equal numbers of gradients: ours as shipped, each peer at its best setting."""

import itertools
import json
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import scipy.stats
import torch
from torch import Tensor

from attacks.runtime.progress import Progress

from .contest import OURS, Map, Setting, spread_over
from .strength_case import ENCODERS, REAL_ENCODERS, REAL_VIEWS, VIEWS, network, strength_bank, strength_pictures, task
from .strength_peers import CONTESTANTS, LINF_ATTACKS
from .table import MISSING, BenchmarkTable, Row

SCREEN_VIEWS = 64

Purpose = Literal["table", "screen"]
Verdict = Literal["lowest", "level", "beaten"]
Key = TypeVar("Key")
#: The row of the verdicts on all peers together.
ALL_PEERS = "every peer"


class StrengthCell(NamedTuple):
    """One comparison: an encoder, views, a ball, and a number of gradients of each picture."""

    arch: str
    views: str
    ball: str
    evals: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


#: A fraction of the whole grid: each encoder and each kind of views has three cells, one for each ball, and no two
#: cells share both encoder and views. `_LONG` and `_LONG_REAL` are those with 256 gradients.
_LONG = {("pocket", "linf8"), ("mobilenet_v3_small", "l2"), ("small", "l2"), ("small", "linf4")}
_LONG_REAL = {("camera", "linf4"), ("web", "linf8")}
_OFFSETS = {"linf8": 0, "l2": 2, "linf4": 4}
CELLS = tuple(
    StrengthCell(arch, tuple(VIEWS)[(i + offset) % len(VIEWS)], ball, 256 if (arch, ball) in _LONG else 64)
    for i, arch in enumerate(ENCODERS)
    for ball, offset in _OFFSETS.items()
)
#: Likewise of real encoders at 224 pixels: of their balls and kinds of views one has half, the other the other half.
REAL_CELLS = tuple(
    StrengthCell(REAL_ENCODERS[(i + j) % 2], views, ball, 256 if (views, ball) in _LONG_REAL else 64)
    for i, views in enumerate(REAL_VIEWS)
    for j, ball in enumerate(("linf4", "linf2", "linf8"))
)


@dataclass(frozen=True)
class StrengthJob:
    """One attack on all pictures of one purpose, `count` of them in the table; `views` judge. The result depends on
    the job alone."""

    cell: StrengthCell
    name: str
    setting: Setting
    purpose: Purpose
    seed: int
    count: int
    views: int
    folder: Path

    @property
    def file(self) -> Path:
        """Where its outcome is kept. Delete it, or the contestant's folder, and the job runs again."""
        parts = (self.purpose, self.cell.evals, self.setting, f"seed {self.seed}", f"{self.count}x{self.views}")
        name = re.sub(r"[^\w.]+", "-", " ".join(map(str, parts)))
        return self.folder / str(self.cell) / self.name.replace(" ", "-") / f"{name}.json"


def strength_outcome(job: StrengthJob) -> list[float]:
    """The mean cosine of each picture: from the job's file, or else of the attack, and then written there."""
    if job.file.exists():
        cosines: list[float] = json.loads(job.file.read_text())["outcome"]["cosine"]
        return cosines
    views = (VIEWS | REAL_VIEWS)[job.cell.views]()
    images = strength_pictures(job.count, job.purpose, job.cell.arch)
    question = task(network(job.cell.arch, job.folder), images, job.cell.ball, views, job.cell.evals, job.seed)
    attacked_images = CONTESTANTS[job.name].prepare(question, job.setting)()
    cosines = question.score(attacked_images, strength_bank(views, job.views, job.purpose)).double().mean(1).tolist()
    job.file.parent.mkdir(parents=True, exist_ok=True)
    part = job.file.with_suffix(f".{os.getpid()}")
    facts = {"cell": job.cell._asdict(), "setting": asdict(job.setting), "seed": job.seed}
    part.write_text(json.dumps(facts | {"outcome": {"cosine": cosines}}) + "\n")
    part.rename(job.file)
    return cosines


def run(
    cells: Sequence[str] = ("all",),
    pictures: int = 20,
    seeds: int = 2,
    held_out: int = 256,
    jobs: str = "outputs/strength",
    workers: int = 1,
) -> list[BenchmarkTable]:
    """The cosine that each attack reaches with the same number of gradients, in cells of a grid.

    A table of how many are won, then one for each with its contestants. Every finished attack is a file in the folder
    `jobs`: a run that was stopped continues.
    """
    groups = {"all": CELLS, "real": REAL_CELLS} | {str(cell): (cell,) for cell in CELLS + REAL_CELLS}
    if strange := [name for name in cells if name not in groups]:
        raise ValueError(f"`--cells` must name some of {', '.join(groups)}; got {strange[0]!r}")
    chosen_cells = [*dict.fromkeys(cell for name in cells for cell in groups[name])]
    for arch in {cell.arch for cell in chosen_cells}:
        network(arch, Path(jobs))  # trained before several processes need it
    with spread_over(workers) as spread:
        results = [compare_cell(cell, pictures, seeds, held_out, Path(jobs), spread) for cell in chosen_cells]
    return [verdict_table(results), *(entry.table() for entry in results)]


def compare_cell(
    cell: StrengthCell, count: int, seeds: int, views: int, folder: Path, spread: Map[StrengthJob, list[float]]
) -> "CellResult":
    """Screen the settings of each installed peer, attack with the best of each and with ours."""

    def outcomes(title: str, plan: Mapping[Key, Sequence[StrengthJob]]) -> dict[Key, list[list[float]]]:
        """The outcomes of all jobs of each row."""
        jobs, results = [*itertools.chain(*plan.values())], []
        with Progress(title, len(jobs)) as progress:
            for cosines in spread(strength_outcome, jobs):
                results.append(cosines)
                progress.step(cosine=statistics.fmean(cosines))
        remaining = iter(results)
        return {key: [*itertools.islice(remaining, len(row))] for key, row in plan.items()}

    def job(name: str, setting: Setting, purpose: Purpose, seed: int) -> StrengthJob:
        judges = min(SCREEN_VIEWS, views) if purpose == "screen" else views
        return StrengthJob(cell, name, setting, purpose, seed, count, judges, folder)

    exist = [name for name in CONTESTANTS if cell.ball != "l2" or name not in LINF_ATTACKS]
    peers = {name: CONTESTANTS[name].grid for name in exist if name != OURS and CONTESTANTS[name].installed}
    pairs = [(name, setting) for name, grid in peers.items() for setting in grid if 2 * setting.views <= cell.evals]
    screening = outcomes(f"{cell}, settings", {pair: [job(*pair, "screen", 0)] for pair in pairs})
    best: dict[str, Setting] = {}
    for name, setting in sorted(screening, key=lambda pair: statistics.fmean(screening[pair][0])):
        best.setdefault(name, setting)
    (our_setting,) = CONTESTANTS[OURS].grid
    settings = {**best, OURS: our_setting}
    plan = {name: [job(name, setting, "table", seed) for seed in range(seeds)] for name, setting in settings.items()}
    missing: dict[str, Row] = {name: MISSING for name in exist if name not in settings}
    return CellResult(cell, best, outcomes(str(cell), plan), missing)


@dataclass(frozen=True)
class CellResult:
    """All contestants on one cell: each peer's best setting; by contestant the cosines of each seed; and the
    contestants that are missing."""

    cell: StrengthCell
    settings: dict[str, Setting]
    cosines: dict[str, list[list[float]]]
    missing: dict[str, Row]

    def cosine(self, key: str) -> Tensor:
        """(B,seeds)."""
        return torch.tensor(self.cosines[key], dtype=torch.float64).T

    def difference(self, name: str) -> tuple[float, float, float]:
        """Ours less a peer, paired by picture, with Student's 95 % interval: below zero, ours is lower."""
        units = (self.cosine(OURS) - self.cosine(name)).mean(1).numpy()
        low, high = (
            scipy.stats.ttest_1samp(units, 0).confidence_interval() if len(units) > 1 else (units[0], units[0])
        )
        return float(units.mean()), float(low), float(high)

    @property
    def verdict(self) -> Verdict:
        """Whether ours is significantly lower than every peer, higher than any, or neither."""
        intervals = [self.difference(name) for name in self.settings]
        if any(low > 0 for _, low, _ in intervals):
            return "beaten"
        return "lowest" if all(high < 0 for *_, high in intervals) else "level"

    def table(self) -> BenchmarkTable:
        """The contestants."""
        rows: dict[str, Row] = {}
        for name in (OURS, *self.settings):
            mean, low, high = self.difference(name)
            rows[name] = (float(self.cosine(name).mean()), -mean, -high, -low)
        heads = {"cosine": ".4f"} | dict.fromkeys(("- ours", "low", "high"), "+.4f")
        notes = (f"ours: {self.verdict}", *(f"{name}: {setting}" for name, setting in self.settings.items()))
        count, seeds = self.cosine(OURS).shape
        title = f"Mean cosine, lower is stronger: {self.cell}, {count} pictures, {seeds} seeds"
        return BenchmarkTable(title, heads, rows | self.missing, notes)


def verdict_table(results: Sequence[CellResult]) -> BenchmarkTable:
    """How many cells are won against every peer, and against each one alone."""

    def row(entry: Sequence[CellResult]) -> Row:
        verdicts = [comparison_of_cell.verdict for comparison_of_cell in entry]
        return tuple(float(verdicts.count(name)) for name in ("lowest", "level", "beaten"))

    rows = {ALL_PEERS: row(results)}
    for name in dict.fromkeys(name for entry in results for name in entry.settings):
        single_comparisons = [
            replace(entry, settings={name: entry.settings[name]}) for entry in results if name in entry.settings
        ]
        rows[name] = row(single_comparisons)
    return BenchmarkTable(
        f"Cells that ours wins, at 95 %, paired by picture, of {len(results)}",
        {"lowest": ".0f", "level": ".0f", "beaten": ".0f"},
        rows,
        ("lowest: significantly below every peer, or this one; beaten: significantly above one; level: neither",),
    )

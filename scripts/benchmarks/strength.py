"""The strength of attacks for equal numbers of gradients: ours as shipped, each peer at its best setting."""

import itertools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from scipy.stats import ttest_1samp
from torch import Tensor

from attacks.runtime.files import write_json
from attacks.runtime.progress import Progress

from .contest import OURS, Contestant, Map, Setting, spread_over
from .strength_case import BALLS, REAL_SIZE, SIZE, VIEWS, anchor_of, strength_bank, strength_pictures, task
from .strength_encoders import REAL_ENCODERS, network
from .strength_peers import CONTESTANTS, fits
from .strength_queries import QUERY_CONTESTANTS, WHITE_BOX
from .table import MISSING, BenchmarkTable, Row

SCREEN_VIEWS = 64
#: One picture chooses one in HALVING of a peer's settings, and some more the best of these (successive halving,
#: Jamieson & Talwalkar 2016).
HALVING = 3

Purpose = Literal["table", "screen", "first"]
Verdict = Literal["lowest", "level", "beaten"]
Key = TypeVar("Key")
#: The row of the verdicts on all peers together.
ALL_PEERS = "every peer"


class StrengthCell(NamedTuple):
    """One comparison: encoder, views, ball, a number of gradients (or "queries") of each picture, and goal."""

    arch: str
    views: str
    ball: str
    evals: int
    unit: str = "gradients"
    goal: str = "away"

    def __str__(self) -> str:
        ball = self.ball if self.goal == "away" else f"{self.ball}-{self.goal}"
        return "-".join(map(str, self._replace(ball=ball)[:5])).removesuffix("-gradients")

    @property
    def side(self) -> int:
        """Of the pictures, in pixels."""
        return REAL_SIZE if self.arch in REAL_ENCODERS else SIZE

    @property
    def contestants(self) -> Mapping[str, Contestant]:
        if self.unit == "queries":
            return QUERY_CONTESTANTS
        return {name: entry for name, entry in CONTESTANTS.items() if fits(name, self.ball)}


def grid_cells(lines: str) -> tuple[StrengthCell, ...]:
    """Cells: of each line encoder, views, ball, number of gradients and goal."""
    rows = [line.split() for line in lines.strip().splitlines()]
    return tuple(StrengthCell(arch, views, ball, int(evals), goal=goal) for arch, views, ball, evals, goal in rows)


#: A fraction of the whole grid: every encoder with all five kinds of views; balls, goals and numbers of gradients are
#: spread over them.
CELLS = grid_cells(
    """
    pocket    mild       linf8   32  away
    pocket    camera     linf8   128 away
    pocket    heavy      linf16  32  toward
    pocket    jpeg       l2      128 toward
    pocket    downscale  patch   512 away
    convnext  mild       l2      32  toward
    convnext  camera     patch   128 away
    convnext  heavy      linf8   512 away
    convnext  jpeg       linf4   128 away
    convnext  downscale  linf16  32  away
    vit       mild       patch   32  away
    vit       camera     linf4   512 toward
    vit       heavy      l2      128 away
    vit       jpeg       linf16  32  away
    vit       downscale  linf8   128 toward
    """
)
#: Likewise of real encoders at 224 pixels.
REAL_CELLS = grid_cells(
    """
    lite0  camera     linf4   64  away
    lite0  camera     linf4   256 away
    lite0  camera     linf8   64  away
    lite0  downscale  linf4   64  away
    lite0  jpeg       linf2   64  away
    lite0  mild       linf2   32  class
    lite0  heavy      linf16  64  toward
    lite2  web        linf4   64  away
    lite2  camera     linf8   32  toward
    lite2  jpeg       linf4   32  class
    lite2  downscale  l2      64  away
    lite2  mild       patch   32  away
    """
)
#: Of encoders that can only be asked; "none": the picture itself is the view.
QUERY_CELLS = tuple(
    StrengthCell(arch, views, "linf8", count, "queries")
    for arch, views, counts in (
        ("pocket", "none", (500, 1000, 3000, 10_000)),
        ("hash", "none", (500, 1000, 3000, 10_000)),
        ("pocket", "camera", (500, 1000, 3000)),
        ("lite0", "none", (500, 1000)),
    )
    for count in counts
)
#: The cell of all first rounds of real encoders.
REAL_FIRST = StrengthCell(REAL_ENCODERS[0], "camera", "linf8", 64)
#: The shares of a cell's gradients that ours has, too, for how many it needs to the best peer's value.
SHARES = (0.25, 0.5, 0.75)


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
    cell = job.cell
    views, ball = VIEWS[cell.views](cell.side), BALLS[cell.ball](cell.side)
    judges = job.views if views.dims else 1
    images, targets = (strength_pictures(job.count, purpose, cell.arch) for purpose in (job.purpose, "screen"))
    encoder = network(cell.arch, job.folder, cell.goal == "class")
    anchor = anchor_of(cell.goal, encoder, images, targets)
    question = task(encoder, images, ball, views, cell.evals, job.seed, anchor)
    attacked_images = job.cell.contestants[job.name].prepare(question, job.setting)()
    cosines = question.score(attacked_images, strength_bank(views, judges, job.purpose)).double().mean(1).tolist()
    job.file.parent.mkdir(parents=True, exist_ok=True)
    facts = {"cell": job.cell._asdict(), "setting": asdict(job.setting), "seed": job.seed}
    write_json(job.file, facts | {"outcome": {"cosine": cosines}})
    return cosines


def run(
    cells: Sequence[str] = ("all",),
    pictures: int = 20,
    seeds: int = 2,
    held_out: int = 256,
    jobs: str = "outputs/strength",
    workers: int = 1,
) -> list[BenchmarkTable]:
    """The cosine that each attack reaches with the same number of gradients, in cells of a grid."""
    groups: dict[str, tuple[StrengthCell, ...]] = {"all": CELLS, "real": REAL_CELLS, "queries": QUERY_CELLS}
    groups |= {str(cell): (cell,) for cell in CELLS + REAL_CELLS + QUERY_CELLS}
    if strange := [name for name in cells if name not in groups]:
        raise ValueError(f"`--cells` must name some of {', '.join(groups)}; got {strange[0]!r}")
    chosen_cells = [*dict.fromkeys(cell for name in cells for cell in groups[name])]
    for arch in {cell.arch for cell in chosen_cells}:
        network(arch, Path(jobs))  # trained before several processes need it
    with spread_over(workers) as spread:
        results = [compare_cell(cell, pictures, seeds, held_out, Path(jobs), spread) for cell in chosen_cells]
    by_gradients = [entry for entry in results if entry.cell.unit == "gradients"]
    tables = [verdict_table(results), *([gradients_table(by_gradients)] if by_gradients else [])]
    return [*tables, *(entry.table() for entry in results)]


def compare_cell(
    cell: StrengthCell, count: int, seeds: int, views: int, folder: Path, spread: Map[StrengthJob, list[float]]
) -> "CellResult":
    """Choose the setting of each installed peer, by successive halving (`HALVING`); attack with it, and with ours."""

    def outcomes(title: str, plan: Mapping[Key, Sequence[StrengthJob]]) -> dict[Key, list[list[float]]]:
        keys, results = [key for key, row in plan.items() for _ in row], {key: list[list[float]]() for key in plan}
        with Progress(title, len(keys)) as progress:
            for key, cosines in zip(keys, spread(strength_outcome, [*itertools.chain(*plan.values())]), strict=True):
                results[key].append(cosines)
                progress.step(cosine=statistics.fmean(cosines))
        return results

    def job(name: str, setting: Setting, purpose: Purpose, seed: int) -> StrengthJob:
        judges = views if purpose == "table" else min(SCREEN_VIEWS, views)
        return StrengthJob(cell_of(cell, purpose), name, setting, purpose, seed, count, judges, folder)

    def ranked(purpose: Purpose, grids: Mapping[str, Sequence[Setting]]) -> dict[str, list[Setting]]:
        """The settings of each peer, the best first."""
        plan = {(name, setting): [job(name, setting, purpose, 0)] for name, grid in grids.items() for setting in grid}
        means = {pair: statistics.fmean(rows[0]) for pair, rows in outcomes(f"{cell}, settings", plan).items()}
        return {name: sorted(grid, key=lambda setting: means[name, setting]) for name, grid in grids.items()}

    contestants = cell.contestants
    installed = {name: entry.grid for name, entry in contestants.items() if entry.installed}
    peers = {name: grid for name, grid in installed.items() if name not in (OURS, WHITE_BOX)}
    grids = {name: [setting for setting in grid if 2 * setting.views <= cell.evals] for name, grid in peers.items()}
    remaining = {name: grid[: math.ceil(len(grid) / HALVING)] for name, grid in ranked("first", grids).items()}
    best = {name: grid[0] for name, grid in ranked("screen", remaining).items()}
    settings = best | {name: installed[name][0] for name in (OURS, WHITE_BOX) if name in installed}
    plan = {name: [job(name, setting, "table", seed) for seed in range(seeds)] for name, setting in settings.items()}
    for evals in (int(share * cell.evals) for share in SHARES if cell.unit == "gradients"):
        plan[f"{OURS}, {evals}"] = [replace(entry, cell=cell._replace(evals=evals)) for entry in plan[OURS]]
    missing: dict[str, Row] = {name: MISSING for name in contestants if name not in settings}
    return CellResult(cell, best, outcomes(str(cell), plan), missing)


def cell_of(cell: StrengthCell, purpose: Purpose) -> StrengthCell:
    """That of a cell's jobs. A real encoder takes long: settings for any are chosen on the first one, and the first
    round of all cells is that of one cell with as many gradients."""
    if cell.arch not in REAL_ENCODERS or purpose == "table" or cell.unit == "queries":
        return cell
    return cell._replace(arch=REAL_ENCODERS[0]) if purpose == "screen" else REAL_FIRST._replace(evals=cell.evals)


@dataclass(frozen=True)
class CellResult:
    """All contestants on one cell: each peer's best setting, the cosines of each seed, and which are missing."""

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
        low, high = ttest_1samp(units, 0).confidence_interval() if len(units) > 1 else (units[0], units[0])
        return float(units.mean()), float(low), float(high)

    @property
    def p_values(self) -> tuple[float, float]:
        """One-sided, that ours is not lower than every peer (the largest of all), and that no peer is lower than ours
        (the smallest, times their number)."""
        pairs = [self.cosine(OURS).mean(1).numpy() - self.cosine(name).mean(1).numpy() for name in self.settings]
        lower, higher = (
            [float(ttest_1samp(units, 0, alternative=side).pvalue) for units in pairs] for side in ("less", "greater")
        )
        return max(lower), min(1.0, len(higher) * min(higher))

    @property
    def verdict(self) -> Verdict:
        """Whether ours is significantly lower than every peer, higher than any, or neither."""
        intervals = [self.difference(name) for name in self.settings]
        if any(low > 0 for _, low, _ in intervals):
            return "beaten"
        return "lowest" if all(high < 0 for *_, high in intervals) else "level"

    @property
    def share_of_gradients(self) -> float:
        """Of its gradients those that ours needs to the value of the best peer, between the shares that were run: at
        most the smallest of these, and infinity where it is not reached."""
        goal = min(float(self.cosine(name).mean()) for name in self.settings)
        values = [float(self.cosine(f"{OURS}, {int(share * self.cell.evals)}").mean()) for share in SHARES]
        points = [*zip(SHARES, values, strict=True), (1.0, float(self.cosine(OURS).mean()))]
        if points[0][1] <= goal:
            return points[0][0]
        for (share, value), (next_share, next_value) in itertools.pairwise(points):
            if next_value <= goal:
                return share + (next_share - share) * (value - goal) / (value - next_value)
        return math.inf

    def table(self) -> BenchmarkTable:
        rows: dict[str, Row] = {}
        for name in (OURS, *self.settings, *({WHITE_BOX} & {*self.cosines})):
            mean, low, high = self.difference(name)
            rows[name] = (float(self.cosine(name).mean()), -mean, -high, -low)
        heads = {"cosine": ".4f"} | dict.fromkeys(("- ours", "low", "high"), "+.4f")
        notes = (f"ours: {self.verdict}", *(f"{name}: {setting}" for name, setting in self.settings.items()))
        count, seeds = self.cosine(OURS).shape
        title = f"Mean cosine, lower is stronger: {self.cell}, {count} pictures, {seeds} seeds"
        return BenchmarkTable(title, heads, rows | self.missing, notes)


def verdict_table(results: Sequence[CellResult]) -> BenchmarkTable:
    """How many cells are won against every peer, also with Holm's correction, and against each one alone."""

    def row(entry: Sequence[CellResult]) -> Row:
        verdicts = [result.verdict for result in entry]
        return tuple(float(verdicts.count(name)) for name in ("lowest", "level", "beaten"))

    rows = {ALL_PEERS: row(results)}
    if len(results[0].cosine(OURS)) > 1:
        lowest, beaten = (holm(p_values) for p_values in zip(*(entry.p_values for entry in results), strict=True))
        rows[f"{ALL_PEERS}, Holm"] = (float(lowest), float(len(results) - lowest - beaten), float(beaten))
    for name in dict.fromkeys(name for entry in results for name in entry.settings):
        rows[name] = row([replace(e, settings={name: e.settings[name]}) for e in results if name in e.settings])
    return BenchmarkTable(
        f"Cells that ours wins, at 95 %, paired by picture, of {len(results)}",
        {"lowest": ".0f", "level": ".0f", "beaten": ".0f"},
        rows,
        ("lowest: significantly below every peer, or this one; beaten: significantly above one; level: neither",),
    )


def holm(p_values: Sequence[float]) -> int:
    """How many of several one-sided hypotheses are rejected (Holm 1979)."""
    count = len(p_values)
    return next((i for i, p in enumerate(sorted(p_values)) if p > 0.025 / (count - i)), count)


def gradients_table(results: Sequence[CellResult]) -> BenchmarkTable:
    """The share of its gradients that ours needs to the best peer's value: the median over cells, by encoder."""
    shares = {"all": [entry.share_of_gradients for entry in results]}
    for entry, share in zip(results, shares["all"], strict=True):
        shares.setdefault(entry.cell.arch, []).append(share)
    rows: dict[str, Row] = {name: (statistics.median(group), float(len(group))) for name, group in shares.items()}
    title = "Share of its gradients that ours needs to the best peer's cosine, median"
    return BenchmarkTable(title, {"share": ".2f", "cells": ".0f"}, rows, ("inf: not reached",))

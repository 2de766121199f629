"""The strength of attacks for equal numbers of gradients: ours by one rule, peers as documented and tuned."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contest import OURS, Contestant, Setting, entries, outcomes
from .processes import Map, processes
from .strength_case import GROUP, SIZE, Purpose, group, held_out, pictures
from .strength_peers import CONTESTANTS, PATCHES
from .table import Row, Table, student

#: The curve: shares of the evaluations, and how many of the held-out views each point is scored on.
SHARES, CURVE_VIEWS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 1), 32
TUNING_VIEWS = 64


class Cell(NamedTuple):
    """One comparison: an encoder, a radius in 255ths (None: a patch), and a number of gradients of each picture."""

    arch: str
    eps: int | None
    evals: int

    def __str__(self) -> str:
        return f"{self.arch} {self.what} {self.evals}"

    @property
    def what(self) -> str:
        return "patch" if self.eps is None else f"{self.eps}/255"

    @property
    def radius(self) -> float:
        """Of the L-inf ball; a patch has all of [0,1]."""
        return 1.0 if self.eps is None else self.eps / 255

    @property
    def contestants(self) -> dict[str, Contestant]:
        return PATCHES if self.eps is None else CONTESTANTS


class Job(NamedTuple):
    """One attack on one group of all pictures: `first` is the first of them. `marks` are the evaluations after
    which the pictures are scored; the last is the attack's length. Curves have fewer views than the last score."""

    cell: Cell
    name: str
    setting: Setting
    total: int
    first: int
    marks: tuple[int, ...]
    views: int
    purpose: Purpose = "evaluate"


class Outcome(NamedTuple):
    """The cosines (B,V) of a group at the attack's end, their mean over some views (B,) at each mark, and what all
    pictures together cost: `gradients`, and the passes without one."""

    cosine: Tensor
    curve: dict[int, Tensor]
    gradients: int
    forwards: int


def work(job: Job) -> Outcome:
    """The result depends on the job alone."""
    images, end = pictures(job.total, job.purpose)[job.first : job.first + GROUP], job.marks[-1]
    question = group(job.cell.arch, images, job.cell.radius, job.marks, job.first)
    attacked = job.cell.contestants[job.name].run(question, job.setting)
    gradients, forwards = question.counted.gradients, question.counted.forwards
    views = held_out(job.purpose, job.views)
    cosine = question.score(attacked[end], views)
    some = views._replace(u=views.u[:CURVE_VIEWS])
    curve = {mark: question.score(part, some).mean(1) for mark, part in attacked.items() if mark != end}
    return Outcome(cosine, curve | {end: cosine[:, :CURVE_VIEWS].mean(1)}, gradients, forwards - gradients)


def joined(parts: Sequence[Outcome]) -> Outcome:
    """The groups' outcomes as one."""
    curve = {mark: torch.cat([part.curve[mark] for part in parts]) for mark in parts[0].curve}
    gradients, forwards = sum(part.gradients for part in parts), sum(part.forwards for part in parts)
    return Outcome(torch.cat([part.cosine for part in parts]), curve, gradients, forwards)


def run(
    arch: Sequence[str] = ("pocket", "resnet18"),
    pictures: int = 50,
    evals: Sequence[int] = (256, 1024),
    eps: Sequence[int] = (4, 8),
    no_patch: bool = False,
    held_out: int = 512,
    workers: int = 1,
) -> list[Table]:
    """The cosine that each attack reaches with the same number of gradients.

    A table of all cells (encoders, radii and a patch, numbers of gradients), then for each its contestants and their
    curves.
    """
    radii = [*eps, *([] if no_patch else [None])]
    cells = [Cell(*cell) for cell in itertools.product(arch, radii, evals)]
    with processes(workers) as spread:
        results = [compared(cell, pictures, held_out, spread) for cell in cells]
    overview = Table(
        f"Strength: ours against the best peer, {pictures} pictures of {SIZE}x{SIZE}, {held_out} held-out views",
        {"ours": ".4f", "best peer": ".4f", "- peer": "+.4f", "low": "+.4f", "high": "+.4f", "share": ".2f"},
        {str(each.cell): each.summary() for each in results},
        None,
        (
            *(f"{each.cell}: best peer is {each.best}" for each in results),
            "share: of the peer's gradients, what ours needs to come as low ('-': more than all)",
        ),
    )
    return [overview, *(table for each in results for table in each.tables())]


@dataclass(frozen=True)
class Comparison:
    """All contestants on one cell: by row of the table its contestant and setting, and its outcome over all groups;
    and the contestants that are missing."""

    cell: Cell
    settings: dict[str, tuple[str, Setting]]
    missing: dict[str, Row]
    outcomes: dict[str, Outcome]

    @property
    def best(self) -> str:
        """The row of the strongest peer."""
        means = {row: float(each.cosine.mean()) for row, each in self.outcomes.items() if not row.startswith(OURS)}
        return min(means, key=means.__getitem__) if means else OURS

    def summary(self) -> Row:
        """Ours, the best peer, the paired difference with its interval, and the share of the best peer's evaluations
        that ours needs to come as low as that ends (None: more than all)."""
        mine, theirs = self.outcomes[OURS], self.outcomes[self.best]
        points = [(mark, float(mine.curve[mark].mean())) for mark in marks(self.cell.evals)]
        share = reached(points, float(theirs.curve[self.cell.evals].mean()), self.cell.evals)
        means = float(mine.cosine.mean()), float(theirs.cosine.mean())
        return (*means, *self.apart(mine.cosine - theirs.cosine)[:3], share)

    def apart(self, difference: Tensor) -> tuple[float, float, float]:
        """The mean of differences (B,V) with its interval over pictures; of patches over groups, which share one."""
        if self.cell.eps is None:
            difference = torch.stack([part.mean(0) for part in difference.split(GROUP)])
        return student(difference)

    def tables(self) -> list[Table]:
        """The contestants, and their curves."""
        rows: dict[str, Row] = {}
        for row, each in self.outcomes.items():
            apart = self.apart(each.cosine - self.outcomes[OURS].cosine)
            spent = each.gradients / len(each.cosine), each.forwards / len(each.cosine)
            rows[row] = (float(each.cosine.mean()), *apart[:3], *spent)
        what = f"{self.cell.arch}, {self.cell.what}, {self.cell.evals} gradients a picture"
        heads = {"cosine": ".4f"} | dict.fromkeys(("- ours", "low", "high"), "+.4f")
        heads |= {"gradients": ".0f", "forward": ".0f"}
        notes = tuple(f"{row}: {setting}" for row, (_, setting) in self.settings.items())
        points = marks(self.cell.evals)
        curve: dict[str, Row] = {
            row: tuple(float(each.curve[mark].mean()) if mark in each.curve else None for mark in points)
            for row, each in self.outcomes.items()
            if len(each.curve) > 1
        }
        return [
            Table(f"Mean cosine, lower is stronger: {what}", heads, rows | self.missing, None, notes),
            Table(f"Mean cosine by gradients: {what}", {str(mark): ".4f" for mark in points}, curve, "lines"),
        ]


def compared(cell: Cell, count: int, views: int, spread: Map[Job, Outcome]) -> Comparison:
    """Attack `count` pictures with every contestant. A peer's curve comes with its attack, for its step does not
    depend on the number of steps; each point of ours is an attack of that length."""

    def results(title: str, plan: Mapping[Any, Sequence[Job]]) -> dict[Any, list[Outcome]]:
        return outcomes(title, work, plan, lambda each: {"cosine": float(each.cosine.mean())}, spread)

    def tuned(name: str, grid: Sequence[Setting]) -> Setting:
        """The setting with the lowest mean on pictures and views that are not in the table."""
        plan = {each: [Job(cell, name, each, count, 0, (cell.evals,), TUNING_VIEWS, "tune")] for each in grid}
        scores = results(f"tuning {name}", plan)
        return min(grid, key=lambda each: float(scores[each][0].cosine.mean()))

    def jobs(name: str, setting: Setting, at: tuple[int, ...]) -> list[Job]:
        shown = views if at[-1] == cell.evals else min(views, CURVE_VIEWS)
        return [Job(cell, name, setting, count, first, at, shown) for first in range(0, count, GROUP)]

    settings, missing = entries(cell.contestants, cell.radius, cell.evals, tuned)
    points, ours = marks(cell.evals), cell.contestants[OURS].default
    plan: dict[str | int, list[Job]] = {}
    for row, (name, setting) in settings.items():
        plan[row] = jobs(name, setting, points if cell.contestants[name].grid else points[-1:])
    plan |= {mark: jobs(OURS, ours(cell.radius, mark), (mark,)) for mark in points[:-1]}
    parts = {key: joined(each) for key, each in results(f"attacking {cell}", plan).items()}
    for mark in points[:-1]:
        parts[OURS].curve.update(parts[mark].curve)
    return Comparison(cell, settings, missing, {row: parts[row] for row in settings})


def marks(evals: int) -> tuple[int, ...]:
    """The evaluations at which a curve has its points."""
    return tuple(sorted({max(1, round(share * evals)) for share in SHARES}))


def reached(points: Sequence[tuple[int, float]], goal: float, evals: int) -> float | None:
    """Where a falling curve (evaluations, value) first comes down to `goal`, as a share of `evals`; None if nowhere.
    Between its points it falls in a straight line over the logarithm."""
    if points[0][1] <= goal:
        return points[0][0] / evals
    for (start, high), (end, low) in itertools.pairwise(points):
        if low <= goal:
            return float(start * (end / start) ** ((high - goal) / (high - low)) / evals)
    return None

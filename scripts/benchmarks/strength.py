"""The strength of attacks for equal numbers of gradients: ours by one rule, peers as documented and tuned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks import interval
from attacks.evaluation.intervals import Interval

from .contest import OURS, Contestant, Setting, Spread, done, entries, processes
from .strength_case import GROUP, SIZE, Purpose, group, held_out, pictures
from .strength_patch import PATCHES
from .strength_peers import CONTESTANTS
from .table import Row, Table

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
    """One attack on one group of pictures: `first` is the first of them. `marks` are the evaluations after which the
    pictures are scored; the last is the attack's length. Curves have fewer views than the last score."""

    cell: Cell
    name: str
    setting: Setting
    first: int
    pictures: int
    purpose: Purpose
    marks: tuple[int, ...]
    views: int
    device: str


class Outcome(NamedTuple):
    """The cosines (B,V) of a group at the attack's end, their mean over some views (B,) at each mark, and what each
    picture cost: `gradients`, and the passes without one."""

    cosine: Tensor
    curve: dict[int, Tensor]
    gradients: float
    forwards: float


def work(job: Job) -> Outcome:
    """The result depends on the job alone."""
    images = pictures(job.pictures, job.purpose)[job.first : job.first + GROUP]
    question = group(job.cell.arch, images, job.cell.radius, job.marks, job.first, job.device)
    attacked = job.cell.contestants[job.name].run(question, job.setting)
    spent = question.counted
    gradients, forwards = spent.gradients / len(images), (spent.forwards - spent.gradients) / len(images)
    views = held_out(job.purpose, job.views)
    some = views._replace(u=views.u[:CURVE_VIEWS])
    cosine = question.score(attacked[job.marks[-1]], views)
    curve = {mark: question.score(part, some).mean(1) for mark, part in attacked.items() if mark != job.marks[-1]}
    return Outcome(cosine, curve | {job.marks[-1]: cosine[:, :CURVE_VIEWS].mean(1)}, gradients, forwards)


def run(
    archs: Sequence[str],
    count: int,
    budgets: Sequence[int],
    radii: Sequence[int | None],
    views: int,
    device: str = "cpu",
    workers: int = 1,
) -> list[Table]:
    """A table of all cells, then for each its contestants and their curves.

    Args:
        archs, budgets, radii: the cells: encoders, evaluations of each picture, eps in 255ths, or None for a patch.
        count: pictures.
        views: held-out views.
        workers: processes that share the work, each with one thread; the figures do not depend on it.
    """
    cells = [Cell(*cell) for cell in itertools.product(archs, radii, budgets)]
    with processes(workers) as spread:
        compared = [Comparison(cell, count, views, device, spread) for cell in cells]
        tables = [table for each in compared for table in each.tables()]
    return [summary(compared, count, views), *tables]


class Comparison:
    """All contestants on one cell."""

    def __init__(self, cell: Cell, count: int, views: int, device: str, spread: Spread[Job, Outcome]) -> None:
        self.cell, self.count, self.views, self.device, self.spread = cell, count, views, device, spread
        self.marks = marks(cell.evals)
        self.settings, self.missing = entries(cell.contestants, cell.radius, cell.evals, self.tuned)
        self.outcomes = self._attack()

    def jobs(self, name: str, setting: Setting, marks: tuple[int, ...]) -> list[Job]:
        """One row, group by group."""
        first = range(0, self.count, GROUP)
        views = self.views if marks[-1] == self.cell.evals else min(self.views, CURVE_VIEWS)
        return [Job(self.cell, name, setting, at, self.count, "evaluate", marks, views, self.device) for at in first]

    def tuned(self, name: str, grid: Sequence[Setting]) -> Setting:
        """The setting with the lowest mean on pictures and views that are not in the table."""
        evals = (self.cell.evals,)
        jobs = [Job(self.cell, name, s, 0, self.count, "tune", evals, TUNING_VIEWS, self.device) for s in grid]
        means = [float(outcome.cosine.mean()) for outcome in self._do(f"tuning {name}", jobs)]
        return grid[means.index(min(means))]

    def _attack(self) -> dict[str, Outcome]:
        """Every row over all groups. A peer's curve comes with its attack, for its step does not depend on the number
        of steps; each point of ours is an attack of that length."""
        plan = {}
        for row, (name, setting) in self.settings.items():
            marks = self.marks if self.cell.contestants[name].grid else self.marks[-1:]
            plan[row, self.cell.evals] = self.jobs(name, setting, marks)
        mine = self.cell.contestants[OURS].default
        for mark in self.marks[:-1]:
            plan[OURS, mark] = self.jobs(OURS, mine(self.cell.radius, mark), (mark,))
        results = iter(self._do(f"attacking {self.cell}", [job for jobs in plan.values() for job in jobs]))
        parts = {key: _joined([next(results) for _ in jobs]) for key, jobs in plan.items()}
        outcomes = {row: parts[row, self.cell.evals] for row in self.settings}
        for mark in self.marks[:-1]:
            outcomes[OURS].curve.update(parts[OURS, mark].curve)
        return outcomes

    def _do(self, name: str, jobs: Sequence[Job]) -> list[Outcome]:
        return done(name, work, jobs, lambda outcome: {"cosine": float(outcome.cosine.mean())}, self.spread)

    @property
    def best(self) -> str:
        """The row of the strongest peer."""
        means = {row: float(each.cosine.mean()) for row, each in self.outcomes.items() if not row.startswith(OURS)}
        return min(means, key=means.__getitem__) if means else OURS

    def share(self) -> float | None:
        """The evaluations that ours needs to come as low as the best peer ends, over the peer's; None if more than
        all. Between the points of the curve it falls in a straight line over the logarithm."""
        goal = float(self.outcomes[self.best].curve[self.cell.evals].mean())
        points = [(mark, float(self.outcomes[OURS].curve[mark].mean())) for mark in self.marks]
        return reached(points, goal, self.cell.evals)

    def summary(self) -> Row:
        """Ours, the best peer, the paired difference with its interval, and the share of the evaluations."""
        mine, theirs = self.outcomes[OURS].cosine, self.outcomes[self.best].cosine
        return (float(mine.mean()), float(theirs.mean()), *self.apart(mine - theirs), self.share())

    def apart(self, difference: Tensor) -> Interval:
        """The mean of differences (B,V) with its interval over pictures; of patches over groups, which share one."""
        if self.cell.eps is None:
            difference = torch.stack([part.mean(0) for part in difference.split(GROUP)])
        return interval(difference)

    def tables(self) -> list[Table]:
        """The contestants, and their curves."""
        mine = self.outcomes[OURS].cosine
        rows: dict[str, Row] = {
            row: (float(each.cosine.mean()), *self.apart(each.cosine - mine), each.gradients, each.forwards)
            for row, each in self.outcomes.items()
        }
        rows |= self.missing
        what = f"{self.cell.arch}, {self.cell.what}, {self.cell.evals} gradients a picture"
        heads = {"cosine": ".4f"} | dict.fromkeys(("- ours", "low", "high"), "+.4f")
        heads |= {"gradients": ".0f", "forward": ".0f"}
        notes = tuple(f"{row}: {setting}" for row, (_, setting) in self.settings.items())
        curve: dict[str, Row] = {
            row: tuple(float(each.curve[mark].mean()) if mark in each.curve else None for mark in self.marks)
            for row, each in self.outcomes.items()
            if len(each.curve) > 1
        }
        return [
            Table(f"Mean cosine, lower is stronger: {what}", heads, rows, None, notes),
            Table(f"Mean cosine by gradients: {what}", {str(mark): ".4f" for mark in self.marks}, curve, "lines"),
        ]


def summary(compared: Sequence[Comparison], count: int, views: int) -> Table:
    """A row a cell."""
    return Table(
        f"Strength: ours against the best peer, {count} pictures of {SIZE}x{SIZE}, {views} held-out views",
        {"ours": ".4f", "best peer": ".4f", "- peer": "+.4f", "low": "+.4f", "high": "+.4f", "share": ".2f"},
        {str(each.cell): each.summary() for each in compared},
        None,
        (
            *(f"{each.cell}: best peer is {each.best}" for each in compared),
            "share: of the peer's gradients, what ours needs to come as low ('-': more than all)",
        ),
    )


def marks(evals: int) -> tuple[int, ...]:
    """The evaluations at which a curve has its points."""
    return tuple(sorted({max(1, round(share * evals)) for share in SHARES}))


def reached(points: Sequence[tuple[int, float]], goal: float, evals: int) -> float | None:
    """Where a falling curve (evaluations, value) first comes down to `goal`, as a share of `evals`."""
    before: tuple[int, float] | None = None
    for mark, value in points:
        if value <= goal:
            if before is None:
                return mark / evals
            part = (before[1] - goal) / (before[1] - value)
            return float(before[0] * (mark / before[0]) ** part / evals)
        before = (mark, value)
    return None


def _joined(parts: Sequence[Outcome]) -> Outcome:
    """The groups' outcomes as one; what a picture cost is the same in all, or their mean."""
    curve = {mark: torch.cat([part.curve[mark] for part in parts]) for mark in parts[0].curve}
    pictures = sum(len(part.cosine) for part in parts)
    gradients = sum(len(part.cosine) * part.gradients for part in parts) / pictures
    forwards = sum(len(part.cosine) * part.forwards for part in parts) / pictures
    return Outcome(torch.cat([part.cosine for part in parts]), curve, gradients, forwards)

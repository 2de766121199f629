"""The strength of patches for equal numbers of gradients: ours by one rule, ART's as documented and tuned."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .contest import OURS, Setting, entries, installed, outcomes
from .patch_case import GROUPS, SCENES, SIZE, TEXTURE, Ranges, question
from .patch_peers import CONTESTANTS, moving_patch
from .table import Row, Table, student

#: Views of each scene that choose a peer's setting.
TUNING_VIEWS = 32


class Cell(NamedTuple):
    """A goal, and where the patch may lie. The scales leave room for a difference: at 0.3 to 0.6 of a scene's side a
    patch hides nearly every scene, and is taken for hardly any target."""

    targeted: bool
    ranges: Ranges

    def __str__(self) -> str:
        low, high = self.ranges.scale
        askew = f", distortion {self.ranges.distortion:g}" if self.ranges.distortion else ""
        return f"{'toward a target' if self.targeted else 'away'}, scale {low:g} to {high:g}{askew}"


CELLS = (
    Cell(True, Ranges((0.5, 0.8))),
    Cell(True, Ranges((0.5, 0.8), distortion=0.2)),
    Cell(False, Ranges((0.2, 0.4))),
)


class Job(NamedTuple):
    """An attack of a contestant on a group of scenes, `evals` gradients of each, and how many `views` of each scene
    judge it, for each renderer."""

    cell: Cell
    group: int
    name: str
    setting: Setting
    evals: int
    views: int


class Outcome(NamedTuple):
    """Of one texture: whether each view succeeds, and its cosine to the anchor, (2,B,V) both: by our renderer, and
    by ART's. And the gradients of each scene that it took."""

    success: Tensor
    cosine: Tensor
    gradients: float


def work(job: Job) -> Outcome:
    """The texture of a job, as an 8-bit file holds it, on fresh placements. The result depends on the job alone."""
    task = question(job.group, job.cell.targeted, job.cell.ranges, job.evals)
    texture = CONTESTANTS[job.name].run(task, job.setting)[job.evals]
    gradients = task.counted.gradients / len(task.image)
    texture = (texture.clamp(0, 1) * 255).round() / 255
    judges = [task.ours(texture, job.views)]
    if installed("art"):
        attack, _, _ = moving_patch(task, Setting(1.0, 1), 1, "Adam")
        judges.append(task.theirs(attack._random_overlay, texture, job.views))
    cosine, success = zip(*(task.judged(views) for views in judges), strict=True)
    return Outcome(torch.stack(success).float(), torch.stack(cosine), gradients)


def run(evals: int = 64, groups: int = 6, held_out: int = 64) -> list[Table]:
    """A patch that lies anywhere, ours and ART's: success and cosine.

    Args:
        evals: gradients of each scene.
        groups: of scenes, for each a patch.
        held_out: placements in each scene that judge, for each renderer.

    Raises:
        ValueError: more groups than there are.
    """
    if not groups < GROUPS:
        raise ValueError(f"`--groups` must be at most {GROUPS - 1}, for the first one chooses settings; got {groups}")
    return [table for cell in CELLS for table in compared(cell, evals, groups, held_out)]


def compared(cell: Cell, evals: int, groups: int, views: int) -> tuple[Table, Table]:
    """All contestants on one cell, ART's with the defaults of its signature and tuned."""

    def results(title: str, plan: Mapping[Any, Sequence[Job]]) -> dict[Any, list[Outcome]]:
        return outcomes(title, work, plan, lambda o: {"success": float(o.success.mean())})

    def tuned(name: str, grid: Sequence[Setting]) -> Setting:
        """The setting with the most success on the first group, by the contestant's own renderer; among equals, that
        with the better cosine."""
        scores = results(f"tuning {name}", {each: [Job(cell, 0, name, each, evals, TUNING_VIEWS)] for each in grid})
        means = {each: (float(o.success[-1].mean()), float(o.cosine[-1].mean())) for each, (o,) in scores.items()}
        sign = 1 if cell.targeted else -1
        return max(grid, key=lambda each: (means[each][0], sign * means[each][1]))

    settings, missing = entries(CONTESTANTS, 1.0, evals, tuned)
    plan = {
        row: [Job(cell, group, name, setting, evals, views) for group in range(1, groups + 1)]
        for row, (name, setting) in settings.items()
    }
    scores = results(f"{cell}", plan)
    success, cosine = (
        {row: figures(measure, each, scores[OURS]) for row, each in scores.items()} | missing
        for measure in ("success", "cosine")
    )
    what = f"{cell}; {groups} groups of {SCENES} scenes, {evals} gradients of each"
    size = f"({SIZE}x{SIZE}, texture {TEXTURE}x{TEXTURE}), {views} views of each judge"
    notes = tuple(
        f"{row}: {setting}; {scores[row][0].gradients:g} gradients" for row, (_, setting) in settings.items()
    )
    better = "higher" if cell.targeted else "lower"
    return (
        Table(f"Success of a patch, {what} {size}", columns(3), success, "bars", notes),
        Table(f"Cosine to the anchor, {better} is stronger: {what}", columns(4), cosine),
    )


def columns(digits: int) -> dict[str, str]:
    """The heads of a table, with so many digits."""
    means, differences = ("by ours", "by ART"), ("- ours", "low", "high")
    return dict.fromkeys(means, f".{digits}f") | dict.fromkeys(differences, f"+.{digits}f")


def figures(name: str, mine: Sequence[Outcome], ours: Sequence[Outcome]) -> Row:
    """A row: the means by each renderer (ART's is None where it is missing), and over both the difference to ours,
    with its interval over groups, because the scenes of a group share a patch."""
    here, there = (torch.stack([getattr(o, name).mean((1, 2)) for o in each]) for each in (mine, ours))
    by = [float(value) for value in here.mean(0)]
    return (by[0], by[1] if len(by) > 1 else None, *student((here - there).mean(1, keepdim=True)))

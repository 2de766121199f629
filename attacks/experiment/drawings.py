"""The drawings and the report of a run, made from its results."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from attacks.data.images import to_bytes
from attacks.evaluation.classes import Classes
from attacks.evaluation.scores import Scores
from attacks.experiment.arms import trace_of
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.sections.section import Sections
from attacks.experiment.view_scores import ViewScores
from attacks.report.page import page
from attacks.report.warnings import warnings
from attacks.report.words import ARMS as NAMES
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import atomic
from transforms.compose import view
from transforms.scene import scene_of

#: The contact sheet shows so many views, the first of the held-out bank.
VIEWS = 6
#: The most letters of a class.
LETTERS = 24
#: Inches: the column of names, a column and a row of pictures, and what lies between pictures.
LEFT, COLUMN, ROW, MARGIN = 0.3, 1.42, 1.64, 0.08


def draw_sheets(out: Path, bench: Bench, scores: ViewScores, extras: Sections) -> None:
    """Write the drawings."""
    contact_sheet(out / "views.png", bench, scores.scores[MAIN])
    for name, result in extras.results.items():
        section = extras.sections[name]
        if section.figure is not None and result.drawing is not None:
            section.draw(out / section.figure, result.drawing)


def report_page(bench: Bench, content: dict[str, Any], record: Mapping[str, Any], scores: ViewScores) -> str:
    """The content of `report.html` of a run directory that has all other files but metrics.json."""
    out = bench.exhibits.out
    first = [line for line in trace_of(out) if line.batch == 0]
    choice = typical(bench, scores.scores[MAIN]), *most_fooled(bench, scores)
    return page(out, content, record, warnings(content), first, choice)


def typical(bench: Bench, scores: Mapping[str, Scores]) -> int:
    """The index of the judged picture with the median mean cosine under attack."""
    rows = bench.study.queries.judged
    cosine = scores["eot"].cosine[rows]
    return rows[int(cosine.mean(1).argsort()[(len(cosine) - 1) // 2])]


def most_fooled(bench: Bench, scores: ViewScores) -> tuple[int, float]:
    """The judged picture with the most success, of equals the one with the least mean cosine, and that success."""
    success, cosine = scores.success[MAIN]["eot"].double().mean(1), scores.scores[MAIN]["eot"].cosine.mean(1)
    worst = max(bench.study.queries.judged, key=lambda row: (float(success[row]), -float(cosine[row])))
    return worst, float(success[worst])


def contact_sheet(path: str | Path, bench: Bench, scores: Mapping[str, Scores]) -> None:
    """Save views of the typical picture, one row per arm: the file itself, then held-out views with their class or,
    without classes, their cosine to the clean embedding. The frame is red where they are taken for something else, or
    no longer accepted; grey without an answer."""
    picture, arms = typical(bench, scores), bench.study.arms
    gallery, has_classes = bench.study.gallery, isinstance(bench.study.gallery, Classes)
    study, bank, u = bench.study, bench.banks[MAIN], bench.banks[MAIN].u[:VIEWS]
    exhibits = replace(bench.exhibits, world=ALONE)  # the other processes do not listen
    size = LEFT + (len(u) + 1) * COLUMN, len(arms) * ROW
    figure = Figure(figsize=size, dpi=110)
    # A single axes, in inches: one for every picture takes three times as long.
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axis.set_axis_off()
    direct = "the file" if study.perturbation.texture_size is None else "head-on"
    for row, arm in enumerate(arms):
        axis.text(LEFT / 2, (row + 0.5) * ROW, NAMES[arm], fontsize=9, rotation=90, ha="center", va="center")
        _show(axis, (row, 0), exhibits.pictures(arm, [picture])[0], direct, "#888888")
        views = view(bank.transforms, scene_of(exhibits.displayed(arm, [picture])), u).cpu()
        for column, image in enumerate(views):
            shown = scores[arm].taken([picture], slice(column, column + 1))
            note, colour = _mark(bench, shown, picture)
            title = f"{float(shown.cosine):.2f}{note}"
            if has_classes:
                title = gallery.names[int(shown.nearest)][:LETTERS]
            _show(axis, (row, column + 1), image, title, colour)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _mark(bench: Bench, shown: Scores, picture: int) -> tuple[str, str]:
    """The words and the colour of a view of a picture, from its scores (1,1)."""
    study = bench.study
    if shown.no_answer is not None and bool(shown.no_answer):
        return "  no answer", "#888888"
    is_match = bool(study.gallery.same(shown.nearest, study.truth[picture]))
    is_goal = study.goal is not None and bool(study.gallery.same(shown.nearest, study.goal[picture]))
    if study.acceptance is not None:
        is_accepted = bool(study.acceptance.accepts(shown))
        is_match, is_goal = is_accepted == (study.goal is None), study.goal is not None
    return ("" if is_match else "  the target" if is_goal else "  mistaken"), "#2f855a" if is_match else "#c53030"


def _show(axis: Axes, place: tuple[int, int], image: Tensor, title: str, colour: str) -> None:
    """A picture in its frame below its title, at a row and column of the sheet."""
    (row, column), (height, width) = place, image.shape[-2:]
    scale = (COLUMN - MARGIN) / max(height, width)
    middle, centre = LEFT + (column + 0.5) * COLUMN, row * ROW + ROW - MARGIN / 2 - (COLUMN - MARGIN) / 2
    left, right = middle - scale * width / 2, middle + scale * width / 2
    low, top = centre + scale * height / 2, centre - scale * height / 2
    axis.imshow(to_bytes(image), extent=(left, right, low, top), aspect="auto")
    axis.add_patch(Rectangle((left, top), right - left, low - top, fill=False, color=colour, linewidth=2))
    axis.text(middle, top - 0.04, title, fontsize=8, color=colour, ha="center", va="bottom")

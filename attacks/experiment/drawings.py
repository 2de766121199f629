"""The drawings and the report of a run, made from its results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attacks.experiment.arms import trace_of
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.contact_sheet import contact_sheet, typical
from attacks.experiment.sections.registry import Sections
from attacks.experiment.view_scores import ViewScores
from attacks.report import page
from attacks.report.warnings import warnings


def draw(
    bench: Bench, content: dict[str, Any], record: Mapping[str, Any], scores: ViewScores, extras: Sections
) -> None:
    """Write the drawings and `report.html` into a run directory that has all other files but metrics.json."""
    out = bench.exhibits.out
    draw_sheets(out, bench, scores, extras)
    page.write_report(out, *page_values(bench, content, record, scores))


def draw_sheets(out: Path, bench: Bench, scores: ViewScores, extras: Sections) -> None:
    """Write the drawings."""
    contact_sheet(out / "views.png", bench, scores.scores[MAIN])
    extras.draw(out)


def page_values(
    bench: Bench, content: dict[str, Any], record: Mapping[str, Any], scores: ViewScores
) -> tuple[Any, ...]:
    """What the page is made of."""
    first = [line for line in trace_of(bench.exhibits.out) if line.batch == 0]
    return content, record, warnings(content), first, typical(bench, scores.scores[MAIN])

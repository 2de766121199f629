"""The views that fail most, with their physical values."""

from pathlib import Path

from attacks.evaluation.rare.failure import Failures
from attacks.report.view_sheet import sheet
from attacks.runtime.files import atomic

#: Views of the sheet, and in a row of it.
MAX_VIEWS, COLUMNS = 12, 6


def draw_failures(path: Path, failures: Failures) -> None:
    """Save the views as PNG: of each arm the pictures that fail most often, as many of each."""
    candidates = sorted(failures.each, key=lambda failure: (-failure.p, -failure.high))
    arms = dict.fromkeys(failure.arm for failure in failures.each)
    limit = MAX_VIEWS // len(arms)
    rows = [failure for arm in arms for failure in [row for row in candidates if row.arm == arm][:limit]]
    views = [failure.view for failure in rows if failure.view is not None]
    values = [
        [failure.picture, failure.arm, f"{failure.p:.2g}", *(f"{value:.3g}" for value in failure.values.values())]
        for failure in rows
    ]
    names = ["picture", "arm", "P(failure)", *rows[0].values]
    with atomic(path) as temporary:
        sheet(None, views, names, values, min(COLUMNS, len(views))).save(temporary, format="PNG")

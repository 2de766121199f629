"""The views that fail most, with their physical values."""

from pathlib import Path

from attacks.evaluation.rare.failure import Failures
from attacks.report.view_sheet import sheet
from attacks.runtime.files import atomic

#: Views of the sheet, and in a row of it.
SHOWN, COLUMNS = 12, 6


def draw_failures(path: Path, failures: Failures) -> None:
    """Save the views as PNG: of each arm the pictures that fail most often, as many of each."""
    ordered = sorted(failures.each, key=lambda failure: (-failure.p, -failure.high))
    arms = dict.fromkeys(failure.arm for failure in failures.each)
    most = SHOWN // len(arms)
    shown = [failure for arm in arms for failure in [each for each in ordered if each.arm == arm][:most]]
    views = [failure.view for failure in shown if failure.view is not None]
    values = [
        [failure.picture, failure.arm, f"{failure.p:.2g}", *(f"{value:.3g}" for value in failure.values.values())]
        for failure in shown
    ]
    names = ["picture", "arm", "P(failure)", *shown[0].values]
    with atomic(path) as temporary:
        sheet(None, views, names, values, min(COLUMNS, len(views))).save(temporary, format="PNG")

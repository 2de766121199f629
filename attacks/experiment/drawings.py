"""The drawings and the report of a run, made from its results."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from attacks.data.images import values_of
from attacks.experiment.contact_sheet import contact_sheet, typical
from attacks.experiment.outcome import Outcome
from attacks.experiment.records import trace_of
from attacks.experiment.sections import Sections
from attacks.report import page
from attacks.report.warnings import warnings
from attacks.runtime.values import Damaged

#: Levels by which a pixel of a drawing may differ on another machine.
LEVELS = 8


def draw(out: Path, content: dict[str, Any], record: Mapping[str, Any], outcome: Outcome, extras: Sections) -> None:
    """Write the drawings and `report.html` into a run directory that has all other files but metrics.json."""
    _sheets(out, outcome, extras)
    page.write_report(out, *_values(out, content, record, outcome))


def redrawn(
    out: Path, content: dict[str, Any], record: Mapping[str, Any], outcome: Outcome, extras: Sections
) -> Iterator[str]:
    """A line for each drawing of a finished run that is not the one that its results give. Needs the versions of the
    libraries that the run had. `extras`: only their parts that are drawn again."""
    with TemporaryDirectory() as folder:
        _sheets(Path(folder), outcome, extras)
        for path in sorted(Path(folder).iterdir()):
            try:
                was, now = values_of(out / path.name).astype(int), values_of(path).astype(int)
            except (OSError, ValueError) as error:
                raise Damaged(f"{path.name}: it cannot be read ({error})") from error
            if was.shape != now.shape or np.abs(was - now).max() > LEVELS:
                yield f"{path.name}: it is not what the results of this run look like"
    if (out / "report.html").read_bytes() != page.page(out, *_values(out, content, record, outcome)).encode():
        yield "report.html: it is not the page of metrics.json, manifest.json, steps.csv and the drawings"


def _sheets(out: Path, outcome: Outcome, extras: Sections) -> None:
    contact_sheet(out / "views.png", outcome)
    extras.draw(out)


def _values(out: Path, content: dict[str, Any], record: Mapping[str, Any], outcome: Outcome) -> tuple[Any, ...]:
    """What the page is made of."""
    first = [line for line in trace_of(out) if line.batch == 0]
    return content, record, warnings(content), first, typical(outcome)

"""What a run tells its trackers: its steps, its table, its pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from attacks.runtime.tracking.protocol import Tracker

#: Files that a tracker is given at the end, where the run has written them.
PAGES = ("views.png", "report.html")


class Line(Protocol):
    """One step of an optimised arm, as in `steps.csv`."""

    @property
    def arm(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def objective(self) -> float: ...
    @property
    def held_out(self) -> float | None: ...
    @property
    def snr(self) -> float: ...
    @property
    def evals(self) -> int: ...


def log_step(tracker: Tracker, line: Line, batch: int = 0) -> None:
    """One step. Each batch of pictures counts its steps from 0, so each but the first is an arm of its own."""
    values = {"objective": line.objective, "held_out": line.held_out, "snr": line.snr, "evals": line.evals}
    tracker.log_scalars(line.step, values, f"{line.arm}/batch {batch}" if batch else line.arm)


def log_end(tracker: Tracker, content: Mapping[str, Any], out: Path) -> None:
    """The tables of metrics.json as scalars, such as `final/eot/success/mean`, and the pages."""
    wide = content.get("wide") or {}
    for title, arms in (("final", content["arms"]), ("final wide", wide.get("arms", {}))):
        for arm, row in arms.items():
            tracker.log_scalars(0, dict(_numbers(row)), f"{title}/{arm}")
    for name in PAGES:
        if (out / name).is_file():
            tracker.log_artifact(out / name)


def _numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)

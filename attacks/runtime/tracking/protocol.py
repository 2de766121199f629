"""The interface of a tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

#: Scalars by name; None where a value is unknown.
Values = Mapping[str, float | None]


class Tracker(Protocol):
    """Receives the course of a run. It returns nothing, so it cannot change the run."""

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Scalars of one step of an arm."""

    def log_artifact(self, path: Path) -> None:
        """A file of the run directory."""

    def close(self, failed: bool = False) -> None:
        """The end of the run. `failed`: it ended with an exception."""


def finite(values: Values, arm: str = "") -> dict[str, float]:
    """The finite values, by `arm/name`."""
    known = {name: float(value) for name, value in values.items() if value is not None}
    return {f"{arm}/{name}" if arm else name: value for name, value in known.items() if math.isfinite(value)}

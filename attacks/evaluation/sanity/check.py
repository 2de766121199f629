"""The result of a check, and of a battery of checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from attacks.runtime.stored import stored

Verdict = Literal["passed", "failed", "skipped"]


@stored("sanity.check")
@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        name: the same in every run.
        verdict: passed, failed, or skipped where it does not apply to this attack.
        message: one sentence with the figures, and with what to do if it failed.
        figures: the numbers behind it.
    """

    name: str
    verdict: Verdict
    message: str
    figures: dict[str, float] = field(default_factory=dict)


@stored("sanity")
@dataclass(frozen=True)
class Sanity:
    """All checks of a run, and their `cost`: encoder passes `forward` and `backward`, in views, and `seconds`."""

    checks: tuple[Check, ...]
    cost: dict[str, float]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The failed checks."""
        return tuple(check for check in self.checks if check.verdict == "failed")

    def warnings(self) -> list[str]:
        """One line for each failed check, for the first lines of a report."""
        return [f"SANITY CHECK FAILED, {check.name}: {check.message}" for check in self.failed]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, equal for equal runs: figures that are not finite are null, and the seconds are left
        out."""
        checks = [
            {
                "name": check.name,
                "verdict": check.verdict,
                "words": check.message,
                "figures": {key: value if math.isfinite(value) else None for key, value in check.figures.items()},
            }
            for check in self.checks
        ]
        cost = {key: value for key, value in self.cost.items() if key != "seconds"}
        return {"failed": [check.name for check in self.failed], "checks": checks, "cost": cost}


def ruled(name: str, good: bool, message: str, **figures: float) -> Check:
    """A passed or failed check."""
    return Check(name, "passed" if good else "failed", message, figures)


def skipped(name: str, why: str) -> Check:
    """A check that does not apply."""
    return Check(name, "skipped", why)


def table(sanity: Sanity) -> str:
    """One line a check, for the terminal."""
    width = max(len(check.name) for check in sanity.checks)
    marks = {"passed": "passed ", "failed": "FAILED ", "skipped": "skipped"}
    rows = [f"{check.name:<{width}}  {marks[check.verdict]}  {check.message}" for check in sanity.checks]
    count = f"{len(sanity.failed)} of {len(sanity.checks)} sanity checks failed"
    spent = f"{sanity.cost['forward']:.0f} encoder passes, {sanity.cost['seconds']:.1f} s"
    return "\n".join([f"{count} ({spent})", *rows])

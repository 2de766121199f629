"""What a check says, and how a battery of checks is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from attacks.runtime.stored import stored

Verdict = Literal["passed", "failed", "skipped"]


@stored("sanity.check")
@dataclass(frozen=True)
class Check:
    """The answer to one question.

    Args:
        name: the question, in few words; the same in every run.
        verdict: passed, failed, or skipped where it cannot be asked of this attack.
        words: one sentence with the figures, and with what to do if it failed.
        figures: the numbers behind it.
    """

    name: str
    verdict: Verdict
    words: str
    figures: dict[str, float] = field(default_factory=dict)


@stored("sanity")
@dataclass(frozen=True)
class Sanity:
    """All checks of a run, and their `cost`: encoder passes `forward` and `backward`, in views, and `seconds`."""

    checks: tuple[Check, ...]
    cost: dict[str, float]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks for which the attack must not be believed."""
        return tuple(check for check in self.checks if check.verdict == "failed")

    def warnings(self) -> list[str]:
        """One line for each failed check, for the first lines of a report."""
        return [f"SANITY CHECK FAILED, {check.name}: {check.words}" for check in self.failed]

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold, the same for the same run: figures that are no finite numbers are null, and the seconds
        are left out."""
        checks = [
            {
                "name": check.name,
                "verdict": check.verdict,
                "words": check.words,
                "figures": {key: value if math.isfinite(value) else None for key, value in check.figures.items()},
            }
            for check in self.checks
        ]
        cost = {key: value for key, value in self.cost.items() if key != "seconds"}
        return {"failed": [check.name for check in self.failed], "checks": checks, "cost": cost}


def ruled(name: str, good: bool, words: str, **figures: float) -> Check:
    """A check that has been decided."""
    return Check(name, "passed" if good else "failed", words, figures)


def skipped(name: str, why: str) -> Check:
    """A check that cannot be asked."""
    return Check(name, "skipped", why)


def table(sanity: Sanity) -> str:
    """One line a check, for the terminal."""
    width = max(len(check.name) for check in sanity.checks)
    marks = {"passed": "passed ", "failed": "FAILED ", "skipped": "skipped"}
    lines = [f"{check.name:<{width}}  {marks[check.verdict]}  {check.words}" for check in sanity.checks]
    count = f"{len(sanity.failed)} of {len(sanity.checks)} sanity checks failed"
    spent = f"{sanity.cost['forward']:.0f} encoder passes, {sanity.cost['seconds']:.1f} s"
    return "\n".join([f"{count} ({spent})", *lines])

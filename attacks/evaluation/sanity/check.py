"""The result of a check, and of a battery of checks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from attacks.encoders.black_box.asked import AnswerError
from attacks.runtime.values import stored

Verdict = Literal["passed", "failed", "skipped"]


@stored("sanity.check")
@dataclass(frozen=True)
class Check:
    """The result of one check; its `message` is one sentence with the figures, and with a remedy if it failed."""

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
        return tuple(check for check in self.checks if check.verdict == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for metrics.json without the seconds; figures that are not finite are null."""
        checks = []
        for check in self.checks:
            figures = {key: value if math.isfinite(value) else None for key, value in check.figures.items()}
            checks.append({"name": check.name, "verdict": check.verdict, "words": check.message, "figures": figures})
        cost = {key: value for key, value in self.cost.items() if key != "seconds"}
        return {"failed": [check.name for check in self.failed], "checks": checks, "cost": cost}


def rule(name: str, good: bool, message: str, remedy: str = "", **figures: float) -> Check:
    """A passed check, or a failed one with its remedy."""
    return Check(name, "passed" if good else "failed", message if good else message + remedy, figures)


def skip(name: str, reason: str) -> Check:
    return Check(name, "skipped", reason)


def guard(name: str, ask: Callable[[], Check]) -> Check:
    """The check, failed if the attack raises an error: an encoder may raise any."""
    try:
        return ask()
    except AnswerError:  # the run stops, and its answers so far are kept
        raise
    except Exception as error:
        return rule(name, False, error_text(error))


def error_text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError | FloatingPointError) else f"{type(error).__name__}: {error}"


def counts(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in words, such as "11 of 11 checks passed, 2 skipped"."""
    passes, skips = (sum(verdict == kind for verdict in verdicts) for kind in ("passed", "skipped"))
    text = f"{passes} of {len(verdicts) - skips} checks passed"
    return f"{text}, {skips} skipped" if skips else text


def table(sanity: Sanity) -> str:
    """A line for each check, for the terminal."""
    width = max(len(check.name) for check in sanity.checks)
    marks = {"passed": "passed ", "failed": "FAILED ", "skipped": "skipped"}
    rows = [f"{check.name:<{width}}  {marks[check.verdict]}  {check.message}" for check in sanity.checks]
    count = counts([check.verdict for check in sanity.checks])
    cost = f"{sanity.cost['forward']:.0f} encoder passes, {sanity.cost['seconds']:.1f} s"
    return "\n".join([f"{count} ({cost})", *rows])

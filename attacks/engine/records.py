"""What is measured of an engine, as plain records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor

from attacks.encoders.engine.decision import Decision


class Trial(NamedTuple):
    """One step of the estimator: `grad` (N,...), the gradient of each image's mean loss, and `snr` (N,), the power
    ratio ||E g||^2 / E||g - E g||^2 of that mean; NaN where it is unknown."""

    grad: Tensor
    snr: Tensor


@dataclass(frozen=True)
class Measurement:
    """One candidate. What was not measured is None.

    Args:
        name: what it tries: "start", "channels_last", "fold", "bfloat16", "chunk 16", ...
        settings: all five, as `Decision.to_dict`.
        ms: milliseconds for each view, forward and backward; the median of its rounds.
        rounding: the error of its gradient against float32, root mean square over images of the L2 norm.
        noise: the sampling noise of the step in the same unit.
        ratio: (rounding / noise)^2, what the rounding adds to the noise's power.
        cosine: of its gradient with that of float32, the mean over images.
        taken: whether it became the best.
        why: the verdict in words.
    """

    name: str
    settings: dict[str, Any]
    ms: float | None = None
    rounding: float | None = None
    noise: float | None = None
    ratio: float | None = None
    cosine: float | None = None
    taken: bool = False
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class Choice(NamedTuple):
    """The settings chosen, and what was measured on the way, in order."""

    decision: Decision
    measurements: tuple[Measurement, ...]


def describe(choice: Choice) -> list[str]:
    """Lines for a terminal: each measurement, and the settings chosen."""
    lines = []
    for m in choice.measurements:
        words = ", ".join(_figures(m))
        lines.append(f"{'+' if m.taken else '-'} {m.name}: {words}{'; ' if words else ''}{m.why}")
    return [*lines, "engine: " + " ".join(choice.decision.settings())]


def _figures(m: Measurement) -> Iterator[str]:
    if m.ms is not None:
        yield f"{m.ms:.3g} ms/view"
    if m.rounding is not None:
        noise = "unknown" if m.noise is None else f"{m.noise:.2g}"
        share = "" if m.ratio is None else f" ({m.ratio:.1%} of its power)"
        yield f"rounding {m.rounding:.2g}, sampling noise {noise}{share}"

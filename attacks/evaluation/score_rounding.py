"""The effect of a lower precision on scores: the same pictures, judged in the same views in both precisions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor

from attacks.encoders.engine.tuner import LIMIT
from attacks.evaluation.comparisons import BANK, primary
from attacks.evaluation.judge import Judge, resisting
from attacks.evaluation.per_image import per_image_rows
from attacks.evaluation.scores import Scores
from attacks.evaluation.significance import Measure

EXACT = "float32"
#: Of `engine.judging`.
PRECISIONS = (EXACT, "tf32", "bfloat16")


@dataclass(frozen=True)
class Twice:
    """The scores by arm of a run's first pictures, in the `precision` that its tables do not have."""

    precision: str
    scores: Mapping[str, Scores]


class Both(NamedTuple):
    """Scores of the same pictures and views by arm, in float32 and in a lower precision."""

    exact: Mapping[str, Scores]
    lower: Mapping[str, Scores]


class Change(NamedTuple):
    """Of absolute values, over all views."""

    mean: float
    largest: float


class ArmRounding(NamedTuple):
    """Of one arm: the share of views whose `success` is another, the changes of rank and cosine, and the `ratio` of
    each of a picture's figures (`success`, `mrr`, `cosine`): the power of its change as a share of that of its
    sampling noise, infinite without noise."""

    success: float
    rank: Change
    cosine: Change
    ratio: dict[str, float]


@dataclass(frozen=True)
class ScoreRounding:
    """The effect of judging in `precision` on K pictures from V views, by arm, and the difference of the primary
    comparison of these pictures in float32 and in the lower precision (`headline`).

    The rule is that of the engine: the power of the rounding error, as a share of that of the sampling noise, must
    stay below 15 %. A figure is the mean of a picture's views, its noise the standard error of that mean.
    """

    precision: str
    pictures: int
    views: int
    headline: tuple[float, float]
    arms: dict[str, ArmRounding]

    @property
    def ratio(self) -> float:
        """The largest of all arms and figures."""
        return max(ratio for arm in self.arms.values() for ratio in arm.ratio.values())

    @property
    def used(self) -> str:
        """The precision that the rule allows."""
        return self.precision if self.ratio < LIMIT else EXACT

    def to_dict(self) -> dict[str, Any]:
        """For metrics.json; a ratio without noise is None."""
        arms = {
            name: {
                "success": arm.success,
                "rank": arm.rank._asdict(),
                "cosine": arm.cosine._asdict(),
                "ratio": {figure: _finite(ratio) for figure, ratio in arm.ratio.items()},
            }
            for name, arm in self.arms.items()
        }
        exact, lower = self.headline
        headline = {"exact": exact, "lower": lower, "change": lower - exact}
        whole = {"used": self.used, "ratio": _finite(self.ratio), "limit": LIMIT}
        return asdict(self) | whole | {"headline": headline, "arms": arms}


def score_rounding(
    judge: Judge, rows: Tensor, clusters: Sequence[str], both: Both, measure: Measure, precision: str
) -> ScoreRounding:
    """Compare scores of the pictures with numbers `rows` (K,) and these `clusters` (K,) in both precisions."""
    hits = [{arm: judge.success(scores, rows).cpu() for arm, scores in each.items()} for each in both]
    arms = {
        arm: _arm(_figures(exact, hits[0][arm]), _figures(both.lower[arm], hits[1][arm]))
        for arm, exact in both.exact.items()
    }
    exact, lower = (_headline(*each, clusters, measure) for each in zip(both, hits, strict=True))
    views = next(iter(both.exact.values())).cosine.shape[1]
    return ScoreRounding(precision, len(rows), views, (exact, lower), arms)


def _figures(scores: Scores, success: Tensor) -> dict[str, Tensor]:
    """What the figures of a picture are means of, (K,V) each, and the rank."""
    assert scores.rank is not None  # a judge always knows what is right
    rank = scores.rank.double().cpu()
    return {"success": success.double(), "mrr": 1 / rank, "cosine": scores.cosine.double().cpu(), "rank": rank}


def _arm(exact: Mapping[str, Tensor], lower: Mapping[str, Tensor]) -> ArmRounding:
    change = {name: (lower[name] - values).abs() for name, values in exact.items()}
    rank, cosine = (Change(float(change[name].mean()), float(change[name].max())) for name in ("rank", "cosine"))
    ratio = {name: _ratio(exact[name], lower[name]) for name in ("success", "mrr", "cosine")}
    return ArmRounding(float(change["success"].mean()), rank, cosine, ratio)


def _ratio(exact: Tensor, lower: Tensor) -> float:
    """The power of the change of a mean over views, as a share of that of its noise; both averaged over pictures."""
    error = float((lower.mean(1) - exact.mean(1)).square().mean())
    noise = float(exact.var(1).mean()) / exact.shape[1]
    return 0.0 if not error else error / noise if noise else math.inf


def _headline(
    arms: Mapping[str, Scores], success: Mapping[str, Tensor], clusters: Sequence[str], measure: Measure
) -> float:
    worst = {BANK: {arm: resisting(scores) for arm, scores in arms.items()}}
    rows = per_image_rows(
        {BANK: arms}, {BANK: success}, worst, pictures={"cluster": clusters}, steps={}, thresholds={}
    )
    return float(primary(rows, measure)["difference"]["mean"])


def _finite(ratio: float) -> float | None:
    return ratio if math.isfinite(ratio) else None

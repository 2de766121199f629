"""Pictures whose embedding behind a deployed resize parts from that behind an antialiased one more than it does for
clean pictures of other photographs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.gallery import Pictures
from attacks.data.images import from_bytes, to_bytes
from attacks.encoders.panel import ScoredEncoder
from attacks.encoders.tree import Encoder
from attacks.eot.bank import Bank
from attacks.evaluation.clusters import Row, Sample, by_arm, by_cluster, column_of, numbers, totals
from attacks.evaluation.per_image import has_fit_rows, mean_figures
from attacks.inference.bounded import rate
from attacks.resizers.pipeline import Pipeline

#: The share of false alarms that a threshold is set for.
ALPHA = 0.01


class Threshold(NamedTuple):
    """A cosine below which a picture is flagged, and a bound on the probability that a clean picture is, if it is
    exchangeable with the `clean` pictures that set the threshold; -inf without any."""

    value: float
    bound: float
    clean: int


def conformal_threshold(clean: Tensor, alpha: float = ALPHA) -> Threshold:
    """The k-th lowest of n cosines (n,) of clean pictures, k = max(1, floor(alpha (n + 1))); one more lies below it
    with a probability of at most k / (n + 1) (conformal prediction, Vovk et al. 2005)."""
    n = len(clean)
    k = max(1, math.floor(alpha * (n + 1)))
    return Threshold(float(clean.kthvalue(k).values), k / (n + 1), n) if n else Threshold(-math.inf, 0.0, 0)


@torch.no_grad()
def cosines(pictures: Tensor, pipeline: Pipeline, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """The float64 cosine (N,) of embeddings behind the pipeline and the antialiased resize; 1 where these are equal.

    `pictures` (N,3,H,W) in [0,1] are 8-bit files as read back. `encode` takes (N,3,h,w) in [0,1] to (N,...), with the
    encoder's own preprocessing.
    """
    pairs = [pipeline.views(to_bytes(picture)) for picture in pictures]
    pipeline_views, lanczos_views = (from_bytes(views, pictures) for views in zip(*pairs, strict=True))
    equal = (pipeline_views == lanczos_views).all(3).all(2).all(1).cpu()
    features, reference = (encode(views).flatten(1) for views in (pipeline_views, lanczos_views))
    cosine = F.cosine_similarity(features.double(), reference.double(), dim=1).cpu()
    if not bool(cosine.isfinite().all()):
        raise FloatingPointError("an embedding of a resized picture is not finite")
    return torch.where(equal, 1.0, cosine.clamp(max=1))


def flagged_rows(cosine: Mapping[str, Tensor], sample: Sample) -> list[dict[str, object]]:
    """A row for each arm and picture of a sample, from the `cosines` (N,) by arm: whether its cosine is strictly
    below the threshold, which is that of the clean pictures of all other clusters; None without a second cluster."""
    limits = [limit.value if limit.clean else None for limit in _thresholds(cosine["clean"], sample.clusters)]
    return [
        {"arm": arm, "picture": name, "cluster": cluster, "cosine": value}
        | {"threshold": limit, "flagged": None if limit is None else value < limit}
        for arm, values in cosine.items()
        for name, cluster, value, limit in zip(sample.names, sample.clusters, values.tolist(), limits, strict=True)
    ]


def score_limits(pictures: Pictures, encoder: Encoder, views: Bank, false_alarms: float, chunk: int) -> Tensor | None:
    """The limit (N,) of a detector's score for each of N pictures, below which it flags a view: that share of the
    `views` of the clean pictures of all other clusters has less. None without a second cluster."""
    if len(set(pictures.clusters)) < 2:
        return None
    scores = torch.zeros(len(pictures), len(views.u))
    for rows in pictures.ranges(len(pictures)):
        images, numbers = pictures.only(rows).images.to(views.u.device), torch.tensor(list(rows))
        for part, answer in views.encoded(images, ScoredEncoder(encoder), chunk, range(len(views.u))):
            place = numbers[list(part.images), None], torch.tensor(part.groups[0])
            scores[place] = answer["score"][..., 0].to(scores)
    return torch.tensor([limit.value for limit in _thresholds(scores, pictures.clusters, false_alarms)])


def _thresholds(clean: Tensor, clusters: Sequence[str], alpha: float = ALPHA) -> list[Threshold]:
    """The threshold of each picture, from the clean values (N,) or (N,V) of all other clusters."""
    index = numbers(clusters)
    by_number = [conformal_threshold(clean[index != i].flatten(), alpha) for i in range(len(set(clusters)))]
    return [by_number[i] for i in index]


def derived_rows(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows that follow from the cosines of rows as `flagged_rows` makes them, or read back from their file."""
    arms = by_arm(rows)
    names, clusters = (tuple(str(row[key]) for row in arms["clean"]) for key in ("picture", "cluster"))
    cosine = {arm: column_of(table, "cosine") for arm, table in arms.items()}
    return flagged_rows(cosine, Sample(torch.arange(len(names)), names, clusters))


def detection_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json, from the cosines; without a second cluster nothing is flagged or not."""
    arms = by_arm(derived_rows(rows))
    clusters = [str(row["cluster"]) for row in arms["clean"]]
    thresholds, several = _thresholds(column_of(arms["clean"], "cosine"), clusters), len(set(clusters)) > 1
    values, trials = [threshold.value for threshold in thresholds], totals(torch.ones(len(clusters)), clusters)
    figures = {}
    for arm, table in arms.items():
        share = None
        if several:
            flags = by_cluster(column_of(table, "flagged"), clusters)
            share = mean_figures(rate(flags, trials), flags, has_fit_rows(rows))
        figures[arm] = {"flagged": share, "lowest": float(column_of(table, "cosine").min())}
    return {
        "pictures": len(clusters),
        "clusters": len(set(clusters)),
        "calibration": min(threshold.clean for threshold in thresholds),
        "bound": max(threshold.bound for threshold in thresholds) if several else None,
        "thresholds": [min(values), max(values)] if several else None,
        "arms": figures,
    }

"""Pictures that a deployed resize shows otherwise than people see them, found without an attack: their embedding
behind it parts from that behind an antialiased resize more than it does for clean pictures of other photographs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.images import to_bytes
from attacks.evaluation.clusters import by_cluster, numbers, totals
from attacks.evaluation.intervals import rate
from attacks.resizers.pipeline import Pipeline
from attacks.runtime.stored import stored

#: The share of false alarms that a threshold is set for.
ALPHA = 0.01


class Threshold(NamedTuple):
    """A cosine below which a picture is flagged, and a bound on the probability that a clean picture is, if it is
    exchangeable with the `clean` pictures that set the threshold; -inf without any."""

    value: float
    bound: float
    clean: int


def conformal_threshold(clean: Tensor) -> Threshold:
    """The k-th lowest of n cosines (n,) of clean pictures, k = max(1, floor(`ALPHA` (n + 1))). The rank of one more
    among all n + 1 is uniform, so that it lies below with a probability of at most k / (n + 1) (conformal prediction,
    Vovk et al. 2005)."""
    n = len(clean)
    k = max(1, math.floor(ALPHA * (n + 1)))
    return Threshold(float(clean.kthvalue(k).values), k / (n + 1), n) if n else Threshold(-math.inf, 0.0, 0)


@torch.no_grad()
def cosines(pictures: Tensor, pipeline: Pipeline, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """The cosine (N,) between the embeddings behind the pipeline and behind the antialiased resize, in float64; 1
    where the two show the same.

    Args:
        pictures: (N,3,H,W) in [0,1], 8-bit files as read back.
        encode: (N,3,h,w) -> (N,...), with the encoder's own preprocessing.
    """
    pairs = [pipeline.views(to_bytes(picture)) for picture in pictures]
    pipeline_views, lanczos_views = (np.stack(views) for views in zip(*pairs, strict=True))
    equal = torch.from_numpy((pipeline_views == lanczos_views).all((1, 2, 3)))
    features, reference = (
        encode((torch.from_numpy(views).permute(0, 3, 1, 2).contiguous().float() / 255).to(pictures)).flatten(1)
        for views in (pipeline_views, lanczos_views)
    )
    cosine = F.cosine_similarity(features.double(), reference.double(), dim=1).cpu()
    if not bool(cosine.isfinite().all()):
        raise FloatingPointError("an embedding of a resized picture is not finite")
    return torch.where(equal, 1.0, cosine.clamp(max=1))


@stored("detection")
@dataclass(frozen=True, eq=False)
class Detection:
    """The `cosines` (N,) by arm of N pictures with their names and clusters, and the name of the pipeline with the
    (height, width) of its results. Pictures are judged by the arm `clean` of the other clusters."""

    pipeline: str
    size: tuple[int, int]
    cosine: dict[str, Tensor]
    names: tuple[str, ...]
    clusters: tuple[str, ...]

    @cached_property
    def thresholds(self) -> dict[str, Threshold]:
        """By cluster, from the clean pictures of all others."""
        index, clean = numbers(self.clusters), self.cosine["clean"]
        return {name: conformal_threshold(clean[index != i]) for i, name in enumerate(dict.fromkeys(self.clusters))}

    @property
    def limits(self) -> Tensor:
        """The threshold of each picture (N,)."""
        return torch.tensor([self.thresholds[cluster].value for cluster in self.clusters], dtype=torch.float64)

    def flags(self, arm: str) -> Tensor:
        """(N,), whether the cosine is strictly below the threshold."""
        return self.cosine[arm] < self.limits

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json; without a second cluster nothing is flagged or not."""
        thresholds = [*self.thresholds.values()]
        comparable = len(thresholds) > 1
        trials = totals(torch.ones(len(self.names)), self.clusters)
        shares = {arm: rate(by_cluster(self.flags(arm), self.clusters), trials)._asdict() for arm in self.cosine}
        return {
            "pictures": len(self.names),
            "clusters": len(thresholds),
            "pipeline": self.pipeline,
            "size": list(self.size),
            "calibration": min(threshold.clean for threshold in thresholds),
            "bound": max(threshold.bound for threshold in thresholds) if comparable else None,
            "thresholds": [end(threshold.value for threshold in thresholds) for end in (min, max)]
            if comparable
            else None,
            "arms": {
                arm: {"flagged": shares[arm] if comparable else None, "lowest": float(cosine.min())}
                for arm, cosine in self.cosine.items()
            },
        }

    def rows(self) -> list[dict[str, object]]:
        """A row for each arm and picture."""
        limits = self.limits.tolist()
        return [
            {"arm": arm, "picture": name, "cosine": cosine}
            | ({"threshold": limit, "flagged": hit} if math.isfinite(limit) else {"threshold": None, "flagged": None})
            for arm, values in self.cosine.items()
            for name, cosine, limit, hit in zip(
                self.names, values.tolist(), limits, self.flags(arm).tolist(), strict=True
            )
        ]

"""The smallest radius at which each picture is broken, over the pictures: their median, and success by radius."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.evaluation.clusters import by_cluster, medians, totals
from attacks.evaluation.intervals import Interval, median, rate
from attacks.evaluation.judge import CellScores
from attacks.runtime.stored import stored

#: Radii at which the curve is computed, from 0 to the largest.
POINTS = 33
#: The largest relative rounding error of a norm that comes from the difference of two pictures in single precision.
ROUNDING = 1e-5


@stored("radii")
@dataclass(frozen=True, eq=False)
class SmallestRadii:
    """The result of a search for the smallest radius of each of N pictures.

    Args:
        radius: (N,) the norm of the change in the file that half of the views of the search's own bank take for
            something else; infinite where none up to `eps` was found.
        found: (N,) the share of that bank with success.
        held_out: the scores of these files on the bank of the other tables; where nothing was found, of the file of
            the attack at `eps`.
        passes: encoder passes of each picture, forward and backward: of the search, and of the attack at `eps`.
    """

    names: tuple[str, ...]
    clusters: tuple[str, ...]
    eps: float
    radius: Tensor
    found: Tensor
    held_out: CellScores
    passes: tuple[int, int]

    def to_dict(self) -> dict[str, Any]:
        """For metrics.json. The median is over clusters, of the lower median of each; None is more than `eps`."""
        search, attack = self.passes
        return {
            "pictures": len(self.names),
            "clusters": len(set(self.clusters)),
            "eps": self.eps,
            "median": _finite(median(medians(self.radius.double(), self.clusters))),
            "beyond": int((~self.radius.isfinite()).sum()),
            "held_out": self.held_out.to_dict(self.clusters)["success"],
            "curve": [
                {"eps": eps, "success": success._asdict()}
                for eps, success in curve(self.radius, self.clusters, self.eps)
            ],
            "passes": {"search": search, "attack": attack, "runs": (search + attack) / max(1, attack)},
        }

    def rows(self) -> list[dict[str, object]]:
        """A row for each picture; the radius is empty where it is beyond the largest."""
        radii = [value if math.isfinite(value) else None for value in self.radius.tolist()]
        shares = self.held_out.success.double().mean(1).tolist()
        columns = zip(self.names, self.clusters, radii, self.found.tolist(), shares, strict=True)
        head = ("picture", "cluster", "radius", "found", "success")
        return [dict(zip(head, row, strict=True)) | {"largest": self.eps} for row in columns]


def curve(radius: Tensor, clusters: Sequence[str], largest: float) -> list[tuple[float, Interval]]:
    """The share of pictures that are broken at each of some radii up to `largest`, over clusters, with its interval.
    It never falls."""
    pictures = totals(torch.ones(len(radius)), clusters)
    points = [largest * i / (POINTS - 1) for i in range(POINTS)]
    near = [radius <= eps * (1 + ROUNDING) for eps in points]
    return [(eps, rate(by_cluster(hit.double(), clusters), pictures)) for eps, hit in zip(points, near, strict=True)]


def _finite(value: Interval) -> dict[str, Any]:
    return {key: None if number == math.inf else number for key, number in value._asdict().items()}

"""The smallest radius at which each picture is broken, over the pictures: their median, and success by radius."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attacks.evaluation.clusters import Row, by_cluster, column_of, medians, totals
from attacks.evaluation.intervals import Interval, median, rate

#: Radii at which the curve is computed, from 0 to the largest.
POINTS = 33
#: The largest relative rounding error of a norm that comes from the difference of two pictures in single precision.
ROUNDING = 1e-5


def radii_summary(rows: Sequence[Row], eps: float) -> dict[str, Any]:
    """The content of metrics.json, of a row for each picture: its `radius`, the norm of the change in the file that
    half of the views of the search's bank take for something else (empty: more than `eps`), and the share of the
    `views` of the bank of the other tables with `success`. A median of None is more than `eps`."""
    clusters = [str(row["cluster"]) for row in rows]
    radius = torch.tensor([math.inf if row["radius"] in (None, "") else float(str(row["radius"])) for row in rows])
    success, views = column_of(rows, "success"), column_of(rows, "views")
    held_out = rate(by_cluster(success, clusters), totals(views, clusters))
    middle = median(medians(radius.double(), clusters))._asdict()
    return {
        "pictures": len(rows),
        "clusters": len(set(clusters)),
        "eps": eps,
        "median": {key: None if end == math.inf else end for key, end in middle.items()},
        "beyond": int((~radius.isfinite()).sum()),
        "held_out": held_out._asdict(),
        "curve": [{"eps": limit, "success": share._asdict()} for limit, share in curve(radius, clusters, eps)],
    }


def curve(radius: Tensor, clusters: Sequence[str], largest: float) -> list[tuple[float, Interval]]:
    """The share of pictures broken at each of some radii up to `largest`, over clusters, with its interval."""
    pictures = totals(torch.ones(len(radius)), clusters)
    points = [largest * i / (POINTS - 1) for i in range(POINTS)]
    near = [radius <= eps * (1 + ROUNDING) for eps in points]
    return [(eps, rate(by_cluster(hit.double(), clusters), pictures)) for eps, hit in zip(points, near, strict=True)]

"""Rare failures of pictures: how close a view is to one, and what was estimated for each picture and arm."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.eot.bank import Bank
from attacks.evaluation.clusters import Row
from attacks.evaluation.judge import Judge
from attacks.evaluation.rare.proposal import Floats
from attacks.evaluation.rare.splitting import RareFigures
from attacks.runtime.values import stored
from transforms import Compose
from transforms.scene import Shown

#: Whose failure: of the encoder, which takes a view of the untouched picture for something else; or of the attack,
#: because a view of the attacked picture is not taken for what the attacker wants.
Arm = Literal["clean", "eot"]
ARMS: tuple[Arm, ...] = ("clean", "eot")
#: The largest coordinate below 1 in single precision.
MAX_POINT = 1 - 2**-24


@stored("failure.picture")
@dataclass(frozen=True, eq=False)
class PictureFailure(RareFigures):
    """The probability that a view of a picture fails, for one arm; `views` were scored in all. Of the view that fails
    most, or is nearest to a failure: physical `values` by coordinate, and its pixels (3,h,w) or None."""

    picture: str
    cluster: str
    arm: str
    views: int
    values: dict[str, float]
    view: Tensor | None = None

    def __str__(self) -> str:
        return f"{self.picture} {self.arm}: {self.words} ({self.views:,} views, {self.method})"

    def row(self) -> dict[str, object]:
        """A row of failure.csv; the values of the coordinates have their names."""
        return {name: getattr(self, name) for name in FIELDS} | self.values


#: The columns of failure.csv before those of the coordinates, and what reads each back.
FIELDS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("picture", "cluster", "arm"), str),
    **dict.fromkeys(("p", "low", "high"), float),
    "draws": int,
    **dict.fromkeys(("estimate", "estimate_low", "estimate_high", "singleton"), float),
    "views": int,
    "method": str,
}


def of_row(row: Row) -> PictureFailure:
    """The inverse of `PictureFailure.row`, without pixels."""
    values = {name: float(str(value)) for name, value in row.items() if name not in FIELDS}
    return PictureFailure(**{name: read(row[name]) for name, read in FIELDS.items()}, values=values)


def largest_first(failures: Iterable[PictureFailure]) -> list[PictureFailure]:
    """In falling order of what was met or estimated, whichever is larger."""
    return sorted(failures, key=lambda failure: (-max(failure.p, failure.estimate), -failure.high))


def failure_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json: by arm the pictures, the one that fails most often first."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for failure in largest_first(map(of_row, rows)):
        figures = {key: value for key, value in vars(failure).items() if key not in ("cluster", "arm", "view")}
        arms.setdefault(failure.arm, []).append(figures | {"words": failure.words})
    clusters = {row["picture"]: row["cluster"] for row in rows}
    head = {"pictures": len(clusters), "clusters": len(set(clusters.values()))}
    return head | {"arms": {arm: arms[arm] for arm in sorted(arms)}}


def margin_score(judge: Judge, scene: Shown, row: int, views: Compose, arm: Arm) -> Callable[[Floats], Floats]:
    """The score (n,) of views u (n,d) of one picture; 0 or less is a failure.

    It is a difference of cosines: the largest to rows of the gallery with which the view is no failure, minus the
    largest to the others. So its sign follows `Judge.success`. `row` is the picture's number among the judge's.
    """
    gallery, target = F.normalize(judge.embeddings, dim=1), (judge.truth if judge.goal is None else judge.goal)[row]
    matches = judge.known.same(torch.arange(len(gallery)), target).to(gallery.device)
    good = matches if (arm == "clean") == (judge.goal is None) else ~matches

    def score(u: Floats) -> Floats:
        points = torch.from_numpy(np.ascontiguousarray(u)).to(gallery).clamp(max=MAX_POINT)
        share = judge.world.share(len(points))
        features = Bank(views, points[share]).features(scene, judge.encoder, judge.chunk)[0]
        unit = F.normalize(features if judge.signature is None else judge.signature(features), dim=1)
        similar = unit @ gallery.T
        margins = similar.new_zeros(len(points))
        margins[share] = similar[:, good].amax(1) - similar[:, ~good].amax(1)
        judge.world.sum(margins)
        return margins.double().cpu().numpy()

    return score

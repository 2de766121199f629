"""Where in the space of views an attack works: maps over two coordinates, curves over one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from attacks.eot.bank import Bank, bank
from attacks.evaluation.clusters import Sample
from attacks.evaluation.judge import CellScores, Scoring, judged
from attacks.evaluation.significance import fewest_clusters, holm, sign_flip
from attacks.evaluation.slices import Axis, axis, slice_points
from attacks.runtime.stored import stored
from transforms import Compose
from transforms.scene import Shown, base_of


@stored("response.slice")
@dataclass(frozen=True)
class Slice:
    """Scores in the cells of one or two coordinates; the first coordinate varies fastest.

    scores: of N pictures by arm, (N, cells * views); the views of a cell are adjacent.
    clusters: of the pictures.
    """

    axes: tuple[Axis, ...]
    scores: dict[str, CellScores]
    views: int
    clusters: tuple[str, ...]

    def cell(self, arm: str, at: int) -> CellScores:
        return self.scores[arm].cell(slice(at * self.views, (at + 1) * self.views))

    @property
    def places(self) -> list[tuple[float, ...]]:
        """The physical values of each cell, in the order of `axes`."""
        return [place[::-1] for place in product(*(axis.values for axis in self.axes[::-1]))]

    def curve_dict(self) -> dict[str, Any]:
        return {"x": self.axes[0].to_dict(), "arms": {arm: self._table(arm) for arm in self.scores}}

    def map_dict(self) -> dict[str, Any]:
        x, y = self.axes
        arms = {arm: {key: self._rows(cells) for key, cells in self._table(arm).items()} for arm in self.scores}
        content = {"x": x.to_dict(), "y": y.to_dict(), "arms": arms, "p_holm": None, "needed": None}
        if "no_eot" in self.scores:
            minimum = fewest_clusters(len(self.places))
            if len(set(self.clusters)) < minimum:
                content["needed"] = minimum
            else:
                content["p_holm"] = self._rows(holm([self._p(at) for at in range(len(self.places))]))
        return content | self._extremes()

    def rows(self, kind: str, number: int, names: Sequence[str]) -> list[dict[str, object]]:
        """A row for each arm, cell, picture and view. A curve has no y."""
        x, y = self.axes[0].name, self.axes[1].name if len(self.axes) > 1 else None
        table: list[dict[str, object]] = []
        for arm, (at, place) in product(self.scores, enumerate(self.places)):
            key = {"kind": kind, "number": number, "arm": arm, "x": x, "x_value": place[0]}
            key |= {"y": y, "y_value": place[1] if y else None}
            table += self.cell(arm, at).rows(names, **key)
        return table

    def _table(self, arm: str) -> dict[str, list[Any]]:
        cells = [self.cell(arm, at).to_dict(self.clusters) for at in range(len(self.places))]
        return {key: [cell[key] for cell in cells] for key in ("success", "cosine")}

    def _rows(self, cells: Sequence[Any]) -> list[list[Any]]:
        """A list of cells as one list for each y."""
        width = len(self.axes[0].values)
        return [list(cells[at : at + width]) for at in range(0, len(cells), width)]

    def _p(self, at: int) -> float:
        """The p value of the attack with EOT against the one without, from each cluster's share of successes."""
        first, second = (self.cell(arm, at).shares(self.clusters) for arm in ("eot", "no_eot"))
        return sign_flip(first - second)

    def _extremes(self) -> dict[str, Any]:
        """The cells of least (`worst`) and most (`best`) success with EOT; None where all cells have the same. They
        have no interval: that of the most extreme of many cells would have to hold for all of them."""
        means = [float(self.cell("eot", at).shares(self.clusters).mean()) for at in range(len(self.places))]
        ends = {"worst": min(means), "best": max(means)}
        if ends["worst"] == ends["best"]:
            return dict.fromkeys(ends)
        places = {name: self.places[means.index(end)] for name, end in ends.items()}
        return {name: {"x": x, "y": y, "success": ends[name]} for name, (x, y) in places.items()}


@stored("response")
@dataclass(frozen=True)
class Response:
    """All maps and curves, and the names and clusters of the pictures."""

    maps: tuple[Slice, ...]
    curves: tuple[Slice, ...]
    names: tuple[str, ...]
    clusters: tuple[str, ...]
    views: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        return {
            "pictures": len(self.names),
            "clusters": len(set(self.clusters)),
            "views": self.views,
            "maps": [part.map_dict() for part in self.maps],
            "curves": [part.curve_dict() for part in self.curves],
        }

    def rows(self) -> list[dict[str, object]]:
        """The rows of all maps, then of all curves."""
        maps = (part.rows("map", i, self.names) for i, part in enumerate(self.maps))
        curves = (part.rows("curve", i, self.names) for i, part in enumerate(self.curves))
        return [*chain(*maps, *curves)]


@dataclass(frozen=True)
class SlicePlan:
    """The slices of the space of views that are scored.

    Args:
        maps: pairs (x, y) of names of coordinates (see `attacks.evaluation.slices.coordinate`).
        curves: names of coordinates.
        transforms: the views of the attack.
        wide: the range of the cells (see `transforms.widened`).
        cells: along each side of a map.
        curve_cells: along a curve.
    """

    maps: Sequence[Sequence[str]]
    curves: Sequence[str]
    transforms: Compose
    wide: Compose
    cells: int = 7
    curve_cells: int = 9


def response(
    scenes_by_arm: Mapping[str, Shown], sample: Sample, judge: Scoring, plan: SlicePlan, *, seed: int, views: int = 4
) -> Response:
    """Scores over slices of the space of views.

    Args:
        scenes_by_arm: arm -> the pictures of the sample, as read back from their files.
        views: in each cell; they differ between cells only in the coordinates of the slice.

    Raises:
        ValueError: see `slice_axes`.
    """
    wide, maps = plan.wide, len(plan.maps)
    points = bank(wide, views, seed=seed, purpose="response").u.to(base_of(next(iter(scenes_by_arm.values()))).device)
    slices = []
    for axes in slice_axes(plan):
        cells = Bank(wide, slice_points(points, axes))
        scores = {arm: judged(judge, pictures, sample.rows, cells) for arm, pictures in scenes_by_arm.items()}
        slices.append(Slice(axes, scores, views, sample.clusters))
    return Response(tuple(slices[:maps]), tuple(slices[maps:]), sample.names, sample.clusters, views)


def slice_axes(plan: SlicePlan) -> list[tuple[Axis, ...]]:
    """The axes of all maps, then of all curves.

    Raises:
        ValueError: naming `evaluate.maps` or `evaluate.curves`: not a pair, a coordinate with itself, and the errors
            of `attacks.evaluation.slices.axis`.
    """
    transforms, wide = plan.transforms, plan.wide
    pairs = []
    for pair in plan.maps:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(
                f"`evaluate.maps` must be a list of pairs of coordinates, [[angle, scale]]; got {pair!r}"
            )
        x, y = (axis(name, transforms, wide, plan.cells, "evaluate.maps") for name in pair)
        if x.index == y.index:
            raise ValueError(f"`evaluate.maps` must pair two coordinates; got {x.name!r} twice")
        pairs.append((x, y))
    return [*pairs, *((axis(name, transforms, wide, plan.curve_cells, "evaluate.curves"),) for name in plan.curves)]

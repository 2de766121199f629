"""Where in the space of views an attack works: maps over two coordinates, curves over one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.evaluation.judge import CellScores, Scoring, judged
from attacks.evaluation.significance import holm, least_p, sign_flip
from attacks.evaluation.slices import Axis, axis, sliced
from attacks.runtime.stored import stored
from transforms import Compose, Shown, base_of


@stored("response.slice")
@dataclass(frozen=True)
class Slice:
    """Scores in the cells of one or two coordinates; the first coordinate varies fastest.

    scores: of N pictures by arm, (N, cells * views); the views of a cell are adjacent.
    targeted: whether the attack has a target, so that only success measures resistance.
    """

    axes: tuple[Axis, ...]
    scores: dict[str, CellScores]
    views: int
    targeted: bool

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
        content = {"x": x.to_dict(), "y": y.to_dict(), "arms": arms, "p_holm": None, "worst": None, "best": None}
        least = least_p(len(self.scores["eot"].cosine)) * len(self.places)
        content |= {"tested": "success" if self.targeted else "cosine", "p_least": min(1.0, least)}
        if "no_eot" in self.scores:
            content["p_holm"] = self._rows(holm([self._p(at) for at in range(len(self.places))]))
        order = self._order()
        return content | {"worst": self._named(order[0]), "best": self._named(order[-1])}

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
        cells = [self.cell(arm, at).to_dict() for at in range(len(self.places))]
        return {key: [cell[key] for cell in cells] for key in ("success", "cosine")}

    def _rows(self, cells: Sequence[Any]) -> list[list[Any]]:
        """A list of cells as one list for each y."""
        across = len(self.axes[0].values)
        return [list(cells[at : at + across]) for at in range(0, len(cells), across)]

    def _p(self, at: int) -> float:
        """The p value of the attack with EOT against the one without, from each picture's mean over its views:
        success with a target, else cosine."""
        cells = (self.cell(arm, at) for arm in ("eot", "no_eot"))
        first, second = ((cell.success if self.targeted else cell.cosine).double().mean(1) for cell in cells)
        return sign_flip(first - second)

    def _order(self) -> list[int]:
        """The cells, that where the encoder resists EOT most first: with a target the one of least success, then of
        highest cosine; without a target the one of highest cosine."""
        cells = [self.cell("eot", at) for at in range(len(self.places))]
        means = [(float(cell.success.double().mean()), float(cell.cosine.double().mean())) for cell in cells]
        keys = [(success, -cosine) if self.targeted else (-cosine, success) for success, cosine in means]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _named(self, at: int) -> dict[str, Any]:
        x, y = self.places[at]
        return {"x": x, "y": y} | self.cell("eot", at).to_dict()


@stored("response")
@dataclass(frozen=True)
class Response:
    """All maps and curves, and the names of the pictures."""

    maps: tuple[Slice, ...]
    curves: tuple[Slice, ...]
    names: tuple[str, ...]
    views: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        return {
            "pictures": len(self.names),
            "views": self.views,
            "maps": [each.map_dict() for each in self.maps],
            "curves": [each.curve_dict() for each in self.curves],
        }

    def rows(self) -> list[dict[str, object]]:
        """The rows of all maps, then of all curves."""
        maps = (each.rows("map", i, self.names) for i, each in enumerate(self.maps))
        curves = (each.rows("curve", i, self.names) for i, each in enumerate(self.curves))
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
    shown: Mapping[str, Shown],
    rows: Tensor,
    judge: Scoring,
    plan: SlicePlan,
    *,
    names: Sequence[str],
    seed: int,
    views: int = 4,
) -> Response:
    """Scores over slices of the space of views.

    Args:
        shown: arm -> the N pictures, as read back from their files.
        rows: (N,) the pictures' numbers among the queries, for `judge`.
        names: of the N pictures.
        views: in each cell; they differ between cells only in the coordinates of the slice.

    Raises:
        ValueError: see `axes_of`.
    """
    wide, maps = plan.wide, len(plan.maps)
    points = bank(wide, views, seed=seed, purpose="response").u.to(base_of(next(iter(shown.values()))).device)
    slices = []
    for axes in axes_of(plan):
        cells = Bank(wide, sliced(points, axes))
        results = {arm: judged(judge, pictures, rows, cells) for arm, pictures in shown.items()}
        scores = {arm: cell_scores for arm, (cell_scores, _) in results.items()}
        slices.append(Slice(axes, scores, views, any(targeted for _, targeted in results.values())))
    return Response(tuple(slices[:maps]), tuple(slices[maps:]), tuple(names), views)


def axes_of(plan: SlicePlan) -> list[tuple[Axis, ...]]:
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

"""Where in the space of views an attack works: maps over two coordinates, curves over one.

The chosen coordinates step from cell to cell, all others come from the same few points, so cells differ in the chosen
coordinates alone (common random numbers)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.judge import CellScores, Judge, cell_differences, cells_of, score_cells
from attacks.runtime.values import stored
from transforms import Compose
from transforms.scene import Shown, base_of

#: Points at which a coordinate is evaluated to find its distinct values.
PROBES = 4096


@stored("response.axis")
@dataclass(frozen=True)
class Axis:
    """One coordinate of the views, cut into cells: its `name` with the unit, its `index` in the pipeline, physical
    `values` at the middle of each cell, the same as points `at` of the unit interval, and its range in the attack."""

    name: str
    index: int
    values: tuple[float, ...]
    at: tuple[float, ...]
    attack_range: tuple[float, float]

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "values": list(self.values), "trained": list(self.attack_range)}


def axis(query: object, transforms: Compose, wide: Compose, cells: int, key: str) -> Axis:
    """The coordinate that `query` names, cut into `cells` equal cells of its range in `wide`; a discrete coordinate
    with fewer values has one cell for each. Raises ValueError, naming `key`, for an unknown or ambiguous name, a seed
    or a constant coordinate."""
    index = coordinate(query, wide.names, key)
    name = wide.names[index]
    if name.endswith("(seed)"):
        raise ValueError(f"`{key}` must name a quantity; {name!r} is the seed of noise: leave it out")
    values = _values_at(wide, index, (torch.arange(PROBES, dtype=torch.float64) + 0.5) / PROBES)
    if not bool((values != values[0]).any()):
        raise ValueError(
            f"`{key}` must name a coordinate that varies; {name!r} is always {float(values[0]):g} (give it a range "
            "in `transforms.stages`, or leave it out)"
        )
    at = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    runs = torch.unique_consecutive(values, return_counts=True)[1]
    if index in wide.discrete and len(runs) <= cells:
        at = (runs.cumsum(0) - runs / 2) / PROBES
    ends = _values_at(transforms, index, torch.tensor([0.0, 1 - 2**-40], dtype=torch.float64)).sort().values
    low, high = _digits(ends)
    return Axis(name, index, tuple(_digits(_values_at(wide, index, at))), tuple(at.tolist()), (low, high))


def coordinate(query: object, names: Sequence[str], key: str) -> int:
    """The index of the coordinate among `names` that `query` names, in full or by the beginning of any of its words:
    "affine angle (deg)", "affine: angle", "affine.angle", "angle", "ang". It must be unique; a full name takes
    precedence over a beginning. Raises ValueError with `key` and the known names."""
    text = _plain(query) if isinstance(query, str) else ""
    for fits in (str.__eq__, str.startswith):
        matches = [i for i, name in enumerate(names) if any(fits(part, text) for part in _parts(name))]
        if text and len(matches) == 1:
            return matches[0]
        if text and matches:
            options = ", ".join(repr(names[i]) for i in matches)
            raise ValueError(f"`{key}` must name one coordinate of the views; {query!r} may be {options}")
    options = ", ".join(repr(name) for name in names) or "none, for nothing varies"
    raise ValueError(f"`{key}` must name a coordinate of the views; got {query!r}; known are {options}")


def slice_points(points: Tensor, axes: Sequence[Axis]) -> Tensor:
    """The points (V,dims) in each cell: (cells * V,dims), the first axis fastest."""
    middles = torch.cartesian_prod(*[torch.tensor(axis.at, dtype=points.dtype) for axis in reversed(axes)])
    middles = middles.reshape(-1, len(axes)).flip(1).to(points.device)
    cells = points.repeat(len(middles), 1)
    for column, axis in enumerate(axes):
        cells[:, axis.index] = middles[:, column].repeat_interleave(len(points))
    return cells


def _values_at(transforms: Compose, index: int, at: Tensor) -> Tensor:
    """The physical values (K,) of a coordinate at points (K,), the others at their middle."""
    u = torch.full((len(at), transforms.dims), 0.5, dtype=torch.float64)
    u[:, index] = at
    return transforms.values(u)[:, index]


def _parts(name: str) -> list[str]:
    """The ends of a name that begin at one of its words, with and without the unit."""
    bare = re.sub(r"\s*\(.*\)$", "", name)
    starts = [match.start() for match in re.finditer(r"\S+", bare)]
    return [_plain(text[at:]) for at in starts for text in (name, bare)]


def _plain(text: str) -> str:
    """Lower-case letters and digits only, so that "thin_plate.row 1" equals "thinplate row 1"."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _digits(values: Tensor) -> list[float]:
    """Rounded to eight digits: the last bits are noise."""
    return [float(f"{value:.8g}") for value in values.tolist()]


@dataclass(frozen=True)
class SlicePlan:
    """The slices of the space of views that are scored: `maps` over pairs (x, y) of names of coordinates (see
    `coordinate`), of `cells` along each side, and `curves` over one, of `curve_cells`. The cells lie in the range of
    the `wide` views (see `transforms.widened`); `transforms` are those of the attack."""

    maps: Sequence[Sequence[str]]
    curves: Sequence[str]
    transforms: Compose
    wide: Compose
    cells: int = 7
    curve_cells: int = 9


def response(
    scenes: Mapping[str, Shown], sample: Sample, judge: Judge, plan: SlicePlan, *, seed: int, views: int = 4
) -> list[dict[str, object]]:
    """Scores over slices of the space of views: a row for each slice, arm, cell, picture and view. A curve has no y.

    `scenes` are by arm the pictures of the sample, as read back from their files. Each cell has so many `views`; they
    differ between cells only in the coordinates of the slice. Raises ValueError as `slice_axes`.
    """
    points = bank(plan.wide, views, seed=seed, purpose="response").u.to(base_of(next(iter(scenes.values()))).device)
    table: list[dict[str, object]] = []
    for (kind, number), axes in slice_axes(plan).items():
        cells, places = Bank(plan.wide, slice_points(points, axes)), places_of(axes)
        for arm, pictures in scenes.items():
            scores = score_cells(judge, pictures, sample.rows, cells)
            blocks = zip(scores.cosine.split(views, 1), scores.success.split(views, 1), strict=True)
            for place, block in zip(places, blocks, strict=True):
                x, y = axes[0].name, axes[1].name if len(axes) > 1 else None
                key = {"kind": kind, "number": number, "arm": arm, "x": x, "x_value": place[0]}
                table += CellScores(*block).rows(sample, **key, y=y, y_value=place[1] if y else None)
    return table


def places_of(axes: Sequence[Axis]) -> list[tuple[float, ...]]:
    """The physical values of each cell; the first coordinate varies fastest."""
    return [place[::-1] for place in product(*(axis.values for axis in axes[::-1]))]


def response_summary(rows: Sequence[Row], plan: SlicePlan) -> dict[str, Any]:
    """The content of metrics.json. Raises ValueError where the rows are not of the plan."""
    cells = cells_of(rows, "kind", "number", "arm", "x", "x_value", "y", "y_value")
    first, arms = next(iter(cells.values())), dict.fromkeys(str(row["arm"]) for row in rows)
    content: dict[str, list[Any]] = {"map": [], "curve": []}
    for (kind, number), axes in slice_axes(plan).items():
        names, table = [*(axis.name for axis in axes), ""], {}
        values = [[*map(str, place), ""][:2] for place in places_of(axes)]
        for arm in arms:
            keys = [(kind, str(number), arm, names[0], x, names[1], y) for x, y in values]
            if lacking := [key for key in keys if key not in cells]:
                raise ValueError(f"it has no rows of {', '.join(filter(None, lacking[0]))}")
            table[arm] = [cells.pop(key) for key in keys]
        curve = {"x": axes[0].to_dict(), "arms": {arm: _table(row) for arm, row in table.items()}}
        content[kind].append(_map(axes, table) if kind == "map" else curve)
    if cells:
        raise ValueError(f"its rows of {', '.join(next(iter(cells)))} are of no cell of this run")
    counts = {"pictures": len(first.clusters), "clusters": len(set(first.clusters)), "views": first.cosine.shape[1]}
    return counts | {"maps": content["map"], "curves": content["curve"]}


def _table(cells: Sequence[CellScores]) -> dict[str, list[Any]]:
    figures = [cell.to_dict() for cell in cells]
    return {key: [figure[key] for figure in figures] for key in ("success", "cosine")}


def _map(axes: Sequence[Axis], cells: Mapping[str, Sequence[CellScores]]) -> dict[str, Any]:
    """A map, from its cells by arm in the order of `places_of`: `p` compares with the attack without EOT."""
    x, y = axes

    def lines(values: Sequence[Any]) -> list[list[Any]]:
        """A list of cells as one list for each y."""
        return [list(values[at : at + len(x.values)]) for at in range(0, len(values), len(x.values))]

    arms = {arm: {key: lines(values) for key, values in _table(row).items()} for arm, row in cells.items()}
    content = {"x": x.to_dict(), "y": y.to_dict(), "arms": arms, "p": None, "needed": None}
    if "no_eot" in cells:
        pairs = enumerate(zip(cells["eot"], cells["no_eot"], strict=True))
        tests = [*cell_differences(dict(pairs)).values()]
        content["needed"] = tests[0]["needed"]
        content["p"] = None if tests[0]["p"] is None else lines([test["p"] for test in tests])
    return content


def slice_axes(plan: SlicePlan) -> dict[tuple[str, int], tuple[Axis, ...]]:
    """The axes of all maps, then of all curves, by kind and number. Raises ValueError, naming `evaluate.maps` or
    `evaluate.curves`, for what is no pair of different coordinates, and as `axis`."""
    transforms, wide = plan.transforms, plan.wide
    slices: dict[tuple[str, int], tuple[Axis, ...]] = {}
    for i, pair in enumerate(plan.maps):
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ValueError(f"`evaluate.maps` must be a list of pairs of coordinates, [[angle,scale]]; got {pair!r}")
        x, y = (axis(name, transforms, wide, plan.cells, "evaluate.maps") for name in pair)
        if x.index == y.index:
            raise ValueError(f"`evaluate.maps` must pair two coordinates; got {x.name!r} twice")
        slices["map", i] = (x, y)
    for i, name in enumerate(plan.curves):
        slices["curve", i] = (axis(name, transforms, wide, plan.curve_cells, "evaluate.curves"),)
    return slices

"""Slices of the space of views: chosen coordinates step from cell to cell, all others come from the same few points.

So cells differ in the chosen coordinates alone (common random numbers).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.runtime.stored import stored
from transforms import Compose

#: Points at which a coordinate is evaluated to find its distinct values.
PROBES = 4096


@stored("response.axis")
@dataclass(frozen=True)
class Axis:
    """One coordinate of the views, cut into cells.

    name: as in the pipeline, with the unit.
    index: among the pipeline's coordinates.
    values: physical values at the middle of each cell, with the other coordinates at their middle.
    at: the same as points of the unit interval.
    attack_range: the smallest and the largest value in the views of the attack.
    """

    name: str
    index: int
    values: tuple[float, ...]
    at: tuple[float, ...]
    attack_range: tuple[float, float]

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "values": list(self.values), "trained": list(self.attack_range)}


def axis(query: object, transforms: Compose, wide: Compose, cells: int, key: str) -> Axis:
    """The coordinate that `query` names, cut into `cells` equal cells of its range in `wide`; a discrete coordinate
    with fewer values has one cell for each.

    Raises:
        ValueError: naming `key`: an unknown or ambiguous name, a seed, a constant coordinate.
    """
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
        last = runs.cumsum(0)
        at = (last - runs / 2) / PROBES
    places = _values_at(wide, index, at)
    attack_range = _values_at(transforms, index, torch.tensor([0.0, 1 - 2**-40], dtype=torch.float64))
    low, high = _digits(attack_range.sort().values)
    return Axis(name, index, tuple(_digits(places)), tuple(at.tolist()), (low, high))


def coordinate(query: object, names: Sequence[str], key: str) -> int:
    """The index of the coordinate among `names` that `query` names, in full or by the beginning of any of its words:
    "affine angle (deg)", "affine: angle", "affine.angle", "angle", "ang". It must be unique; a full name takes
    precedence over a beginning.

    Raises:
        ValueError: with `key` and the known names.
    """
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
    """The points (V,dims) in each cell, with the chosen coordinates at its middle: (cells * V,dims), the first axis
    fastest."""
    middles = torch.cartesian_prod(*[torch.tensor(axis.at, dtype=points.dtype) for axis in reversed(axes)])
    middles = middles.reshape(-1, len(axes)).flip(1).to(points.device)
    cells = points.repeat(len(middles), 1)
    for column, axis in enumerate(axes):
        cells[:, axis.index] = middles[:, column].repeat_interleave(len(points))
    return cells


def _values_at(transforms: Compose, index: int, at: Tensor) -> Tensor:
    """The physical values (K,) of a coordinate at points (K,) of the unit interval, the others at their middle."""
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

"""Ranges of physical values, and the map from the unit interval into them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

Range = tuple[float, float]


def symmetric(value: float | Range, name: str) -> Range:
    """A number x means (-x, x); a pair is taken as it stands. Raises ValueError on anything else."""
    if isinstance(value, int | float):
        return pair((-abs(value), abs(value)), name)
    return pair(value, name)


def pair(value: Range, name: str, low: float = -math.inf, high: float = math.inf) -> Range:
    """`value` as (low, high) floats, checked: two finite numbers in order, within [low, high]."""
    try:
        if isinstance(value, str | Mapping):  # "15" would be 1 to 5, and a mapping its keys
            raise TypeError
        first, last = (float(v) for v in value)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a pair of numbers (low, high); got {value!r}") from None
    if not (math.isfinite(first) and math.isfinite(last) and first <= last):
        raise ValueError(f"`{name}` must be (low, high) with low <= high, both finite; got {value!r}")
    if first < low or last > high:
        raise ValueError(f"`{name}` must lie within [{low:g}, {high:g}]; got {value!r}")
    return first, last


def spread(u: Tensor, bounds: Range) -> Tensor:
    """[0,1) -> bounds, linearly."""
    return bounds[0] + (bounds[1] - bounds[0]) * u


def spread_whole(u: Tensor, bounds: tuple[int, int]) -> Tensor:
    """[0,1) -> the whole numbers low..high, both included and equally likely."""
    low, high = bounds
    return (low + (u * (high - low + 1)).floor()).clamp(max=high)


class Ranged:
    """A stage each of whose coordinates is spread evenly over a range of its own."""

    def _bounds(self) -> tuple[Range, ...]:
        """The checked ranges, one a coordinate. Raises ValueError with a field's name."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        self._bounds()

    def values(self, u: Tensor) -> Tensor:
        """(N,dims) in [0,1) -> (N,dims) physical values."""
        low, high = u.new_tensor(self._bounds()).unbind(-1)
        return low + (high - low) * u

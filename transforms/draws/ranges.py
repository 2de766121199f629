"""Ranges of physical values, and the map from the unit interval into them."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeGuard, cast

from torch import Tensor

from transforms.devices import constants
from transforms.doors import Doored

Range = tuple[float, float]

#: Further out than this no value means anything, and float32 would not tell its neighbours apart.
LIMIT = 1e6


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number; true and false are none, though Python counts them among the integers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def symmetric(value: float | Range, name: str, low: float = -LIMIT, high: float = LIMIT) -> Range:
    """The same as `pair`, but a number x means (-x, x)."""
    return pair((-abs(value), abs(value)) if is_number(value) else cast(Range, value), name, low, high)


def pair(value: Range, name: str, low: float = -LIMIT, high: float = LIMIT) -> Range:
    """`value` as (low, high) floats, checked: two finite numbers in order, within [low, high]."""
    try:
        # "15" would be 1 to 5, and a mapping its keys.
        if isinstance(value, str | Mapping) or any(isinstance(v, str | bool) for v in value):
            raise TypeError
        first, top = (float(v) for v in value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"`{name}` must be a pair of numbers (low, high); got {value!r}") from None
    if not (math.isfinite(first) and math.isfinite(top) and first <= top):
        raise ValueError(f"`{name}` must be (low, high) with low <= high, both finite; got {value!r}")
    if first < low or top > high:
        raise ValueError(f"`{name}` must lie within [{low:g}, {high:g}]; got {value!r}")
    return first, top


def spread(u: Tensor, bounds: Range) -> Tensor:
    """[0,1) -> bounds, linearly."""
    return bounds[0] + (bounds[1] - bounds[0]) * u


def to_decide(u: Tensor) -> Tensor:
    """Coordinates for a comparison with a threshold: float32 below 1, whatever precision a map computes in, so that
    what is recorded is what is rendered. (Half precision rounds a coordinate up to 1, which p = 1 must take.)"""
    return u.float().clamp(max=1 - 2**-24)


def spread_whole(u: Tensor, bounds: tuple[int, int]) -> Tensor:
    """[0,1) -> the whole numbers low..high, both included and equally likely."""
    low, high = bounds
    return (low + (u * (high - low + 1)).floor()).clamp(max=high)


def whole_pair(value: int | tuple[int, int], name: str, high: int, unit: str = "") -> int | tuple[int, int]:
    """A whole number from 1 to `high`, or two such in order; a pair of equal ones as one number."""
    ends = value if isinstance(value, tuple) else (value, value)
    if len(ends) != 2 or not all(type(end) is int and 1 <= end <= high for end in ends) or ends[0] > ends[1]:
        raise ValueError(f"`{name}` must be a whole number{unit} from 1 to {high} or (low, high); got {value!r}")
    return ends[0] if ends[0] == ends[1] else ends


class NoCoordinates(Doored):
    """A stage that does the same in every view."""

    dims: ClassVar[int] = 0
    names: ClassVar[tuple[str, ...]] = ()

    def values(self, u: Tensor) -> Tensor:
        return u


class WholeRanged(Doored):
    """A stage of one whole number (no coordinate), or of a range of them (one coordinate, which chooses)."""

    #: The coordinate's name with its unit, and the field that holds the number or the range.
    name: ClassVar[str]
    field: ClassVar[str]

    def _number(self) -> int | tuple[int, int]:
        return getattr(self, self.field)  # type: ignore[no-any-return]

    @property
    def names(self) -> tuple[str, ...]:
        return () if isinstance(self._number(), int) else (self.name,)

    @property
    def discrete(self) -> tuple[int, ...]:
        return tuple(range(self.dims))

    def values(self, u: Tensor) -> Tensor:
        number = self._number()
        return u if isinstance(number, int) else spread_whole(u, number)


class Coordinate(NamedTuple):
    """A coordinate of a `Ranged` stage: its name with the unit, the field that holds its range ("": none, it spans
    the limits), and the limits; where they reach below 0, a number x is the range (-x, x), unless it `is_pair`."""

    name: str
    field: str = ""
    low: float = -LIMIT
    high: float = LIMIT
    is_pair: bool = False

    def bounds(self, stage: object) -> Range:
        """The checked range of a stage."""
        if not self.field:
            return self.low, self.high
        read = symmetric if self.low < 0 and not self.is_pair else pair
        return read(getattr(stage, self.field), self.field, self.low, self.high)


class Ranged(Doored):
    """A stage each of whose coordinates is spread evenly over a range of its own."""

    coordinates: ClassVar[tuple[Coordinate, ...]]
    names: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "coordinates" in vars(cls):
            cls.names = tuple(coordinate.name for coordinate in cls.coordinates)

    @cached_property
    def bounds(self) -> tuple[Range, ...]:
        """The checked ranges, one per coordinate. Raises ValueError with a field's name."""
        return tuple(coordinate.bounds(self) for coordinate in self.coordinates)

    def __post_init__(self) -> None:
        _ = self.bounds

    def values(self, u: Tensor) -> Tensor:
        lows, highs = zip(*self.bounds, strict=True)
        low, high = constants(lows, u.dtype, u.device), constants(highs, u.dtype, u.device)
        return low + (high - low) * u

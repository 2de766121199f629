"""Every range of a pipeline made wider, for views just beyond the planned ones. A range is an argument whose change
moves the stage's `values` outwards, so a user's own stages are widened too."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transforms.camera.sizes import Downscale, ResizePad
from transforms.compose import Compose, Stage
from transforms.draws.ranges import is_number
from transforms.wrappers.choice import OneOf, Sometimes
from transforms.wrappers.on_layers import OnLayers

#: Bisections of the reach of an end, and the digits to which ends are rounded: so a limit is met exactly.
HALVES, DIGITS = 40, 8
#: The last coordinate that is evaluated, just below 1, and the tolerance of values for it, as a share of a range.
TOP, SLACK = 1 - 2**-40, 1e-9


def widened(pipeline: Compose, factor: float) -> Compose:
    """The pipeline with every range `factor` times as wide about its middle.

    Between two positive ends the logarithm is widened: (0.5, 2) twice as wide is (0.25, 4). Others are widened
    linearly; a number that stands for a range, such as a jitter, is multiplied. An end moves as far as its stage
    allows. A range of one point stays, and so do the size of a view and the coordinates' number and names.

    Raises:
        ValueError: a factor below 1.

    Examples:
        >>> from transforms import Affine, Compose
        >>> from transforms.wrappers import widened
        >>> widened(Compose([Affine(degrees=10, scale=(0.5, 2.0))]), 2).stages[0]
        Affine(degrees=20.0, scale=(0.25, 4.0), shear=(0.0, 0.0), translate=(0.0, 0.0))
    """
    if not isinstance(factor, int | float) or not 1 <= factor < math.inf:
        raise ValueError(f"`factor` must be a number of at least 1, the new width over the old; got {factor!r}")
    return replace(pipeline, stages=[_wide(stage, factor) for stage in pipeline.stages]) if factor > 1 else pipeline


def _wide(stage: Stage, factor: float) -> Stage:
    # By type, because a stage may hold others that run elsewhere, such as an encoder's own draws.
    match stage:
        case Compose():
            return widened(stage, factor)
        case Sometimes():
            return Sometimes(_wide(stage.stage, factor), stage.p)
        case OneOf():
            return OneOf([_wide(inner_stage, factor) for inner_stage in stage.stages], stage.weights)
        case OnLayers():
            place: Any = None if stage.place is None else _wide(stage.place, factor)
            return OnLayers([_wide(inner_stage, factor) for inner_stage in stage.stages], place)
        case Downscale(size=(_, high), then_size=None):  # the upper end says how large a view is, too
            return _grow(replace(stage, then_size=high), factor, fixed_end=("size", 1))
        case ResizePad():
            return _grow(stage, factor, fixed_end=("scale", 1))
    return _grow(stage, factor)


@dataclass(frozen=True)
class _End:
    """One end of a range: the argument, and which end of a pair (None: a number that stands for both)."""

    name: str
    side: int | None
    is_whole: bool
    low: float
    high: float

    def at(self, reach: float) -> float:
        """Where it lies when the range is `reach` times as wide."""
        if self.side is None:
            return _round(self.high * reach)
        if self.low > 0:
            middle, half = math.sqrt(self.low) * math.sqrt(self.high), math.sqrt(self.high / self.low)
            new = middle * half**reach if self.side else middle / half**reach
        else:
            middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
            new = middle + half * reach if self.side else middle - half * reach
        new = round(new) if self.is_whole else _round(new)
        return max(self.high, new) if self.side else min(self.low, new)  # not inwards, by rounding


def _grow(stage: Stage, factor: float, fixed_end: tuple[str, int] | None = None) -> Stage:
    """All ends move outwards together; one that meets a limit stays there, and the others go on. So a larger factor
    never makes a narrower range, where one end's limit depends on another's."""
    if not stage.dims:
        return stage
    old = _extent(stage)
    ends = [end for end in _ends(stage) if (end.name, end.side) != fixed_end and _moves(stage, old, end)]
    reach, free, common = dict.fromkeys(ends, 1.0), ends, 1.0

    def fits(group: Sequence[_End], to: float) -> bool:
        return _trial(stage, old, reach | dict.fromkeys(group, to)) is not None

    while free:
        common, excess = _furthest(partial(fits, free), common, factor)
        reach |= dict.fromkeys(free, common)
        left = [end for end in free if fits([end], excess)] if excess <= factor else []
        free = left if len(left) < len(free) else []
    return _trial(stage, old, reach) or stage


def _furthest(fits: Callable[[float], bool], good: float, limit: float) -> tuple[float, float]:
    """The largest reach up to `limit` that fits, from `good` on which does, and one a little beyond what does not."""
    if fits(limit):
        return limit, math.inf
    step, bad = limit - good, limit
    for _ in range(HALVES):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good, min(limit, bad + 1e-6 * step)


def _ends(stage: Any) -> list[_End]:
    """What may be an end of a range, by its type: pairs of numbers in order, and numbers."""
    ends = []
    fields = dataclasses.fields(stage) if dataclasses.is_dataclass(stage) else ()
    for field in (field for field in fields if field.init):
        value = getattr(stage, field.name)
        is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))
        if is_number(value) and value:
            ends.append(_End(field.name, None, False, value, value))
        elif is_pair and value[0] < value[1]:
            is_whole = _rebuild(stage, {field.name: tuple(map(float, value))}) is None
            ends += [_End(field.name, side, is_whole, *value) for side in (0, 1)]
    return ends


def _moves(stage: Stage, old: Tensor, end: _End) -> bool:
    """Whether the stage's values go further out when the end does, if only a little."""
    little = 1 + 1e-3
    while end.is_whole and end.at(little) == end.at(1):
        little = 1 + 2 * (little - 1)
    trial = _trial(stage, old, {end: little})
    return trial is not None and not _lies_in(_extent(trial), old)


def _trial(stage: Stage, old: Tensor, reach: dict[_End, float]) -> Stage | None:
    """The stage with its ends so far out; None where it refuses, or would no longer take all its `old` values."""
    arguments: dict[str, Any] = {}
    for end, to in reach.items():
        if end.side is None:
            arguments[end.name] = end.at(to)
        else:
            pair = list(arguments.get(end.name, getattr(stage, end.name)))
            pair[end.side] = end.at(to)
            arguments[end.name] = tuple(pair)
    result = _rebuild(stage, arguments)
    fits = result is not None and result.dims == stage.dims and _lies_in(old, _extent(result))
    return result if fits else None


def _lies_in(inner: Tensor, outer: Tensor) -> bool:
    """Whether the extents (2,dims) of one lie within those of the other."""
    slack = SLACK * (outer[1] - outer[0])
    return bool(((inner[0] >= outer[0] - slack) & (inner[1] <= outer[1] + slack)).all())


def _rebuild(stage: Any, arguments: dict[str, Any]) -> Stage | None:
    try:
        result: Stage = replace(stage, **arguments)
    except (TypeError, ValueError):
        return None
    return result


def _extent(stage: Stage) -> Tensor:
    """The least and the largest value of each coordinate (2,dims), over the cube's two opposite corners and their
    neighbours: an extent may depend on one other coordinate."""
    eye = torch.eye(stage.dims, dtype=torch.float64)
    zeros = torch.zeros(1, stage.dims, dtype=torch.float64)
    values = Compose((stage,)).values(torch.cat([zeros, eye, 1 - eye, zeros + 1]).clamp(max=TOP))
    return torch.stack([values.amin(0), values.amax(0)])


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

"""Stages that choose among stages. A choice among homographies is a homography, one among maps of points is a map of
points, and so they fuse; any other is a pixel stage. What is not chosen is not computed."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from transforms.compose import Compose, Discrete, Framed, Geometry, Homography, Stage
from transforms.devices import picked, uploaded
from transforms.doors import Doored, made, unchecked
from transforms.draws.ranges import to_decide

#: What a choice does for some rows of its batch: the chosen stage (None: leave the rows alone), the rows, and the
#: stage's part of `u` for them (n,dims), on the host.
Run = Callable[[Stage | None, list[int], Tensor], Tensor]


class _Choice(Doored):
    """What the choices share: the first coordinate chooses, the others are those of all the stages in turn."""

    #: What may be chosen, in the order of the coordinates; None is the identity.
    outcomes: tuple[Any, ...]

    def _choices(self, u: Tensor) -> Tensor:
        """The number (N,) of what each row of `u` chooses."""
        raise NotImplementedError

    def _choice_of(self, stages: tuple[Any, ...]) -> Geometry:
        """The same choice among other stages."""
        raise NotImplementedError

    def _label(self) -> str:
        raise NotImplementedError

    def _joint(self) -> Compose:
        """All stages in turn: their names, values and coordinates are those of a pipeline."""
        return Compose([stage for stage in self.outcomes if stage is not None])

    def __reduce__(self) -> tuple[Any, ...]:
        return globals()[type(self).__name__], tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    @property
    def dims(self) -> int:
        return 1 + self._joint().dims

    @property
    def names(self) -> tuple[str, ...]:
        return (self._label(), *self._joint().names)

    @property
    def discrete(self) -> tuple[int, ...]:
        return (0, *(1 + i for i in self._joint().discrete))

    def values(self, u: Tensor) -> Tensor:
        """The choice, and what each stage would do where it is chosen."""
        return torch.cat([self._choices(u)[:, None].to(u.dtype), self._joint().values(u[:, 1:])], dim=-1)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """Run each stage on the rows that choose it. Raises ValueError if its outcomes differ in shape."""
        outcomes, shapes = [*self.outcomes], dict[torch.Size, str]()

        def run(stage: Stage | None, rows: list[int], part: Tensor) -> Tensor:
            inputs = images if len(rows) == len(images) else picked(images, rows)
            part = part if isinstance(stage, Discrete) else uploaded(part, images.device)
            views = inputs if stage is None else unchecked(stage)(inputs, part)
            shapes.setdefault(views.shape[1:], "the identity" if stage is None else type(stage).__name__)
            if len(shapes) > 1:
                (kind, first), (other, second) = ((name, tuple(shape)) for shape, name in shapes.items())
                raise ValueError(
                    f"all outcomes of a choice must have one shape, or the views do not stack; {kind} makes {first}, "
                    f"{other} {second} (write it after the choice, or let each Downscale end at the same size)"
                )
            outcomes.remove(stage)
            return views

        views = self._run(u, run)
        # What no row of this batch chose must fit the next batch. Once for each shape: it costs a call of each stage.
        checked_shapes: set[torch.Size] = self.__dict__.setdefault("_compared", set())
        if views.shape[1:] != images.shape[1:] and images.shape[1:] not in checked_shapes:
            with torch.no_grad():
                for stage in tuple(outcomes):
                    run(stage, [0], u.new_full((1, 0 if stage is None else stage.dims), 0.5))
            checked_shapes.add(images.shape[1:])
        return views

    def _run(self, u: Tensor, run: Run) -> Tensor:
        choices, results, order = self._choices(u).tolist(), [], []
        parts = u[:, 1:].split([0 if stage is None else stage.dims for stage in self.outcomes], dim=1)
        for i, (stage, part) in enumerate(zip(self.outcomes, parts, strict=True)):
            rows = [row for row, choice in enumerate(choices) if choice == i]
            if rows:
                results.append(run(stage, rows, part[rows]))
                order += rows
        return results[0] if len(results) == 1 else picked(torch.cat(results), torch.tensor(order).argsort())


class _Points(_Choice):
    """What makes a choice among geometric stages one itself; unchosen stages are not even computed."""

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        def run(stage: Stage | None, rows: list[int], part: Tensor) -> Tensor:
            inputs = points if len(points) == 1 else picked(points, rows)
            part = part if isinstance(stage, Discrete) else uploaded(part, points.device)
            return stage.pull(inputs, part) if isinstance(stage, Geometry) else inputs.expand(len(rows), -1, -1, -1)

        return self._run(u, run)

    def framed(self, size: tuple[int, int]) -> Geometry:
        return self._choice_of(tuple(s.framed(size) if isinstance(s, Framed) else s for s in self.outcomes))

    __call__ = Geometry.__call__


class _Matrices(_Points):
    """What makes a choice among homographies one itself."""

    def matrix(self, u: Tensor) -> Tensor:
        def run(stage: Stage | None, rows: list[int], part: Tensor) -> Tensor:
            if isinstance(stage, Homography):
                return stage.matrix(part)
            return torch.eye(3, dtype=u.dtype, device=u.device).expand(len(rows), -1, -1)

        return self._run(u, run)


def _kind(base: type, stages: Sequence[object]) -> type:
    """The class of a choice `base` among these stages: what a stage *is* shows in the methods that it has."""
    for protocol, kind in ((Homography, _Matrices), (Geometry, _Points)):
        if stages and all(isinstance(stage, protocol) for stage in stages):
            return _mix_in(base, kind)
    return base


@lru_cache(maxsize=16)
def _mix_in(base: type, kind: type) -> type:
    # The same name, because pipelines label coordinates by it.
    return type(base.__name__, (kind, base), {"__module__": base.__module__, "__doc__": base.__doc__})


@dataclass(frozen=True)
class Sometimes(_Choice):
    """Apply a stage with probability `p`, else leave the image as it is.

    The first coordinate decides (below `p`: applied), the others are the stage's.

    Use: a change that only a share of the views has.
    Not: several alternatives: `OneOf`.
    Source: this project's own.
    Cost: that of the stage, on the rows that take it; of a geometric stage no resample of its own.
    Oracle: the stage itself on the rows that take it, tests/transforms/wrappers/test_choice.py.

    Args:
        stage: in a preset `stages`, of one stage or several that are applied together.
        p: the probability, within [0, 1]; 0 changes nothing.

    Raises:
        ValueError: `stage` is none, or `p` is no probability; when called, the stage changes the images' size.

    Examples:
        >>> from transforms.colour import Gain
        >>> from transforms.wrappers import Sometimes
        >>> stage, u = Sometimes(Gain((2, 2)), p=0.25), torch.tensor([[0.2, 0.0], [0.3, 0.0]])
        >>> stage(torch.full((2, 1, 1, 1), 0.25), u).flatten().tolist()
        [0.5, 0.25]
    """

    stage: Stage
    p: float = 0.5

    def __new__(cls, stage: Stage, *_: object, **__: object) -> "Sometimes":
        return object.__new__(_kind(Sometimes, (stage,)))

    def __post_init__(self) -> None:
        made("stage", self.stage)
        if not isinstance(self.stage, Stage):
            raise ValueError(f"`stage` must be a stage such as Affine(...); got {self.stage!r}")
        if not isinstance(self.p, int | float) or not 0 <= self.p <= 1:
            raise ValueError(f"`p` must be a probability, in [0, 1]; got {self.p!r}")

    @property
    def outcomes(self) -> tuple[Any, ...]:  # type: ignore[override]
        return (None, self.stage)

    def _choices(self, u: Tensor) -> Tensor:
        return (to_decide(u[:, 0]) < self.p).long()

    def _choice_of(self, stages: tuple[Any, ...]) -> Any:
        return Sometimes(stages[1], self.p)

    def _label(self) -> str:
        return "applied (0 or 1)"


@dataclass(frozen=True)
class OneOf(_Choice):
    """Apply one of several stages, each with its share of the weights.

    The first coordinate decides, the others are those of all stages in turn (so a coordinate means one thing only, at
    the price of some that a view does not use). Of geometric stages only, the choice fuses; of pixel stages only,
    each runs on its rows.

    Use: one of several resizers, formats or lenses, and nobody knows which.
    Not: one stage that may be left out: `Sometimes`.
    Source: this project's own.
    Cost: of each view that of the chosen stage; of geometric stages no resample of their own.
    Oracle: the chosen stage itself, tests/transforms/wrappers/test_choice.py.

    Args:
        stages: at least one, all geometric or none.
        weights: one a stage, at least 0, of any sum; None: equal.

    Raises:
        ValueError: `stages` or `weights` are not as said here; when called, two pixel stages make views of different
            sizes.

    Examples:
        >>> from transforms.colour import Gain
        >>> from transforms.wrappers import OneOf
        >>> u = torch.tensor([[0.7, 0.0, 0.0], [0.8, 0.0, 0.0]])
        >>> OneOf([Gain((2, 2)), Gain((0, 0))], [3, 1])(torch.full((2, 1, 1, 1), 0.25), u).flatten().tolist()
        [0.5, 0.0]
    """

    stages: Sequence[Stage]
    weights: Sequence[float] | None = None

    def __new__(cls, stages: Sequence[Stage], *_: object, **__: object) -> "OneOf":
        return object.__new__(_kind(OneOf, stages if isinstance(stages, Sequence) else ()))

    def __post_init__(self) -> None:
        stages = tuple(self.stages) if isinstance(self.stages, Sequence) else ()
        for stage in stages:
            made("stages", stage)
        if not stages or not all(isinstance(stage, Stage) for stage in stages):
            raise ValueError(f"`stages` must be a list of stages such as [Affine(...), Flip()]; got {self.stages!r}")
        kinds = {isinstance(stage, Geometry): type(stage).__name__ for stage in stages}
        if len(kinds) > 1:
            raise ValueError(
                f"`stages` must all be geometric or none; {kinds[True]} is and {kinds[False]} is not "
                f"(write Compose([{kinds[True]}(...)]), which is a pixel stage)"
            )
        weights = tuple(1.0 for _ in stages) if self.weights is None else _numbers(self.weights)
        if len(weights) != len(stages) or not all(0 <= w < math.inf for w in weights) or not sum(weights):
            raise ValueError(
                f"`weights` must be one number a stage, none negative, not all 0; got {self.weights!r} for "
                f"{len(stages)} stages"
            )
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "weights", weights)

    @property
    def outcomes(self) -> tuple[Any, ...]:  # type: ignore[override]
        return tuple(self.stages)

    def _choices(self, u: Tensor) -> Tensor:
        sums = list(itertools.accumulate(self.weights or ()))
        inner = torch.tensor([part / sums[-1] for part in sums[:-1]], dtype=torch.float32, device=u.device)
        return (to_decide(u[:, :1]) >= inner).sum(-1)

    def _choice_of(self, stages: tuple[Any, ...]) -> Any:
        return OneOf(stages, self.weights)

    def _label(self) -> str:
        kinds = (f"{i} = {label}" for i, label in enumerate(self._joint().labels))
        return f"stage ({', '.join(kinds)})"


def _numbers(values: Any) -> tuple[float, ...]:
    """Numbers of a list; none of anything else, such as of a string, whose digits would pass for numbers."""
    numbers = isinstance(values, Sequence) and all(isinstance(value, int | float) for value in values)
    return tuple(map(float, values)) if numbers else ()

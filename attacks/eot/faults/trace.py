"""One view, stage by stage: the values after each stage, and the gradient of the loss there.

Stages fuse: the value after a stage is that of the pipeline up to it, and the gradient that of the rest.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import EncoderDraws, encoder_draws
from attacks.encoders.tree import Encoder, Tree, leaves, map_tree
from attacks.runtime.values import stored
from transforms import Compose
from transforms.doors import unchecked
from transforms.scene import Scene, Shown

PICTURE, ENCODER, OBJECTIVE = "picture", "encoder", "objective"


@stored("fault.line")
class Line(NamedTuple):
    """A value on the way to the loss: its least and greatest finite number, how many numbers are not finite, and the
    L2 norm of the loss's gradient there (NaN or inf: that is not finite; None: there is none)."""

    name: str
    least: float
    greatest: float
    bad: int
    slope: float | None = None


@dataclass(frozen=True, eq=False)
class OneView:
    """A scene of one picture, seen from `u` (1,dims); `loss` takes the features of the view (a row) and gives
    (1,)."""

    transforms: Compose
    scene: Scene
    u: Tensor
    encoder: Encoder
    loss: Callable[[Tree], Tensor]

    def render(self, stages: slice, picture: Shown) -> Tensor:
        """What some consecutive stages make of a picture."""
        offset = sum(stage.dims for stage in self.transforms.stages[: stages.start or 0])
        part = replace(self.transforms, stages=self.transforms.stages[stages])
        return unchecked(part)(picture, self.u[:, offset : offset + part.dims])

    def judge(self, view: Tensor) -> Tensor:
        """The loss of a view."""
        return self.loss(unchecked(self.encoder)(view, **encoder_draws(self.transforms, self.u)))


def trace_view(view: OneView) -> tuple[tuple[Line, ...], Tensor]:
    """A line for the picture, each stage, the encoder and the objective; and what the encoder sees (1,C,h,w)."""
    transforms, scene, all_stages = view.transforms, view.scene, slice(None)
    stages = zip(transforms.labels, transforms.stages, strict=True)
    names = [label for label, stage in stages if not isinstance(stage, EncoderDraws)]
    with torch.no_grad():
        values = [view.render(slice(count), scene) for count in range(1, len(names) + 1)]
        result = view.render(all_stages, scene)
        features = unchecked(view.encoder)(result, **encoder_draws(transforms, view.u))
        loss = view.loss(features)

    def of_picture(pixels: Sequence[Tensor]) -> Tensor:
        layers = tuple(layer._replace(pixels=own) for layer, own in zip(scene.layers, pixels, strict=True))
        return view.judge(view.render(all_stages, scene._replace(layers=layers)))

    def of_value(count: int, own: Sequence[Tensor]) -> Tensor:
        return view.judge(view.render(slice(count, None), own[0]))

    def of_features(parts: Sequence[Tensor]) -> Tensor:
        own = iter(parts)
        return view.loss(map_tree(features, lambda _: next(own)))

    return (
        _line(PICTURE, [layer.pixels for layer in scene.layers], of_picture),
        *(
            _line(name, [value], partial(of_value, i))
            for i, (name, value) in enumerate(zip(names, values, strict=True), 1)
        ),
        _line(ENCODER, leaves(features), of_features),
        _line(OBJECTIVE, [loss], lambda own: own[0]),
    ), result


def first_fault(lines: Sequence[Line]) -> str | None:
    """Where a value is not finite for the first time on the way to the loss, or else a gradient on the way back."""
    names = {PICTURE: "the picture itself", ENCODER: "the encoder", OBJECTIVE: "the objective"}
    names = {line.name: names.get(line.name, f"stage `{line.name}`") for line in lines}
    for line in lines:
        if line.bad:
            return names[line.name]
    for line, following_line in reversed(list(itertools.pairwise(lines))):
        if line.slope is not None and not math.isfinite(line.slope):
            return f"the gradient of {names[following_line.name]}"
    return None


def slopes(values: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]) -> list[Tensor | None]:
    """The gradient of a loss by some tensors; None where there is none."""
    while True:
        leaves = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in values]
        with torch.enable_grad():
            total = loss(leaves).sum()
        able = [value for value in leaves if value.requires_grad]
        if not total.requires_grad:
            return [None] * len(leaves)
        try:
            gradients = iter(torch.autograd.grad(total, able, allow_unused=True))
        except Overflow:  # the scale is smaller now: try again
            continue
        return [next(gradients) if value.requires_grad else None for value in leaves]


def _line(name: str, values: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]) -> Line:
    flat = torch.cat([value.detach().flatten().cpu().double() for value in values])
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
    back = [slope.detach().flatten().cpu().double() for slope in slopes(values, loss) if slope is not None]
    return Line(name, low, high, len(flat) - len(finite), float(torch.cat(back).norm()) if back else None)

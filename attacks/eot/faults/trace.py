"""One view, stage by stage: the values after each stage, and the gradient of the loss there.

Stages fuse, so there is no picture between two that move points. The value after a stage is that of the pipeline up
to it, and the gradient there is the one that the rest of the pipeline gives: both are exact wherever the pipeline
itself touches pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine import Overflow
from attacks.encoders.randomness import EncoderDraws, drawn
from attacks.encoders.tree import Encoder, Tree, leaves, mapped
from attacks.runtime.stored import stored
from transforms import Compose, Scene

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

    transforms: Any  # a Compose, or any function of a scene and coordinates
    scene: Scene
    u: Tensor
    encoder: Encoder
    loss: Callable[[Tree], Tensor]

    @property
    def stages(self) -> list[str]:
        """The stages that touch pictures; a pipeline that is no `Compose` counts as one."""
        if not isinstance(self.transforms, Compose):
            return ["the views"]
        return [
            name for name, stage in zip(self.transforms.labels, self.transforms.stages, strict=True) if _sees(stage)
        ]

    def show(self, pixels: Sequence[Tensor]) -> Tensor:
        """The view of the scene with other pixels, layer by layer."""
        layers = tuple(layer._replace(pixels=own) for layer, own in zip(self.scene.layers, pixels, strict=True))
        view: Tensor = self.transforms(self.scene._replace(layers=layers), self.u)
        return view

    def upto(self, count: int) -> Tensor:
        """The view after the first `count` stages."""
        if not isinstance(self.transforms, Compose):
            view: Tensor = self.transforms(self.scene, self.u)
            return view
        first = replace(self.transforms, stages=self.transforms.stages[:count])
        return first(self.scene, self.u[:, : first.dims])

    def after(self, count: int, pixels: Sequence[Tensor]) -> Tensor:
        """The view, from its value after the first `count` stages."""
        stages = self.transforms.stages[count:] if isinstance(self.transforms, Compose) else ()
        if not any(map(_sees, stages)):
            return pixels[0]
        rest = replace(self.transforms, stages=stages)
        view: Tensor = rest(pixels[0], self.u[:, self.transforms.dims - rest.dims :])
        return view

    def judge(self, view: Tensor) -> Tensor:
        """The loss of a view."""
        loss: Tensor = self.loss(self.encoder(view, **drawn(self.transforms, self.u)))
        return loss


def traced(view: OneView) -> tuple[tuple[Line, ...], Tensor]:
    """A line for the picture, each stage, the encoder and the objective; and what the encoder sees (1,C,h,w)."""
    with torch.no_grad():
        values = [view.upto(k) for k in range(1, len(view.stages) + 1)]
        pixels = [layer.pixels for layer in view.scene.layers]
        shown = values[-1] if values else view.transforms(view.scene, view.u)
        features = view.encoder(shown, **drawn(view.transforms, view.u))
        loss = view.loss(features)
    lines = [_line(PICTURE, pixels, slopes(pixels, lambda own: view.judge(view.show(own))))]
    for k, (name, value) in enumerate(zip(view.stages, values, strict=True), 1):
        rest = partial(view.after, k)
        lines.append(_line(name, [value], slopes([value], lambda own, rest=rest: view.judge(rest(own)))))  # type: ignore[misc]
    parts = leaves(features)
    lines.append(_line(ENCODER, parts, slopes(parts, lambda own: view.loss(_refilled(features, own)))))
    return (*lines, _line(OBJECTIVE, [loss], [torch.ones_like(loss)])), shown


def broken(lines: Sequence[Line]) -> str | None:
    """Where a value is not finite for the first time on the way to the loss, or else a gradient on the way back."""
    names = {PICTURE: "the picture itself", ENCODER: "the encoder", OBJECTIVE: "the objective"}
    names = {line.name: names.get(line.name, f"stage `{line.name}`") for line in lines}
    for line in lines:
        if line.bad:
            return names[line.name]
    for here, after in zip(reversed(lines[:-1]), reversed(lines[1:]), strict=True):
        if here.slope is not None and not math.isfinite(here.slope):
            return f"the gradient of {names[after.name]}"
    return None


def slopes(values: Sequence[Tensor], loss: Callable[[list[Tensor]], Tensor]) -> list[Tensor | None]:
    """The gradient of a loss by some tensors; None where there is none."""
    while True:
        leaf = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in values]
        with torch.enable_grad():
            total = loss(leaf).sum()
        able = [one for one in leaf if one.requires_grad]
        if not total.requires_grad:
            return [None] * len(leaf)
        try:
            found = iter(torch.autograd.grad(total, able, allow_unused=True))
        except Overflow:  # the loss scale was halved: try again
            continue
        return [next(found) if one.requires_grad else None for one in leaf]


def _sees(stage: object) -> bool:
    return not isinstance(stage, EncoderDraws)


def _refilled(features: Tree, parts: Sequence[Tensor]) -> Tree:
    own = iter(parts)
    return mapped(features, lambda _: next(own))


def _line(name: str, values: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Line:
    flat = torch.cat([value.detach().flatten().cpu().double() for value in values])
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
    back = [slope.detach().flatten().cpu().double() for slope in gradients if slope is not None]
    return Line(name, low, high, len(flat) - len(finite), float(torch.cat(back).norm()) if back else None)

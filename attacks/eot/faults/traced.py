"""One view, stage by stage: which values a picture takes on its way to the loss, and which gradient comes back.

Stages fuse, so there is no picture between two that move points. The value after a stage is therefore that of the
pipeline up to it, and the gradient there is the one that the rest of the pipeline gives: both are exact wherever the
pipeline itself touches pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import EncoderDraws, drawn
from attacks.encoders.tree import Encoder, Tree, leaves, mapped
from transforms import Compose, Scene

PICTURE, ENCODER, OBJECTIVE = "picture", "encoder", "objective"


class Line(NamedTuple):
    """A value on the way: its least and its greatest finite number, how many numbers are not finite, and the L2 norm
    of the loss's gradient by it (NaN or inf: that is not finite; None: there is none)."""

    name: str
    least: float
    greatest: float
    bad: int
    slope: float | None = None


@dataclass(frozen=True, eq=False)
class OneView:
    """One picture of a scene, seen from the coordinates `u` (1,dims), and what becomes of it. `loss` takes the
    features of the view (a row) and gives (1,)."""

    transforms: Compose
    scene: Scene
    u: Tensor
    encoder: Encoder
    loss: Callable[[Tree], Tensor]

    @property
    def stages(self) -> list[str]:
        """The stages that touch pictures."""
        names = getattr(self.transforms, "labels", ["the views"])
        return names[:-1] if drawn(self.transforms, self.u) else names


class Trace(NamedTuple):
    """The `lines` of picture, stages, encoder and objective, in order; what the encoder was `shown` (1,C,h,w), the
    view's `loss` (1,), and its gradient by the features, part by part."""

    lines: tuple[Line, ...]
    shown: Tensor
    loss: Tensor
    pulled: tuple[Tensor, ...]


def traced(view: OneView) -> Trace:
    """Look at a view, stage by stage."""
    with torch.no_grad():
        values = [_upto(view, k) for k in range(1, len(view.stages) + 1)]
        base = [layer.pixels for layer in view.scene.layers]
        shown = values[-1] if values else view.transforms(view.scene, view.u)
        features = view.encoder(shown, **drawn(view.transforms, view.u))
    lines = [_line(PICTURE, base, slope_of(view, base, lambda pixels: _seen(view, pixels)))]
    for k, (name, value) in enumerate(zip(view.stages, values, strict=True), 1):
        found = slope_of(view, [value], lambda pixels, k=k: _after(view, pixels[0], k))  # type: ignore[misc]
        lines.append(_line(name, [value], found))
    loss, pulled = _judged(view, features)
    lines += [_line(ENCODER, leaves(features), pulled), _line(OBJECTIVE, [loss], [torch.ones_like(loss)])]
    return Trace(tuple(lines), shown, loss, pulled)


def broken(lines: Sequence[Line], view: OneView) -> str | None:
    """Where a value is not finite for the first time on the way to the loss, or else on the way back; in words."""
    words = {PICTURE: "the picture itself", ENCODER: "the encoder", OBJECTIVE: "the objective"}
    words |= {name: f"stage `{name}`" for name in view.stages}
    for line in lines:
        if line.bad:
            return words[line.name]
    for here, after in zip(reversed(lines[:-1]), reversed(lines[1:]), strict=True):
        if here.slope is not None and not math.isfinite(here.slope):
            return f"the gradient of {words[after.name]}"
    return None


def slope_of(view: OneView, at: Sequence[Tensor], show: Callable[[list[Tensor]], Tensor]) -> list[Tensor | None]:
    """The gradient of the view's loss by some tensors, of which `show` makes the view; None where there is none."""
    while True:
        leaf = [each.detach().clone().requires_grad_() for each in at]
        with torch.enable_grad():
            loss = view.loss(view.encoder(show(leaf), **drawn(view.transforms, view.u))).sum()
        if not loss.requires_grad:
            return [None] * len(leaf)
        try:
            return list(torch.autograd.grad(loss, leaf, allow_unused=True))
        except Overflow:  # the loss scale has been halved meanwhile
            continue


def _judged(view: OneView, features: Tree) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of a view, and its gradient by the features; zero where there is none."""
    own = [leaf.detach().clone().requires_grad_(leaf.is_floating_point()) for leaf in leaves(features)]
    places = iter(own)
    with torch.enable_grad():
        loss = view.loss(mapped(features, lambda _: next(places)))
        total = loss.sum()
    if not total.requires_grad:
        return loss.detach(), tuple(map(torch.zeros_like, own))
    able = [leaf for leaf in own if leaf.requires_grad]
    found = iter(torch.autograd.grad(total, able, allow_unused=True))
    slopes = (next(found) if leaf.requires_grad else None for leaf in own)
    zeros = map(torch.zeros_like, own)
    return loss.detach(), tuple(zero if slope is None else slope for slope, zero in zip(slopes, zeros, strict=True))


def _upto(view: OneView, count: int) -> Any:
    """The view after the first `count` stages."""
    pipeline: Any = view.transforms
    if not isinstance(pipeline, Compose):
        return pipeline(view.scene, view.u)
    first = replace(pipeline, stages=pipeline.stages[:count])
    return first(view.scene, view.u[:, : first.dims])


def _after(view: OneView, pixels: Tensor, count: int) -> Any:
    """The view, from its value after the first `count` stages."""
    pipeline: Any = view.transforms
    if not isinstance(pipeline, Compose):
        return pixels
    rest = replace(pipeline, stages=pipeline.stages[count:])
    alone = not rest.stages or all(isinstance(stage, EncoderDraws) for stage in rest.stages)
    return pixels if alone else rest(pixels, view.u[:, pipeline.dims - rest.dims :])


def _seen(view: OneView, pixels: Sequence[Tensor]) -> Tensor:
    """The view of a scene with other pixels."""
    layers = tuple(layer._replace(pixels=each) for layer, each in zip(view.scene.layers, pixels, strict=True))
    return view.transforms(view.scene._replace(layers=layers), view.u)


def _line(name: str, values: Sequence[Tensor], slopes: Sequence[Tensor | None]) -> Line:
    flat = torch.cat([value.detach().flatten().cpu().double() for value in values])
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
    back = [slope.detach().flatten().cpu().double() for slope in slopes if slope is not None]
    return Line(name, low, high, len(flat) - len(finite), float(torch.cat(back).norm()) if back else None)

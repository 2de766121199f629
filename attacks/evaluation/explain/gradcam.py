"""Grad-CAM (Selvaraju et al. 2017) of an embedding, at the last spatial layer."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.layers import OUTPUT, Visit, named_layers, unwrap, visits
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.tree import optional
from attacks.evaluation.explain.gradients import CountedEncoder

Size = tuple[int, int]

#: The most tokens before the patches: class, distillation, registers.
PREFIX = 8
#: The largest ratio between the aspects of a map and of the picture, which differ by rounding.
ASPECT_RATIO = 1.6
#: The number of layers tried, from the last one.
MAX_TRIALS = 48


class Attribution(NamedTuple):
    """The gradient (N,3,H,W) of the similarity and the non-negative Grad-CAM (N,h,w) in the layer's own size; None
    where there is none."""

    gradient: Tensor | None
    cam: Tensor | None


def attribution(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None) -> Attribution:
    leaf = pictures.detach().clone().requires_grad_()
    with torch.enable_grad(), _recording(encoder.encoder, [] if layer is None else [layer]) as answers:
        values = encoder.slope_values(leaf, anchors)
        gradient, *layer_gradients = encoder.gradients(values, [leaf, *answers.values()])
    if layer is None or layer_gradients[0] is None:
        return Attribution(gradient, None)
    frame = input_frame(encoder.encoder, (pictures.shape[2], pictures.shape[3]))
    answer, slope = (places(maps, frame) for maps in (answers[layer].detach(), layer_gradients[0]))
    return Attribution(gradient, (slope.mean((2, 3), keepdim=True) * answer).sum(1).relu())


def spatial_layer(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor) -> str | None:
    """The last spatial layer on whose positions the embedding depends, or None."""
    # With one row, an output for all pictures would look like one for each.
    pictures, anchors = (rows[:1].expand(2, *rows.shape[1:]) for rows in (pictures, anchors))
    frame = input_frame(encoder.encoder, (pictures.shape[2], pictures.shape[3]))
    names = _candidates(visits(encoder.encoder, pictures), frame)[-MAX_TRIALS:]
    encoder.forward += len(pictures)
    if not names:
        return None
    leaf = pictures.detach().clone().requires_grad_()
    with torch.enable_grad(), _recording(encoder.encoder, names) as answers:
        values = encoder.slope_values(leaf, anchors)
        gradients = encoder.gradients(values, [answers[name] for name in names])
    pairs = zip(names[::-1], gradients[::-1], strict=True)
    return next((name for name, slope in pairs if slope is not None and bool(places(slope, frame).any())), None)


def places(answer: Tensor, frame: Size) -> Tensor:
    """A layer's output, maps (N,C,h,w) or (N,h,w,C) or tokens (N,T,D), as maps (N,C,h,w)."""
    if answer.dim() == 3:
        prefix, side = _patches(answer.shape[1])
        return answer[:, prefix:].transpose(1, 2).reshape(len(answer), -1, side, side)
    return answer.movedim(3, 1) if _channels_last(tuple(answer.shape), frame) else answer


def on_picture(cam: Tensor, encoder: nn.Module, size: Size) -> Tensor:
    """A Grad-CAM (N,h,w) resized to pictures of `size`; 0 outside the encoder's crop."""
    spec = optional(unwrap(encoder), "preprocess")
    resized = spec.resized(*size) if isinstance(spec, Preprocess) else size
    axes, inside = [], []
    for has, long, wants in zip(size, resized, input_frame(encoder, size), strict=True):
        spare = long - wants
        nearest = isinstance(spec, Preprocess) and spec.centre == "nearest" and spare > 0
        offset = round(spare / 2) if nearest else int(spare / 2)
        at = ((torch.arange(has, device=cam.device) + 0.5) * long / has - offset) / wants
        axes.append(2 * at.to(cam) - 1)
        inside.append((at >= 0) & (at <= 1))
    y, x = torch.meshgrid(*axes, indexing="ij")
    grid = torch.stack([x, y], dim=2).expand(len(cam), -1, -1, -1)
    wide = F.grid_sample(cam[:, None], grid, padding_mode="border", align_corners=False)[:, 0]
    return wide * (inside[0][:, None] & inside[1]).to(cam)


def input_frame(encoder: nn.Module, size: Size) -> Size:
    """(height, width) of the network's own input, for pictures of `size`."""
    spec = optional(unwrap(encoder), "preprocess")
    return (spec.crop or spec.resized(*size)) if isinstance(spec, Preprocess) else size


def _candidates(layer_visits: Sequence[Visit], frame: Size) -> list[str]:
    """The spatial layers in the order in which they run; layers that return the same tensor count once."""
    single = [visit for visit in layer_visits if visit.features and visit.calls == 1 and visit.name != OUTPUT]
    single = [visit for visit in single if visit.answer is None or len(visit.shape or ()) == 3]
    single.sort(key=lambda visit: visit.order)
    tokens = [v.shape for v in single if v.shape and len(v.shape) == 3 and _patches(v.shape[1])[1] and v.shape[2] > 1]
    counts, width = {shape[1] for shape in tokens}, tokens[-1][2] if tokens else 0
    choice: dict[str, Visit] = {}
    for visit in single:
        shape = visit.shape or ()
        if len(shape) == 3:
            fits = shape in tokens and shape[2] == width  # the residual stream
        else:  # attention weights are no map
            fits = len(shape) == 4 and shape[2] not in counts and _has_map_aspect(shape, frame)
        if fits:
            key = visit.alias or visit.name
            choice[key] = min(choice.get(key, visit), visit, key=lambda candidate: candidate.name.count("."))
    return [visit.name for visit in choice.values()]


def _patches(tokens: int) -> tuple[int, int]:
    """The number of tokens before the patches, and the side of the patches' square; (0, 0) for none."""
    for prefix in range(min(PREFIX, tokens) + 1):
        side = math.isqrt(tokens - prefix)
        if side > 1 and side * side == tokens - prefix:
            return prefix, side
    return 0, 0


def _stretch(height: int, width: int, frame: Size) -> float:
    return abs(math.log(height / width * frame[1] / frame[0]))


def _channels_last(shape: tuple[int, ...], frame: Size) -> bool:
    """Whether the channels of (N,a,b,c) come last: a x b is closer to the aspect of the frame than b x c."""
    return _stretch(shape[1], shape[2], frame) < _stretch(shape[2], shape[3], frame)


def _has_map_aspect(shape: tuple[int, ...], frame: Size) -> bool:
    height, width = shape[1:3] if _channels_last(shape, frame) else shape[2:4]
    return min(height, width) > 1 and _stretch(height, width, frame) <= math.log(ASPECT_RATIO)


@contextmanager
def _recording(encoder: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """The outputs of layers during a pass. The next layer gets a copy, so that it cannot change them in place."""
    answers: dict[str, Tensor] = {}
    layers = named_layers(encoder)

    def record(name: str, answer: Any) -> Any:
        if isinstance(answer, Tensor):
            answers[name] = answer
            return answer.clone()
        answers[name], *rest = answer  # an attention with its weights
        return type(answer)((answers[name].clone(), *rest)) if type(answer) in (tuple, list) else None

    handles = [
        layers[name].register_forward_hook(lambda _module, _inputs, answer, name=name: record(name, answer))
        for name in names
    ]
    try:
        yield answers
    finally:
        for handle in handles:
            handle.remove()

"""How much a step shrinks the picture, and whether it filters first: read from the ramp that it returns."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Output samples further apart than this many source pixels alias (a bilinear tap covers two).
SPACING = 1.5
#: Share of white noise that may pass, relative to what the smaller picture can hold: a box filter passes 1.
ALIAS_LIMIT = 1.2
_TOLERANCE = 1e-3


class Warp(NamedTuple):
    """`points` (1,h,w,2), the source pixel of every output pixel, true where `inside` (1,h,w); `stretch`, the
    largest number of source pixels between neighbouring output pixels; `noise`, the power of white noise that passes
    where the stretch exceeds `SPACING`, relative to what the output can hold without aliasing (1.0 if nowhere)."""

    points: Tensor
    inside: Tensor
    stretch: float
    noise: float


@torch.no_grad()
def warp_of(call: Callable[[Tensor], Tensor | None], size: tuple[int, int], like: Tensor) -> Warp | None:
    """The warp that `call` applies to images (1,3,*size) in [0,1], or None if it is not one (it changes colours, or
    does not return three channels). `call` must do the same thing every time, and may return None for no images."""
    y, x = ((torch.arange(n, dtype=like.dtype, device=like.device) + 0.5) / n for n in size)
    ramp = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones_like(y[:, None] * x)])[None]
    full, half = _images(call(ramp)), _images(call(ramp.flip(1) / 2))
    if full is None or half is None or full.shape != half.shape:
        return None
    half = half.flip(1)
    white = ((full[:, 2] - 1).abs() < _TOLERANCE) & ((half[:, 2] - 0.5).abs() < _TOLERANCE)
    # Half as bright and with other colours goes in, and so it comes out: contrast, hue and noise fail, a warp passes.
    linear = (full[:, :2] - 2 * half[:, :2]).abs().amax(1) < _TOLERANCE
    inside = white & linear
    if inside.sum() < max(1, 0.99 * float(white.sum()), 0.05 * white.numel()):
        return None
    height, width = size
    points = full[:, :2].movedim(1, -1) * full.new_tensor([width, height]) - 0.5
    stretch, area = _jacobian(points, inside)
    dense = stretch > SPACING
    noise = 1.0
    if bool(dense.any()):
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(2, (1, 3, *size), generator=generator).to(like)
        output = _images(call(signs))
        if output is not None:
            power = ((output - 0.5).square().mean(1) / 0.25)[:, : stretch.shape[1], : stretch.shape[2]]
            noise = float((power * area)[dense].mean())
    return Warp(points, inside, float(stretch.max()) if stretch.numel() else 0.0, noise)


def _images(result: Tensor | None) -> Tensor | None:
    good = result is not None and result.dim() == 4 and result.shape[:2] == (1, 3) and result.is_floating_point()
    return result if good else None


def _jacobian(points: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The larger singular value and the determinant of the map, (1,h-s,w-s) each, 0 where the map is not known."""
    s = 4 if min(points.shape[1:3]) > 16 else 1  # a longer step: a nearest kernel rounds the map to whole pixels
    corner = points[:, :-s, :-s]
    a, b = (points[:, :-s, s:] - corner) / s, (points[:, s:, :-s] - corner) / s
    interior = inside[:, :-s, :-s] & inside[:, :-s, s:] & inside[:, s:, :-s]
    det = (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]).abs()
    trace = (a * a).sum(-1) + (b * b).sum(-1)
    stretch = ((trace + (trace * trace - 4 * det * det).clamp(min=0).sqrt()) / 2).sqrt()
    return torch.where(interior, stretch, 0.0), torch.where(interior, det, 0.0)

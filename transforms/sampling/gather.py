"""Reading an image tap by tap, which `grid_sample` cannot: any cubic kernel, and a gradient added up in a fixed order
(pytorch issue 68959)."""

import re
from typing import Any

import torch
from torch import Tensor

_REACH = {"nearest": (0,), "bilinear": (0, 1)}


def keys_parameter(kernel: str) -> float | None:
    """The a of "keys(a)", Keys' cubic convolution (1981), in [-2, 0]; -0.75 for "bicubic"; None for other names."""
    match = re.fullmatch(r"keys\((-?\d+(?:\.\d+)?)\)", kernel)
    if match is None or not -2 <= float(match[1]) <= 0:
        return -0.75 if kernel == "bicubic" else None
    return float(match[1])


def read_taps(images: Tensor, grid: Tensor, kernel: str, border: str) -> Tensor:
    """As `transforms.sampling.read.read`, differentiable in images and grid, bit for bit the same on every call."""
    batch, channels, height, width = images.shape
    n, h, w = grid.shape[:3]
    pixels = images.permute(0, 2, 3, 1).reshape(-1, channels)
    first = torch.arange(n, device=grid.device).div(n // batch, rounding_mode="floor") * (height * width)
    columns, rows = (_taps(grid[..., i], length, kernel, border) for i, length in enumerate((width, height)))
    total = grid.new_zeros(n, h, w, channels)
    for row, high in rows:
        for column, wide in columns:
            index = first[:, None, None] + row * width + column
            values: Tensor = _Gather.apply(pixels, index.flatten())
            total = total + values.view(n, h, w, channels) * (high * wide)[..., None]
    return total.permute(0, 3, 1, 2)


def _taps(coordinate: Tensor, length: int, kernel: str, border: str) -> list[tuple[Tensor, Tensor]]:
    """(index, weight) of each tap along one axis; a tap outside a constant border weighs nothing."""
    x = ((coordinate + 1) * length - 1) / 2
    # Far away nothing new is read, and an index must not overflow.
    x = x.clamp(-1e7, 1e7) if border.startswith("reflect") else x.clamp(-4, length + 3)
    base = x.detach().round() if kernel == "nearest" else x.detach().floor()
    part, taps = x - base, []
    for i in _REACH.get(kernel, (-1, 0, 1, 2)):
        index, weight = base.long() + i, _weight(part - i, kernel)
        if border == "constant":
            weight = weight * ((index >= 0) & (index < length))
        taps.append((_fold(index, length, border), weight))
    return taps


def _fold(index: Tensor, length: int, border: str) -> Tensor:
    """The pixel that stands for `index` outside the image."""
    if border in ("constant", "replicate"):
        return index.clamp(0, length - 1)
    edge = 1 if border == "reflect" else 0  # reflect repeats the outermost pixel
    period = max(2 * length - 2 + 2 * edge, 1)
    turn = index.remainder(period)
    return torch.where(turn >= length, period - edge - turn, turn)


def _weight(distance: Tensor, kernel: str) -> Tensor:
    a, x = keys_parameter(kernel), distance.abs()
    if a is None:
        return torch.ones_like(x) if kernel == "nearest" else 1 - x
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x <= 1, near, far)


class _Gather(torch.autograd.Function):
    """rows[index]; the gradients of a row read more than once are added in the order of `index`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = rows.shape
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.shape)
        if grad.is_cuda:
            # Accumulating, `index_put_` sorts its indices on CUDA; `index_add_` would race.
            return total.index_put_((index,), grad, accumulate=True), None
        return total.index_add_(0, index, grad), None

"""Resizing as the libraries do it to 8-bit files: their own integers, their own rounding.

- Pillow (13): weights in fixed point with 22 bits; one axis, rounded and clipped to 0..255, then the other. The
  columns come first, unless the height loses more than twice what the width does (before 13: always).
- torch: the same with as many bits as let the largest weight fit 16, the columns always first.
- OpenCV (5): one rounding and one clip, after both passes. Weights with 11 bits from coordinates in float32, of which
  bilinear drops some in between; bicubic in floating point; area and halves have arithmetic of their own.
- `keys`: no library's; rounded and clipped once.

The numbers are whole and below 2^53, so float64 holds them exactly and a matrix product is the same on any device.
"""

from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transforms.resizing.kernels import area_enlarging, kernel_of, weights

Size = tuple[int, int]

_OPENCV_BITS = 11
_PILLOW_BITS = 22


class Levels(NamedTuple):
    """The result of an 8-bit resize, and where it clipped."""

    levels: Tensor  # (N,C,h,w) whole numbers 0..255 in float64
    final: Tensor  # bool (N,C,h,w): true where the second pass was not clipped
    middle: Tensor  # bool, broadcasts over the image between the passes: the same of the first pass
    rows_first: bool = False


def resize_levels(levels: Tensor, out: Size, kernel: str) -> Levels:
    """Resize whole numbers 0..255 in float64 (N,C,H,W) to `out` (height, width) with a checked kernel."""
    size = (levels.shape[2], levels.shape[3])
    if kernel in ("cv2_linear", "cv2_area", "cv2_lanczos4"):
        return _once(_opencv(levels, size, out, kernel))
    if "nearest" in kernel or kernel == "cv2_cubic" or kernel.startswith("keys"):
        rows, columns = (weights(n, m, kernel, levels.dtype, levels.device) for n, m in zip(size, out, strict=True))
        return _once((rows @ levels @ columns.mT).round())
    (rows, row_bits), (columns, column_bits) = (
        _fixed_point(n, m, kernel, levels.device) for n, m in zip(size, out, strict=True)
    )
    if kernel.startswith("pil_") and size[0] - out[0] > max(0, 2 * (size[1] - out[1])):
        middle, first = _clip(_shift(rows @ levels, row_bits))
        return Levels(*_clip(_shift(middle @ columns.mT, column_bits)), first, rows_first=True)
    middle, first = _clip(_shift(levels @ columns.mT, column_bits))
    return Levels(*_clip(_shift(rows @ middle, row_bits)), first)


def _clip(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.clamp(0, 255), (values >= 0) & (values <= 255)


def _once(values: Tensor) -> Levels:
    return Levels(*_clip(values), values.new_ones((), dtype=torch.bool))


def _shift(values: Tensor, bits: int) -> Tensor:
    """(values + half) >> bits, of integers."""
    return torch.floor((values + 2.0 ** (bits - 1)) / 2.0**bits)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _fixed_point(length: int, out: int, kernel: str, device: torch.device) -> tuple[Tensor, int]:
    """The matrix of Pillow or torch in whole numbers, rounded half away from zero, and its bits."""
    real = weights(length, out, kernel, torch.float64, torch.device("cpu"))
    bits = _PILLOW_BITS
    if kernel.startswith("torch_"):
        largest = float(real.max())
        bits = next(b for b in range(_PILLOW_BITS + 1) if b == _PILLOW_BITS or 0.5 + largest * 2 ** (b + 1) >= 2**15)
    scaled = real * 2.0**bits
    return (scaled + 0.5 * scaled.sign()).trunc().to(device), bits


def _opencv(levels: Tensor, size: Size, out: Size, kernel: str) -> Tensor:
    """OpenCV's result before the clip, rounded."""
    halves = size == (2 * out[0], 2 * out[1])
    shrinks = out[0] <= size[0] and out[1] <= size[1]
    if (kernel == "cv2_linear" and halves) or (kernel == "cv2_area" and shrinks):  # halves are areas to OpenCV
        return _opencv_area(levels, size, out, halves)
    (rows, top, bottom), (columns, *_) = (
        _opencv_taps(n, m, kernel, levels.device) for n, m in zip(size, out, strict=True)
    )
    across = levels @ columns.mT
    if kernel == "cv2_lanczos4":
        return _shift(rows @ across, 2 * _OPENCV_BITS)
    across = torch.floor(across / 2**4)
    down = torch.floor(top @ across / 2**16) + torch.floor(bottom @ across / 2**16)
    return torch.floor((down + 2) / 4)


def _opencv_area(levels: Tensor, size: Size, out: Size, halves: bool) -> Tensor:
    rows, columns = (weights(n, m, "cv2_area", levels.dtype, levels.device) for n, m in zip(size, out, strict=True))
    mean = rows @ levels @ columns.mT
    if halves:
        return torch.floor(mean + 0.5)
    if size[0] % out[0] or size[1] % out[1]:
        return mean.round()
    # Whole pixels are added up as integers; the sum times 1/count in float32 decides the ties.
    count = (size[0] // out[0]) * (size[1] // out[1])
    return ((mean * count).round().float() * float(np.float32(1 / count))).round().to(levels.dtype)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _opencv_taps(length: int, out: int, kernel: str, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """OpenCV's matrix in whole numbers, and what its first tap and its others put in."""
    if kernel == "cv2_area":  # here only to enlarge
        index, weight = area_enlarging(length, out)
    else:
        rule = kernel_of(kernel)
        reach, scale = int(rule.support), 1 / (out / length)
        at = ((np.arange(out)[:, None] + 0.5) * scale - 0.5).astype(np.float32).astype(float)
        index = np.floor(at).astype(int) + 1 - reach + np.arange(2 * reach)
        weight = rule.weight(index - at)
    whole = np.rint(weight / reduce(np.add, weight.T)[:, None] * 2**_OPENCV_BITS)
    parts, rows = np.zeros((2, out, length)), np.arange(out)
    for k, (column, taps) in enumerate(zip(index.T.clip(0, length - 1), whole.T, strict=True)):
        parts[min(k, 1), rows, column] += taps
    whole_matrix, top, rest = (torch.from_numpy(m).to(device) for m in (parts.sum(0), *parts))
    return whole_matrix, top, rest

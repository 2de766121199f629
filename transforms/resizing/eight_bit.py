"""Resizing as the libraries do it to 8-bit files: their own integers, their own rounding.

- Pillow: weights in fixed point with 22 bits; one axis, rounded and clipped to 0..255, then the other. The columns
  come first, but in Pillow 13 (`pil_*`) not where the height loses more than twice what the width does; up to 12
  (`pil12_*`) always.
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

from transforms.resizing.kernels import Bands, area_enlarging, bands, find_kernel, matrix

Size = tuple[int, int]

_OPENCV_BITS = 11
_PILLOW_BITS = 22
#: Lines of a picture that are in float64 at once.
LINES = 128


class Levels(NamedTuple):
    """The result of an 8-bit resize, and where it clipped."""

    levels: Tensor  # (N,C,h,w) whole numbers 0..255 in float64
    final: Tensor  # bool (N,C,h,w): true where the second pass was not clipped
    middle: Tensor  # bool, broadcasts over the image between the passes: the same of the first pass
    rows_first: bool = False


def resize_levels(images: Tensor, out: Size, kernel: str) -> Levels:
    """Resize images (N,C,H,W), clamped to [0,1] and rounded to whole levels, to `out` (height, width) with a checked
    kernel."""
    size, device = (images.shape[2], images.shape[3]), _device(images)
    if kernel in ("cv2_linear", "cv2_area", "cv2_lanczos4"):
        return _round_values(_opencv(images, size, out, kernel))
    if "nearest" in kernel or kernel == "cv2_cubic" or kernel.startswith("keys"):
        rows, columns = _bands(size, out, kernel, device)
        return _round_values(rows.down(_first(images, columns, -1, rows)).round())
    (rows, row_bits), (columns, column_bits) = (
        _fixed_point(n, m, kernel, device) for n, m in zip(size, out, strict=True)
    )
    if kernel.startswith("pil_") and size[0] - out[0] > max(0, 2 * (size[1] - out[1])):
        middle, first = _clip(_shift(_first(images, rows, -2, columns), row_bits))
        return Levels(*_clip(_shift(columns.across(middle), column_bits)), first, rows_first=True)
    middle, first = _clip(_shift(_first(images, columns, -1, rows), column_bits))
    return Levels(*_clip(_shift(rows.down(middle), row_bits)), first)


def _device(images: Tensor) -> torch.device:
    """Where float64 can be computed: the images' device, or the CPU."""
    return torch.device("cpu") if images.device.type == "mps" else images.device


def _bands(size: Size, out: Size, kernel: str, device: torch.device) -> tuple[Bands, Bands]:
    rows, columns = (bands(n, m, kernel, torch.float64, device) for n, m in zip(size, out, strict=True))
    return rows, columns


def _first(images: Tensor, bands: Bands, axis: int, second_bands: Bands) -> Tensor:
    """The first pass, of the levels of images along an axis, some lines at a time; lines not used later stay 0."""
    other, product = -3 - axis, bands.down if axis == -2 else bands.across
    images = images.detach()
    lines = images.index_select(other, second_bands.used.to(images.device)) if second_bands.is_sparse else images
    result = torch.cat([product(_levels(part)) for part in lines.split(LINES, other)], other)
    return second_bands.spread(result, other)


def _levels(images: Tensor) -> Tensor:
    """Images as the whole numbers 0..255 of an 8-bit file, in float64."""
    wide = images.to(_device(images), torch.float64, copy=True)
    return wide.mul_(255).round_().clamp_(0, 255)


def _clip(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.clamp(0, 255), (values >= 0) & (values <= 255)


def _round_values(values: Tensor) -> Levels:
    return Levels(*_clip(values), values.new_ones((), dtype=torch.bool))


def _shift(values: Tensor, bits: int) -> Tensor:
    """(values + half) >> bits, of integers."""
    return torch.floor((values + 2.0 ** (bits - 1)) / 2.0**bits)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _fixed_point(length: int, out: int, kernel: str, device: torch.device) -> tuple[Bands, int]:
    """The matrix of Pillow or torch in whole numbers, rounded half away from zero, and its bits."""
    real = matrix(length, out, kernel)
    bits = _PILLOW_BITS
    if kernel.startswith("torch_"):
        largest = float(real.max())
        bits = next(b for b in range(_PILLOW_BITS + 1) if b == _PILLOW_BITS or 0.5 + largest * 2 ** (b + 1) >= 2**15)
    scaled = real * 2.0**bits
    return Bands.of((scaled + 0.5 * scaled.sign()).trunc(), device), bits


def _opencv(images: Tensor, size: Size, out: Size, kernel: str) -> Tensor:
    """OpenCV's result before the clip, rounded."""
    halves = size == (2 * out[0], 2 * out[1])
    shrinks = out[0] <= size[0] and out[1] <= size[1]
    if (kernel == "cv2_linear" and halves) or (kernel == "cv2_area" and shrinks):  # halves are areas to OpenCV
        return _opencv_area(images, size, out, halves)
    (rows, top, bottom), (columns, *_) = (
        _opencv_taps(n, m, kernel, _device(images)) for n, m in zip(size, out, strict=True)
    )
    values = _first(images, columns, -1, rows)
    if kernel == "cv2_lanczos4":
        return _shift(rows.down(values), 2 * _OPENCV_BITS)
    values = torch.floor(values / 2**4)
    down = torch.floor(top.down(values) / 2**16) + torch.floor(bottom.down(values) / 2**16)
    return torch.floor((down + 2) / 4)


def _opencv_area(images: Tensor, size: Size, out: Size, halves: bool) -> Tensor:
    rows, columns = _bands(size, out, "cv2_area", _device(images))
    mean = rows.down(_first(images, columns, -1, rows))
    if halves:
        return torch.floor(mean + 0.5)
    if size[0] % out[0] or size[1] % out[1]:
        return mean.round()
    # Whole pixels are added up as integers; the sum times 1/count in float32 decides the ties.
    count = (size[0] // out[0]) * (size[1] // out[1])
    return ((mean * count).round().float() * float(np.float32(1 / count))).round().to(mean.dtype)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _opencv_taps(length: int, out: int, kernel: str, device: torch.device) -> tuple[Bands, Bands, Bands]:
    """OpenCV's matrix in whole numbers, and what its first tap and its others put in."""
    if kernel == "cv2_area":  # here only to enlarge
        index, weight = area_enlarging(length, out)
    else:
        rule = find_kernel(kernel)
        reach, scale = int(rule.support), 1 / (out / length)
        at = ((np.arange(out)[:, None] + 0.5) * scale - 0.5).astype(np.float32).astype(float)
        index = np.floor(at).astype(int) + 1 - reach + np.arange(2 * reach)
        weight = rule.weight(index - at)
    fixed_point = np.rint(weight / reduce(np.add, weight.T)[:, None] * 2**_OPENCV_BITS)
    parts, rows = np.zeros((2, out, length)), np.arange(out)
    for k, (column, taps) in enumerate(zip(index.T.clip(0, length - 1), fixed_point.T, strict=True)):
        parts[min(k, 1), rows, column] += taps
    whole_matrix, top, rest = (Bands.of(torch.from_numpy(m), device) for m in (parts.sum(0), *parts))
    return whole_matrix, top, rest

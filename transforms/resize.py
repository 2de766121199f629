"""The only resizer: two matrices, one per axis, with the kernel a named choice.

The victim's downscaler is part of the threat: a perturbation made for Pillow's bicubic may be gone after OpenCV's.
So a kernel here is a *library's* kernel, with that library's support, edges and rounding of coordinates:

- `pil_*`: Pillow's `Image.resize`. The support grows with the reduction (antialias), weights that fall off the
  image are dropped and the rest renormalised. Bicubic a = -0.5. Equals torch's `interpolate(antialias=True)`.
- `cv2_*`: `cv2.resize`. Fixed support (no antialias) over replicated edges; cubic a = -0.75; `cv2_area` is the exact
  overlap of pixels when it shrinks.
- `torch_*`: `torch.nn.functional.interpolate(antialias=False, align_corners=False)`: OpenCV's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def _box(x: float) -> float:
    return 1.0 if -0.5 < x <= 0.5 else 0.0


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _keys(a: float) -> Callable[[float], float]:
    """Cubic convolution (Keys 1981) with parameter `a`."""

    def kernel(x: float) -> float:
        x = abs(x)
        if x < 1:
            return ((a + 2) * x - (a + 3)) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0

    return kernel


def _lanczos3(x: float) -> float:
    def sinc(t: float) -> float:
        return math.sin(math.pi * t) / (math.pi * t) if t else 1.0

    return sinc(x) * sinc(x / 3) if -3 <= x < 3 else 0.0


@dataclass(frozen=True)
class _Kernel:
    weight: Callable[[float], float]
    support: float
    antialias: bool  # Pillow's rule; otherwise OpenCV's


KERNELS = {
    "pil_box": _Kernel(_box, 0.5, antialias=True),
    "pil_bilinear": _Kernel(_triangle, 1.0, antialias=True),
    "pil_bicubic": _Kernel(_keys(-0.5), 2.0, antialias=True),
    "pil_lanczos": _Kernel(_lanczos3, 3.0, antialias=True),
    "cv2_linear": _Kernel(_triangle, 1.0, antialias=False),
    "cv2_cubic": _Kernel(_keys(-0.75), 2.0, antialias=False),
    "torch_bilinear": _Kernel(_triangle, 1.0, antialias=False),
    "torch_bicubic": _Kernel(_keys(-0.75), 2.0, antialias=False),
}
NAMES = (*KERNELS, "pil_nearest", "cv2_nearest", "cv2_area")


def resize(images: Tensor, size: int | tuple[int, int], kernel: str = "pil_bicubic") -> Tensor:
    """Resize (N,C,H,W) to `size` as the named library does in floating point.

    Args:
        images: any floating dtype; differentiable (the map is linear, its gradient exact).
        size: (height, width), or the length of the shorter side, the aspect kept as torchvision keeps it.
        kernel: one of `transforms.resize.NAMES`.

    Returns:
        (N,C,height,width), *not* clamped: bicubic and Lanczos overshoot by a few percent, as Pillow's float mode
        does. The `Downscale` stage and the encoders clamp, because an 8-bit file cannot hold an overshoot.

    Raises:
        ValueError: unknown kernel, or a size below 1.
    """
    height, width = images.shape[-2:]
    out_height, out_width = target_size((height, width), size)
    rows, columns = axes((height, width), (out_height, out_width), kernel, images)
    return rows @ images @ columns.mT


def target_size(size: tuple[int, int], target: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an image of `size` after a resize to `target` (see `resize`)."""
    if isinstance(target, int):
        short = min(size)
        target = (int(target * size[0] / short), int(target * size[1] / short))
    if min(target) < 1:
        raise ValueError(f"`size` must be at least 1 pixel each way; got {target}")
    return target


def axes(size: tuple[int, int], out: tuple[int, int], kernel: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices (out, in) that resize rows and columns, in the dtype and on the device of `like`."""
    if kernel not in NAMES:
        raise ValueError(f"`kernel` must be one of {', '.join(NAMES)}; got {kernel!r}")
    if kernel == "cv2_area" and (out[0] > size[0] or out[1] > size[1]):
        kernel = "cv2_area enlarging"  # OpenCV decides for both axes at once
    rows, columns = (_weights(n, m, kernel, like.dtype, like.device) for n, m in zip(size, out, strict=True))
    return rows, columns


@lru_cache(maxsize=1024)
@torch.inference_mode(False)  # a matrix first made in inference mode would be barred from autograd for good
def _weights(length: int, out: int, kernel: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The (out, length) matrix, computed in float64; rows sum to 1."""
    matrix = [[0.0] * length for _ in range(out)]
    for row, taps in zip(matrix, RULES.get(kernel, _kernel_taps)(length, out, kernel), strict=True):
        for j, weight in taps:
            row[j] += weight
    full = torch.tensor(matrix, dtype=torch.float64)
    return (full / full.sum(1, keepdim=True)).to(device, dtype)


Taps = Iterator[list[tuple[int, float]]]  # for each output pixel, (source index, weight)


def _kernel_taps(length: int, out: int, name: str) -> Taps:
    kernel, scale = KERNELS[name], length / out
    stretch = max(scale, 1.0) if kernel.antialias else 1.0
    for i in range(out):
        centre, reach = (i + 0.5) * scale, kernel.support * stretch
        if kernel.antialias:  # what falls off the image is dropped
            first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), length)
            yield [(j, kernel.weight((j + 0.5 - centre) / stretch)) for j in range(first, last)]
        else:  # what falls off the image is read from its edge
            first = math.floor(centre - 0.5) - int(kernel.support) + 1
            taps = range(first, first + 2 * int(kernel.support))
            yield [(min(max(j, 0), length - 1), kernel.weight(j + 0.5 - centre)) for j in taps]


def _pil_nearest(length: int, out: int, _: str) -> Taps:
    x, scale = 0.5 * length / out, length / out
    for _i in range(out):
        yield [(min(int(x), length - 1), 1.0)]
        x += scale  # Pillow adds up, so at a tie its rounding decides


def _cv2_nearest(length: int, out: int, _: str) -> Taps:
    scale = 1 / (out / length)  # OpenCV inverts the ratio, and rounds so
    return ([(min(int(i * scale), length - 1), 1.0)] for i in range(out))


def _cv2_area(length: int, out: int, _: str) -> Taps:
    scale = length / out
    for i in range(out):
        start, stop = i * scale, min((i + 1) * scale, length)
        yield [(j, min(stop, j + 1) - max(start, j)) for j in range(int(start), min(math.ceil(stop), length))]


def _cv2_area_enlarging(length: int, out: int, _: str) -> Taps:
    """A bilinear step that touches only source pixels that the output pixel overlaps; float32 as in OpenCV."""
    scale = 1 / (out / length)
    for i in range(out):
        j = int(i * scale)
        part = float(np.float32((i + 1) - (j + 1) * (out / length)))
        part = 0.0 if part <= 0 else part - math.floor(part)
        yield [(min(j, length - 1), 1 - part), (min(j + 1, length - 1), part)]


RULES: dict[str, Callable[[int, int, str], Taps]] = {
    "pil_nearest": _pil_nearest,
    "cv2_nearest": _cv2_nearest,
    "cv2_area": _cv2_area,
    "cv2_area enlarging": _cv2_area_enlarging,
}

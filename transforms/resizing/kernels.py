"""Which source pixels make an output pixel, and with what weight: the libraries' kernels, one axis at a time."""

from __future__ import annotations

import math
import re
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


def _lanczos(lobes: int) -> Callable[[float], float]:
    def sinc(t: float) -> float:
        return math.sin(math.pi * t) / (math.pi * t) if t else 1.0

    return lambda x: sinc(x) * sinc(x / lobes) if -lobes <= x < lobes else 0.0


@dataclass(frozen=True)
class Kernel:
    """A weight by distance in source pixels, zero beyond `support`."""

    weight: Callable[[float], float]
    support: float
    antialias: bool  # Pillow's rule; otherwise OpenCV's


KERNELS = {
    "pil_box": Kernel(_box, 0.5, antialias=True),
    "pil_bilinear": Kernel(_triangle, 1.0, antialias=True),
    "pil_bicubic": Kernel(_keys(-0.5), 2.0, antialias=True),
    "pil_lanczos": Kernel(_lanczos(3), 3.0, antialias=True),
    "cv2_linear": Kernel(_triangle, 1.0, antialias=False),
    "cv2_cubic": Kernel(_keys(-0.75), 2.0, antialias=False),
    "cv2_lanczos4": Kernel(_lanczos(4), 4.0, antialias=False),
    "torch_bilinear": Kernel(_triangle, 1.0, antialias=False),
    "torch_bicubic": Kernel(_keys(-0.75), 2.0, antialias=False),
    "torch_bilinear_aa": Kernel(_triangle, 1.0, antialias=True),
    "torch_bicubic_aa": Kernel(_keys(-0.5), 2.0, antialias=True),
}
NAMES = (*KERNELS, "pil_nearest", "cv2_nearest", "cv2_area", "torch_nearest", "torch_nearest_exact")
_KEYS = re.compile(r"keys(_aa)?\((-?\d+(?:\.\d+)?)\)")


def check_kernel(name: str) -> None:
    """Raise ValueError unless `name` is one of `NAMES`, "keys(a)" or "keys_aa(a)" with a in [-2, 0]."""
    if name in NAMES:
        return
    written = _KEYS.fullmatch(name) if isinstance(name, str) else None
    if written is None:
        raise ValueError(f"`kernel` must be one of {', '.join(NAMES)}, keys(a), keys_aa(a); got {name!r}")
    if not -2 <= float(written[2]) <= 0:
        raise ValueError(f"`kernel` {name!r}: Keys' parameter must lie in [-2, 0]; -0.5, -0.6, -0.75, -1 are in use")


def kernel_of(name: str) -> Kernel:
    """The kernel of a checked name that stands for a function of distance."""
    written = _KEYS.fullmatch(name)
    return Kernel(_keys(float(written[2])), 2.0, antialias=bool(written[1])) if written else KERNELS[name]


@lru_cache(maxsize=1024)
@torch.inference_mode(False)  # a matrix first made in inference mode would be barred from autograd for good
def weights(length: int, out: int, kernel: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The (out, length) matrix, computed in float64; rows sum to 1."""
    matrix = np.zeros((out, length))
    for row, taps in zip(matrix, _RULES.get(kernel, _kernel_taps)(length, out, kernel), strict=True):
        for j, weight in taps:
            row[j] += weight
    full = torch.from_numpy(matrix)
    return (full / full.sum(1, keepdim=True)).to(device, dtype)


Taps = Iterator[list[tuple[int, float]]]  # for each output pixel, (source index, weight)


def _kernel_taps(length: int, out: int, name: str) -> Taps:
    kernel, scale = kernel_of(name), length / out
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


def _torch_nearest(length: int, out: int, name: str) -> Taps:
    number = np.float64 if name.endswith("float64") else np.float32  # torch computes as precisely as its images are
    scale, shift = number(length) / number(out), number(0.5 if "exact" in name else 0.0)
    return ([(min(int((number(i) + shift) * scale), length - 1), 1.0)] for i in range(out))


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


_RULES: dict[str, Callable[[int, int, str], Taps]] = {
    "pil_nearest": _pil_nearest,
    "cv2_nearest": _cv2_nearest,
    "torch_nearest": _torch_nearest,
    "torch_nearest_exact": _torch_nearest,
    "torch_nearest float64": _torch_nearest,
    "torch_nearest_exact float64": _torch_nearest,
    "cv2_area": _cv2_area,
    "cv2_area enlarging": _cv2_area_enlarging,
}

"""Which source pixels make an output pixel, and with what weight: the libraries' kernels, one axis at a time."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from transforms.devices import HOST, uploaded

#: A kernel as a function of distances, element by element in float64.
Weight = Callable[[np.ndarray], np.ndarray]


def _box(x: np.ndarray) -> np.ndarray:
    return ((x > -0.5) & (x <= 0.5)).astype(x.dtype)


def _triangle(x: np.ndarray) -> np.ndarray:
    weight: np.ndarray = (1.0 - np.abs(x)).clip(0.0)
    return weight


def _keys(a: float) -> Weight:
    """Cubic convolution (Keys 1981) with parameter `a`."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = (((x - 5) * x + 8) * x - 4) * a
        return np.where(x < 1, near, np.where(x < 2, far, 0.0))

    return kernel


def _lanczos(lobes: int) -> Weight:
    def sinc(t: np.ndarray) -> np.ndarray:
        angle = math.pi * np.where(t == 0, 1.0, t)
        sine = np.reshape([*map(math.sin, angle.flat)], t.shape)  # numpy's may differ in the last bit
        return np.where(t == 0, 1.0, sine / angle)

    return lambda x: np.where((-lobes <= x) & (x < lobes), sinc(x) * sinc(x / lobes), 0.0)


@dataclass(frozen=True)
class Kernel:
    """A weight by distance in source pixels, zero beyond `support`."""

    weight: Weight
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
#: Beside those that are compared with one another.
KERNELS |= {"torch_lanczos_aa": KERNELS["pil_lanczos"]} | {
    f"pil12_{name}": KERNELS[f"pil_{name}"] for name in ("box", "bilinear", "bicubic", "lanczos")
}
_KEYS = re.compile(r"keys(_aa)?\((-?\d+(?:\.\d+)?)\)")


def check_kernel(name: str, key: str = "kernel") -> None:
    """Raise ValueError unless `name` is one of `KERNELS` or `NAMES`, "keys(a)" or "keys_aa(a)" with a in [-2, 0]."""
    names = dict.fromkeys((*KERNELS, *NAMES))
    if name in names:
        return
    match = _KEYS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(f"`{key}` must be one of {', '.join(names)}, keys(a), keys_aa(a); got {name!r}")
    if not -2 <= float(match[2]) <= 0:
        raise ValueError(f"`{key}` {name!r}: Keys' parameter must lie in [-2, 0]; -0.5, -0.6, -0.75, -1 are in use")


def find_kernel(name: str) -> Kernel:
    """The kernel of a checked name that stands for a function of distance."""
    match = _KEYS.fullmatch(name)
    return Kernel(_keys(float(match[2])), 2.0, antialias=bool(match[1])) if match else KERNELS[name]


@lru_cache(maxsize=1024)
@torch.inference_mode(False)  # a matrix first made in inference mode would be barred from autograd for good
def weights(length: int, out: int, kernel: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The (out, length) matrix, computed in float64; rows sum to 1."""
    return uploaded(matrix(length, out, kernel).to(dtype), device)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def bands(length: int, out: int, kernel: str, dtype: torch.dtype, device: torch.device) -> "Bands":
    """The same matrix as bands, for large pictures."""
    return Bands.of(matrix(length, out, kernel).to(dtype), device)


def matrix(length: int, out: int, kernel: str) -> Tensor:
    """The same as `weights`, in float64 on the CPU, and not cached."""
    index, weight = _RULES.get(kernel, _kernel_taps)(length, out, kernel)
    dense = np.zeros((out, length))
    np.add.at(dense, (np.arange(out)[:, None], index), weight)  # one tap after the other: an edge repeats
    full = torch.from_numpy(dense)
    return full / full.sum(1, keepdim=True)


Taps = tuple[np.ndarray, np.ndarray]  # for each output pixel, source indices and their weights, each (out, taps)


def _kernel_taps(length: int, out: int, name: str) -> Taps:
    kernel, scale = find_kernel(name), length / out
    centre = (np.arange(out)[:, None] + 0.5) * scale
    if not kernel.antialias:  # what falls off the image is read from its edge
        taps = int(2 * kernel.support)
        index = np.floor(centre - 0.5).astype(int) + 1 - taps // 2 + np.arange(taps)
        return index.clip(0, length - 1), kernel.weight(index + 0.5 - centre)
    stretch = max(scale, 1.0)
    reach = kernel.support * stretch
    first = np.maximum((centre - reach + 0.5).astype(int), 0)
    stop = np.minimum((centre + reach + 0.5).astype(int), length)
    index = first + np.arange((stop - first).max())
    weight = np.where(index < stop, kernel.weight((index + 0.5 - centre) / stretch), 0.0)
    return index.clip(0, length - 1), weight  # what falls off the image is dropped


def _single(index: np.ndarray, length: int) -> Taps:
    return np.minimum(index.astype(int), length - 1)[:, None], np.ones((len(index), 1))


def _torch_nearest(length: int, out: int, name: str) -> Taps:
    number: Any = np.float64 if name.endswith("float64") else np.float32  # torch has the precision of its images
    scale, shift = number(length) / number(out), number(0.5 if "exact" in name else 0.0)
    return _single((np.arange(out, dtype=number) + shift) * scale, length)


def _cv2_area(length: int, out: int, _: str) -> Taps:
    scale = length / out
    start = np.arange(out)[:, None] * scale
    stop = np.minimum(np.arange(1, out + 1)[:, None] * scale, length)
    index = start.astype(int) + np.arange(math.ceil(scale) + 1)
    overlap = np.minimum(stop, index + 1) - np.maximum(start, index)
    return index.clip(0, length - 1), np.where(index < stop, overlap, 0.0)


def area_enlarging(length: int, out: int, _: str = "cv2_area") -> Taps:
    """A bilinear step that touches only source pixels that the output pixel overlaps; float32 as in OpenCV."""
    i = np.arange(out)
    j = (i * (1 / (out / length))).astype(int)
    part = ((i + 1) - (j + 1) * (out / length)).astype(np.float32).astype(float)
    part = np.where(part <= 0, 0.0, part - np.floor(part))
    index = np.stack([j, j + 1], axis=1)
    return np.minimum(index, length - 1), np.stack([1 - part, part], axis=1)


_RULES: dict[str, Callable[[int, int, str], Taps]] = {
    # Pillow adds up, so at a tie its rounding decides; OpenCV inverts the ratio, and rounds so.
    "pil_nearest": lambda n, out, _: _single(np.cumsum([0.5 * n / out, *[n / out] * (out - 1)]), n),
    "cv2_nearest": lambda n, out, _: _single(np.arange(out) * (1 / (out / n)), n),
    "torch_nearest": _torch_nearest,
    "torch_nearest_exact": _torch_nearest,
    "torch_nearest float64": _torch_nearest,
    "torch_nearest_exact float64": _torch_nearest,
    "cv2_area": _cv2_area,
    "cv2_area enlarging": area_enlarging,
}


#: Rows of a block. Fewer touch fewer zeros, more make larger products.
ROWS = 16


class Block(NamedTuple):
    """Rows `start` to `stop` of a matrix: `weights` (stop - start, k) of the k columns that they use."""

    start: int
    stop: int
    columns: slice | Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Bands:
    """A matrix (out, length) with few weights in a row, near each other, and its transpose, as dense blocks.

    A kernel with fixed support skips most pixels of a large picture: those are not read forward, and their gradient
    is 0. `used` are the columns that have a weight. If they are less than half of all (`is_sparse`), `transpose` has
    only their rows.
    """

    length: int
    used: Tensor
    is_sparse: bool
    blocks: tuple[Block, ...]
    transpose: tuple[Block, ...]

    @classmethod
    def of(cls, matrix: Tensor, device: torch.device = HOST) -> "Bands":
        """The blocks of a dense matrix (out, length) of the host, on `device`."""
        out, length = matrix.shape
        used = matrix.any(0).nonzero()[:, 0]
        is_sparse = 0 < 2 * len(used) < length
        rows = matrix.T[used] if is_sparse else matrix.T
        transpose = _blocks(rows, max(1, ROWS * len(rows) // out), device)
        return cls(length, uploaded(used, device), is_sparse, _blocks(matrix, ROWS, device), transpose)

    def down(self, images: Tensor) -> Tensor:
        """matrix @ images: (...,length,W) -> (...,out,W)."""
        return _BandedProduct.apply(images, self, -2, False)  # type: ignore[no-any-return]

    def across(self, images: Tensor) -> Tensor:
        """images @ matrix.mT: (...,H,length) -> (...,H,out)."""
        return _BandedProduct.apply(images, self, -1, False)  # type: ignore[no-any-return]

    def lines(self, images: Tensor, axis: int) -> Tensor:
        """The adjoint of `down` (axis -2) or `across` (axis -1); if `is_sparse`, only the lines used."""
        return _BandedProduct.apply(images, self, axis, True)  # type: ignore[no-any-return]

    def spread(self, lines: Tensor, axis: int) -> Tensor:
        """A picture from its `lines`: where they are few, zeros between them."""
        if not self.is_sparse:
            return lines
        shape = list(lines.shape)
        shape[axis] = self.length
        return lines.new_zeros(shape).index_copy_(axis, self.used, lines)


def _blocks(matrix: Tensor, rows: int, device: torch.device) -> tuple[Block, ...]:
    blocks = []
    for start, part in zip(range(0, len(matrix), rows), matrix.split(rows), strict=True):
        used = part.any(0).nonzero()[:, 0]
        first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        dense = 2 * len(used) > stop - first
        columns = slice(first, stop) if dense else used
        weights = uploaded(part[:, columns].contiguous(), device)
        blocks.append(Block(start, start + len(part), columns if dense else uploaded(used, device), weights))
    return tuple(blocks)


def _product(images: Tensor, blocks: tuple[Block, ...], axis: int) -> Tensor:
    shape = list(images.shape)
    shape[axis] = blocks[-1].stop
    result = images.new_empty(shape)
    for start, stop, columns, weights in blocks:
        if axis == -2:
            result[..., start:stop, :] = weights @ images[..., columns, :]
        else:
            result[..., start:stop] = images[..., columns] @ weights.mT
    return result


class _BandedProduct(torch.autograd.Function):
    """The backward pass is one more product, of the transpose: autograd would add up a picture for each block."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, bands: Bands, axis: int, transpose: bool) -> Tensor:
        ctx.bands, ctx.axis, ctx.transpose = bands, axis, transpose
        return _product(images, bands.transpose if transpose else bands.blocks, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        bands, axis = ctx.bands, ctx.axis
        if ctx.transpose:
            return _BandedProduct.apply(bands.spread(grads[0], axis), bands, axis, False), None, None, None
        return bands.spread(bands.lines(grads[0], axis), axis), None, None, None

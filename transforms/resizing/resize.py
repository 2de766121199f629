"""The only resizer: two matrices, one per axis, of a library's kernel with its support, edges and rounding:

- `pil_*`: `Image.resize` of Pillow 13, `pil12_*` of Pillow up to 12, which differs in 8 bits alone. The support grows
  with the reduction (antialias), weights that fall off the image are dropped and the rest renormalised. Bicubic
  a = -0.5.
- `cv2_*`: `cv2.resize`. Fixed support (no antialias) over replicated edges; cubic a = -0.75; `cv2_area` is the exact
  overlap of pixels when it shrinks.
- `torch_*`: `torch.nn.functional.interpolate(align_corners=False)`, which has OpenCV's kernels, or with
  antialias=True (`torch_*_aa`) Pillow's. Nearest is the mode "nearest", or "nearest-exact".
- `keys(a)`: the cubic of Keys (1981) with any a, say "keys(-0.6)", fixed support over replicated edges, for a victim
  of an unknown library; `keys_aa(a)` is the same with Pillow's antialias.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.devices import HOST
from transforms.doors import OVERSHOOT, door
from transforms.resizing.eight_bit import resize_levels
from transforms.resizing.kernels import NAMES, Bands, bands, check_kernel, weights

__all__ = ["NAMES", "axes", "check_kernel", "resize", "target_size"]

#: The most weights of an axis, its old length times its new one, that are one dense product on the host, and on a
#: device, which launches each block of a larger one by itself.
DENSE, DENSE_ON_DEVICE = 160**2, 1024**2


@door(slack=OVERSHOOT)
def resize(
    images: Tensor, size: int | tuple[int, int], kernel: str = "pil_bicubic", *, eight_bit: bool = False
) -> Tensor:
    """Resize (N,C,H,W) to `size` as the named library does in floating point, or with its 8-bit arithmetic.

    Args:
        images: in [0,1] or a little outside, any floating dtype.
        size: (height, width), or the length of the shorter side, with torchvision's aspect.
        kernel: one of `transforms.resizing.kernels.KERNELS` or `NAMES`, "keys(a)" or "keys_aa(a)" with a in [-2, 0].
        eight_bit: do what the library does to an 8-bit file (see `transforms.resizing.eight_bit`). The gradient is
            that of the resize in floating point, zero where a clip holds a value.

    Returns:
        (N,C,height,width), *not* clamped: bicubic and Lanczos overshoot by a few percent. With `eight_bit` every
        value is exactly k/255, k whole, in [0,1].

    Raises:
        ValueError: unknown kernel, or a size below 1.

    Examples:
        >>> import numpy as np
        >>> from PIL import Image
        >>> from transforms import resize
        >>> levels = np.random.default_rng(0).integers(0, 256, (12, 16), dtype=np.uint8)
        >>> ours = resize(torch.tensor(levels)[None, None] / 255, (6, 8), "pil_bicubic", eight_bit=True)
        >>> np.array_equal((ours[0, 0] * 255).round().byte(), Image.fromarray(levels).resize((8, 6), Image.BICUBIC))
        True
    """
    old = (images.shape[2], images.shape[3])
    new = target_size(old, size)
    if not eight_bit:
        wide = at_least_float32(images)  # half-precision weights would not add up to 1
        if is_dense(old, new, images.device):
            rows, columns = axes(old, new, kernel, wide)
            return (rows @ wide @ columns.mT).to(images.dtype)
        left, right = _bands(old, new, kernel, wide)
        return right.across(left.down(wide)).to(images.dtype)
    _bands(old, new, kernel, images)  # refuses an unknown kernel
    return _EightBit.apply(images, new, kernel)  # type: ignore[no-any-return]


class _EightBit(torch.autograd.Function):
    """The gradient is that of the linear map, but for what a clip holds."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, new: tuple[int, int], kernel: str) -> Tensor:
        exact = resize_levels(images, new, kernel)
        ctx.rows_first = exact.rows_first
        ctx.bands = _bands((images.shape[2], images.shape[3]), new, kernel, images)
        inside = images.new_ones((), dtype=torch.bool)
        # Whether all values are inside is asked on the host only: it would wait for a device.
        if images.device.type != "cpu" or not _in_range(images, ctx.bands[0]):
            inside = (images >= 0) & (images <= 1)
        ctx.save_for_backward(*(mask.to(images.device) for mask in (inside, exact.middle, exact.final)))
        return _shares(exact.levels, images)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        inside, middle, final = ctx.saved_tensors
        rows, columns = zip(ctx.bands, (-2, -1), strict=True)
        (second, outer), (first, inner) = (columns, rows) if ctx.rows_first else (rows, columns)
        lines = second.lines(torch.where(final, grads[0], 0.0), outer)
        if middle.dim() and second.is_sparse:
            middle = middle.index_select(outer, second.used)
        grad = second.spread(first.spread(first.lines(torch.where(middle, lines, 0.0), inner), inner), outer)
        return torch.where(inside, grad, 0.0) if inside.dim() else grad, None, None


def target_size(
    size: tuple[int, int], target: int | tuple[int, int], rounded: Callable[[float], int] = int
) -> tuple[int, int]:
    """(height, width) of an image of `size` after a resize to `target` (see `resize`). `rounded` makes the longer
    side whole: torchvision rounds down, others to the nearest (`round`)."""
    if isinstance(target, int):
        short = min(size)
        target = (rounded(target * size[0] / short), rounded(target * size[1] / short))
    if min(target) < 1:
        raise ValueError(f"`size` must be at least 1 pixel each way; got {target}")
    return target


def is_dense(old: tuple[int, int], new: tuple[int, int], device: torch.device) -> bool:
    """Whether a picture is resized by two dense products (see `DENSE`)."""
    return max(old[0] * new[0], old[1] * new[1]) <= (DENSE if device == HOST else DENSE_ON_DEVICE)


def _in_range(images: Tensor, rows: Bands) -> bool:
    """Whether the rows that are read lie in [0,1]."""
    if not images.numel():
        return True
    low, high = (images.index_select(2, rows.used) if rows.is_sparse else images).detach().aminmax()
    return bool((low >= 0) & (high <= 1))


def axes(size: tuple[int, int], out: tuple[int, int], kernel: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """The matrices (out, in) that resize rows and columns, in the dtype and on the device of `like`."""
    check_kernel(kernel)
    name, place = _rule(size, out, kernel, like.dtype), (like.dtype, like.device)
    return weights(size[0], out[0], name, *place), weights(size[1], out[1], name, *place)


def _bands(size: tuple[int, int], out: tuple[int, int], kernel: str, like: Tensor) -> tuple[Bands, Bands]:
    check_kernel(kernel)
    name, place = _rule(size, out, kernel, like.dtype), (like.dtype, like.device)
    return bands(size[0], out[0], name, *place), bands(size[1], out[1], name, *place)


@lru_cache(maxsize=1024)
def _rule(size: tuple[int, int], out: tuple[int, int], kernel: str, dtype: torch.dtype) -> str:
    """The kernel as `weights` names it."""
    if kernel == "cv2_area" and (out[0] > size[0] or out[1] > size[1]):
        return "cv2_area enlarging"  # OpenCV decides for both axes at once
    if kernel.startswith("torch_nearest") and dtype == torch.float64:
        return f"{kernel} float64"
    return kernel


def _shares(levels: Tensor, like: Tensor) -> Tensor:
    """k -> k/255 in the dtype and on the device of `like`."""
    wide_levels = levels.to(like.device, torch.promote_types(like.dtype, torch.float32))
    # By a tensor: a GPU multiplies by the reciprocal of a plain number, one bit off.
    return (wide_levels / torch.full_like(wide_levels, 255)).to(like.dtype)

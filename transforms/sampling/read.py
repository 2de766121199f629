"""Reading an image at given places: kernels, borders, and what lies beyond the horizon.

Places are in the *grid frame* of `grid_sample(align_corners=False)`: the image's edges are at -1 and 1 on both axes,
so a pixel centre is at (2 i + 1) / n - 1.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from transforms.devices import constants
from transforms.doors import check_choice
from transforms.sampling.tone import Tone, apply_tone, clamp_gradient, settle_view

Kernel = str  # nearest | bilinear | bicubic | keys(a)
Border = Literal["constant", "replicate", "reflect", "reflect101"]
Value = float | tuple[float, ...] | Tensor  # a number, (C,) or (N,C)

KERNELS = ("nearest", "bilinear", "bicubic")
#: So many views of an image share one copy of its gradient (half the time, for an image of four times the side; a
#: fixed number, because the order of a sum is in its bits), or so many are read at a time, in the cache.
GROUP = 4

#: Places farther out than this see the border as well; beyond, grid_sample makes a NaN of an infinite coordinate.
FAR = 1e4

_PADDING = {"constant": "zeros", "replicate": "border", "reflect": "reflection", "reflect101": "reflection"}
#: ATen's numbers for `grid_sample`'s modes.
_MODE_CODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
_PADDING_CODES = {"zeros": 0, "border": 1, "reflection": 2}
_REACH = {"nearest": (0,), "bilinear": (0, 1)}


@dataclass(frozen=True)
class Resampling:
    """How an image is read between its pixels; the names are checked.

    Args:
        kernel: nearest | bilinear | bicubic | keys(a). `bicubic` is Keys' kernel with a = -0.75 (OpenCV, torch);
            `keys(a)` has any other a (scikit-image's order 3 is keys(-0.5), Pillow's `transform` keys(-1)).
        border: as in OpenCV. `constant` blends with `value` over one pixel, `reflect` repeats the edge pixel,
            `reflect101` does not.
        value: of the constant border, and of what lies beyond the horizon: a number, (C,) or (N,C).
        antialias: read a pyramid where the map shrinks (see `transforms.sampling.pyramid`).
        deterministic: read tap by tap, several times slower. On CUDA, where `grid_sample` adds up its gradient in no
            fixed order, the same call then gives the same bits; on a CPU it does so either way.
    """

    kernel: Kernel = "bilinear"
    border: Border = "constant"
    value: Value = 0.0
    antialias: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        kernel, kernels = self.kernel, ", ".join(KERNELS)
        if kernel not in KERNELS and (not isinstance(kernel, str) or keys_parameter(kernel) is None):
            raise ValueError(f"`kernel` must be one of {kernels}, keys(a) with a in [-2, 0]; got {kernel!r}")
        check_choice("border", self.border, get_args(Border))


def border_value(value: Value, images: Tensor) -> Tensor | None:
    """The border value as a tensor that broadcasts over (N,C,H,W), or None for plain zero; ValueError unless `value`
    is a number, (C,) or (N,C)."""
    if not isinstance(value, Tensor):
        if isinstance(value, int | float) and value == 0:
            return None
        if not all(map(math.isfinite, value if isinstance(value, tuple | list) else (value,))):
            raise ValueError(f"`value` must be finite; got {value}")
        several = tuple(value) if isinstance(value, tuple | list) else (value,)
        numbers = constants(several, images.dtype, images.device)
        value = numbers[0] if isinstance(value, int | float) else numbers
    if value.dim() == 0:
        return value
    n, c = images.shape[:2]
    if value.shape not in ((c,), (n, c), (1, c)):
        raise ValueError(f"`value` must be a number, ({c},) or ({n},{c}); got shape {tuple(value.shape)}")
    return value.reshape(-1, c, 1, 1)


def copies(tensor: Tensor, times: int) -> Tensor:
    """Each row `times` times over, one after the other; a single row is not copied."""
    if times == 1:
        return tensor
    return tensor.expand(times, *tensor.shape[1:]) if len(tensor) == 1 else tensor.repeat_interleave(times, 0)


def own_copies(tensor: Tensor, times: int) -> Tensor:
    """`copies` in memory of their own, to be changed in place. Not a view of another tensor: autograd would copy the
    gradient of a view that is changed."""
    return _OwnCopies.apply(tensor, times)  # type: ignore[no-any-return]


class _OwnCopies(torch.autograd.Function):
    """The gradient is a sum in a fixed order, as that of `index_select` is not on a GPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, times: int) -> Tensor:
        ctx.times = times
        if times == 1:
            return tensor.clone()
        rows = torch.arange(len(tensor), device=tensor.device).repeat_interleave(times)
        return tensor.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].unflatten(0, (-1, ctx.times)).sum(1), None


def read(
    images: Tensor,  # (B,C,H,W)
    grid: Tensor,  # (N,h,w,2), N a multiple of B: the views of the first image, then those of the second, ...
    resampling: Resampling,
    tone: Tone | None = None,
    mean: bool = False,
    solid: bool = False,
) -> Tensor:  # (N,C,h,w)
    """The images at the places of `grid`, through `tone`; outside, `constant` means zero. Same dtype for all. With
    `mean`, of 2 x 2 places of each pixel (see `halve`), and without a tone. `solid`: the last channel needs no
    gradient."""
    assert tone is None or not mean
    kernel, border = resampling.kernel, resampling.border
    if resampling.deterministic or kernel not in KERNELS:
        values = _read_taps(images, grid, kernel, border)
        values = halve(values) if mean else values
        return values if tone is None else apply_tone(values, tone)
    align = border == "reflect101"  # reflection about pixel centres is grid_sample's align_corners=True
    if align:
        height, width = images.shape[2:]
        grid = grid * constants((width / max(width - 1, 1), height / max(height - 1, 1)), grid.dtype, grid.device)
    views, height = len(grid) // len(images), grid.shape[1]
    large = images.shape[2] * images.shape[3] >= 2 * height * grid.shape[2]
    if not large and grid.device.type == "cpu":
        mode = _MODE_CODES[kernel], _PADDING_CODES[_PADDING[border]], align
        return _Views.apply(images, grid, tone, mode, mean, solid)  # type: ignore[no-any-return]
    group = next(k for k in range(GROUP, 0, -1) if views % k == 0)
    if group > 1:  # stacked below one another, they are one tall view
        grid = grid.reshape(-1, group * height, *grid.shape[2:])
    images = copies(images, views // group)
    values = F.grid_sample(images, grid, kernel, _PADDING[border], align_corners=align)
    values = values.unflatten(2, (group, height)).transpose(1, 2).flatten(0, 1) if group > 1 else values
    values = halve(values) if mean else values
    return values if tone is None else apply_tone(values, tone)


def halve(samples: Tensor) -> Tensor:
    """Four samples of each pixel (N,C,2h,2w), the first of all pixels along each axis, then the second -> their mean.
    Sums of whole rows take a third of the time of `avg_pool2d`."""
    for dim in (2, 3):
        first, second = samples.unflatten(dim, (2, -1)).unbind(dim)
        samples = first + second
    return samples / 4


class _Views(torch.autograd.Function):
    """`grid_sample` of each image at several grids, and the tone of the views. Its own backward pass would fill and
    add up a gradient the size of the image for every view, through memory; here a few views at a time stay in the
    cache from the first kernel to the last."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        grid: Tensor,
        tone: Tone | None,
        mode: tuple[int, int, bool],
        mean: bool,
        solid: bool,
    ) -> Tensor:
        ctx.mode, ctx.mean, ctx.gains = mode, mean, None
        ctx.colours = slice(-1 if solid and not ctx.needs_input_grad[1] else None)
        if tone is None:
            ctx.save_for_backward(images, grid)
            source = copies(images, len(grid) // len(images))
            samples = torch.grid_sampler_2d(source, grid, *mode)
            return halve(samples) if mean else samples
        views = images.new_empty(len(grid), images.shape[1], *grid.shape[1:3])
        shift = torch.empty_like(views) if any(ctx.needs_input_grad) else None
        tones = tone.rows()
        shared = images[:, None].expand(-1, len(grid) // len(images), -1, -1, -1)
        for owners, selection, rows in _parts(len(images), len(grid)):
            source = shared[owners, selection].flatten(0, 1)
            part = torch.grid_sampler_2d(source, grid[rows], *mode)
            clipped = part if shift is None else shift[rows]
            for row in zip(part, tones[rows], views[rows], clipped, strict=True):
                settle_view(*row)
        ctx.save_for_backward(images, grid, *(() if shift is None else (shift,)))
        ctx.gains = [row.gain for row in tones]
        return views

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, grid, *shifts = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:2])
        count = len(grid) // len(images)
        gains = ctx.gains or [1.0] * len(grid)
        total = torch.zeros_like(images)
        buffer, places = images.new_empty(0), []
        shared = images[:, None].expand(-1, count, -1, -1, -1)
        for owners, selection, rows in _parts(len(images), len(grid)):
            part = grad[rows]
            for shift in shifts:
                buffer = buffer if len(buffer) == len(part) else torch.empty_like(shift[rows])
                part = clamp_gradient(part, shift[rows], buffer)
            part, source = part[:, ctx.colours], shared[owners, selection].flatten(0, 1)[:, ctx.colours]
            if ctx.mean:
                part = (part / 4).repeat(1, 1, 2, 2)
            pixels, place = torch.ops.aten.grid_sampler_2d_backward(part, source, grid[rows], *ctx.mode, needs)
            if needs[0]:  # always view by view: the order of a sum is in its bits
                for view, pixel_grad in enumerate(pixels, rows.start):
                    total[view // count, ctx.colours].add_(pixel_grad, alpha=gains[view])
            if needs[1]:
                places.append(place.mul_(place.new_tensor(gains[rows])[:, None, None, None]))
        return (total if needs[0] else None, torch.cat(places) if needs[1] else None, *[None] * 4)


def _parts(images: int, views: int) -> list[tuple[slice, slice, slice]]:
    """Some images, which of their own views, and these among all views: at least as many at a time as there are
    threads to read them, if there are."""
    count, limit = views // images, GROUP * math.ceil(torch.get_num_threads() / GROUP)
    step = max(1, limit // count)
    parts = []
    for i in range(0, images, step):
        end = min(i + step, images)
        for j in range(i * count, end * count, limit if step == 1 else step * count):
            stop = min(j + limit, end * count) if step == 1 else end * count
            parts.append((slice(i, end), slice(j - i * count, stop - i * count), slice(j, stop)))
    return parts


def keys_parameter(kernel: str) -> float | None:
    """The a of "keys(a)", Keys' cubic convolution (1981), in [-2, 0]; -0.75 for "bicubic"; None for other names."""
    match = re.fullmatch(r"keys\((-?\d+(?:\.\d+)?)\)", kernel)
    if match is None or not -2 <= float(match[1]) <= 0:
        return -0.75 if kernel == "bicubic" else None
    return float(match[1])


def _read_taps(images: Tensor, grid: Tensor, kernel: str, border: str) -> Tensor:
    """As `read`, tap by tap, which `grid_sample` cannot: any cubic kernel, and a gradient added up in a fixed order
    (pytorch issue 68959)."""
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

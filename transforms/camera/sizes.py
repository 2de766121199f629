"""Stages that change the size: a named resizer, and the defences that resize, pad, cut or take medians."""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.devices import HOST, picked
from transforms.doors import Doored, unchecked
from transforms.draws.ranges import (
    Coordinate,
    NoCoordinates,
    Range,
    Ranged,
    WholeRanged,
    is_number,
    spread_whole,
    whole_pair,
)
from transforms.resizing.kernels import Bands
from transforms.resizing.resize import axes, check_kernel, is_dense, resize, target_size
from transforms.sampling.straight_through import saturate

#: The longest side of a view, in pixels; the most rows and columns that a `PixelCrop` cuts off.
MAX_SIDE, MAX_MARGIN = 8192, 4096
#: Up to this side two steps are one matrix: the product of two larger ones takes longer than both steps.
ONE_MATRIX = 1024


@dataclass(frozen=True)
class Downscale(WholeRanged):
    """Resize the shorter side to `size` with a named library's kernel, and clamp to [0,1].

    Use: a thumbnail, an upload limit, or a camera that is far away.
    Not: a picture that comes nearer or moves off at its own resolution: `Affine`.
    Source: the library of the kernel.
    Cost: a matrix product along each axis, whether there are one or two steps; with `eight_bit` one for each step.
    Oracle: the libraries, tests/transforms/camera/test_sizes.py and tests/transforms/resizing/test_resize.py.

    Args:
        size: the shorter side in pixels (it may also enlarge); or (low, high): each view is reduced to a side drawn
            from low..high and brought back to `high`, as a service does that keeps thumbnails and a viewer that
            enlarges them. So the views still stack, and distance is part of the expectation. If a number has a
            decimal point, all are shares of `of`: (0.5, 1.0) of 224 is (112, 224).
        kernel: see `transforms.resizing.resize`.
        then_size: the shorter side to which the reduced picture is brought in a second step, in the picture's
            original aspect ratio. None stands for `high` of a range, and for no second step after a single side. With
            a decimal point it is a share of `of`.
        then_kernel: the kernel of the second step, such as the encoder's own after a platform's; None: `kernel`.
        eight_bit: both steps in the library's own 8-bit arithmetic, as in a thumbnail file (see `resize`). The
            gradient is then that of the steps in floating point, straight through the rounding.
        of: what shares are of, in pixels; in a configuration by default the shorter side of the encoder's input.

    Examples:
        >>> from transforms import Downscale
        >>> picture = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
        >>> Downscale((6, 24))(picture, torch.zeros(1, 1)).shape  # to a side of 6 pixels, and back to 24
        torch.Size([1, 3, 24, 32])
    """

    size: float | tuple[float, float]
    kernel: str = "pil_bicubic"
    then_size: float | None = None
    eight_bit: bool = False
    then_kernel: str | None = None
    of: int | None = None

    name, field = "shorter side (px)", "size"

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        if self.then_kernel is not None:
            check_kernel(self.then_kernel, "then_kernel")
        if not isinstance(self.eight_bit, bool):
            raise ValueError(f"`eight_bit` must be true or false; got {self.eight_bit!r}")
        size = whole_pair(self._pixels(self.size), "size", MAX_SIDE, " of pixels, or shares `of` a length,")
        final_side = self._pixels(self.then_size)
        if final_side is not None and (type(final_side) is not int or not 1 <= final_side <= MAX_SIDE):
            raise ValueError(f"`then_size` must be a whole number of pixels from 1 to {MAX_SIDE}; got {final_side!r}")
        if self.then_kernel is not None and final_side is None and isinstance(size, int):
            raise ValueError(f"`then_kernel` must have a `then_size` or a range of `size`; got {self.then_kernel!r}")
        for name, value in (("size", size), ("then_size", final_side), ("of", None)):
            object.__setattr__(self, name, value)

    def _pixels(self, value: Any) -> Any:
        """Shares of `of` in whole pixels; what is no share, as it is."""
        ends = value if isinstance(value, tuple) else (value,)
        is_share = any(isinstance(end, float) for end in ends) and type(self.of) is int
        if not is_share or not all(is_number(end) and 0 < end < math.inf for end in ends):
            return value
        pixels = tuple(max(1, round(end * self.of)) for end in ends)
        return pixels if isinstance(value, tuple) else pixels[0]

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        number, final_side = self._number(), cast("int | None", self.then_size)
        if isinstance(number, int):
            if final_side is None:
                view = unchecked(resize)(images, number, self.kernel, eight_bit=self.eight_bit)
                return view if self.eight_bit else saturate(view)
            sides = [number] * len(images)
        else:
            sides, final_side = [int(side) for side in self.values(u)[:, 0].tolist()], final_side or number[1]
        size = (images.shape[2], images.shape[3])
        final, kernels = target_size(size, final_side), (self.kernel, self.then_kernel or self.kernel)
        if self.eight_bit or max(size) > ONE_MATRIX:
            return self._by_side(images, sides, final)
        wide = at_least_float32(images)
        like = (wide.dtype, images.device)
        steps = {side: (size, target_size(size, side), final, kernels, *like) for side in set(sides)}
        if is_dense(size, final, images.device):
            left, right = zip(*[_both_steps(*steps[side]) for side in sides], strict=True)
            views = torch.stack(left)[:, None] @ wide @ torch.stack(right)[:, None].mT
        else:
            pairs = [_both_bands(steps[side]) for side in (sides if len(steps) > 1 else steps)]
            blocks = zip(wide.chunk(len(pairs)), pairs, strict=True)
            parts = [columns.across(rows.down(part)) for part, (rows, columns) in blocks]
            views = torch.cat(parts) if len(parts) > 1 else parts[0]
        return saturate(views).to(images.dtype)

    def _by_side(self, images: Tensor, sides: list[int], final: tuple[int, int]) -> Tensor:
        """The rows of one side at a time: with a rounding between the steps they are not one matrix, and for a large
        picture the matrix is no band."""
        groups = {side: [i for i, other in enumerate(sides) if other == side] for side in set(sides)}
        step, views = partial(unchecked(resize), eight_bit=self.eight_bit), []
        for side, rows in groups.items():
            thumbnail = step(images if len(groups) == 1 else picked(images, rows), side, self.kernel)
            views.append(step(thumbnail, final, self.then_kernel or self.kernel))
        order = torch.tensor([i for rows in groups.values() for i in rows]).argsort()
        return saturate(views[0]) if len(views) == 1 else picked(saturate(torch.cat(views)), order)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _both_steps(
    size: tuple[int, int],
    small: tuple[int, int],
    final: tuple[int, int],
    kernels: tuple[str, str],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The two steps as one matrix per axis."""
    like = torch.empty(0, dtype=dtype, device=device)
    first, second = axes(size, small, kernels[0], like), axes(small, final, kernels[1], like)
    return second[0] @ first[0], second[1] @ first[1]


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _both_bands(steps: tuple[Any, ...]) -> tuple[Bands, Bands]:
    """The same, of the arguments of `_both_steps`, as bands."""
    *sizes, device = steps
    rows, columns = _both_steps.__wrapped__(*sizes, HOST)
    return Bands.of(rows, device), Bands.of(columns, device)


@dataclass(frozen=True)
class ResizePad(Ranged):
    """Resize to a random size, and lay the result at a random place of a frame as large as the largest (Xie et al.
    2018): whole pixels, each size and each place equally likely.

    Use: that defence, or attacks that should transfer to other encoders.
    Not: sizes and places between the pixels: the preset `di`.
    Cost: a matrix product along each axis.
    Oracle: the resized picture, pasted, tests/transforms/camera/test_sizes.py.

    Args:
        scale: (low, high): the new size over that of the picture; the frame has the size of `high`. The authors go
            from 299 pixels to 299..330 in a frame of 331, by nearest neighbours. (1, 1) changes nothing.
        kernel: see `transforms.resizing.resize`.
        value: of the padding, in [0,1].

    Examples:
        >>> from transforms.camera import ResizePad
        >>> u = torch.tensor([[0.0, 0.0, 0.999]])  # the smallest size, at the left, at the bottom
        >>> ResizePad(scale=(0.5, 1.0))(torch.ones(1, 1, 2, 2), u).tolist()
        [[[[0.0, 0.0], [1.0, 0.0]]]]
    """

    scale: Range = (0.9, 1.0)
    kernel: str = "pil_bilinear"
    value: float = 0.0

    coordinates = (
        Coordinate("size (of the picture's)", "scale", 1e-4, 16),
        Coordinate("left (of the margin)", "", 0, 1),
        Coordinate("top (of the margin)", "", 0, 1),
    )
    discrete: ClassVar[tuple[int, ...]] = (0, 1, 2)  # whole pixels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kernel(self.kernel)
        if not is_number(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"`value` must be a number in [0, 1]; got {self.value!r}")

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        size = (images.shape[2], images.shape[3])
        low, high = (max(1, round(share * min(size))) for share in self.bounds[0])
        frame, wide = target_size(size, high), at_least_float32(images)
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        for side, left, top in zip(spread_whole(u[:, 0], (low, high)).tolist(), *u[:, 1:].T.tolist(), strict=True):
            small = target_size(size, int(side))
            # A share in [0,1), and so one of the spare + 1 places, each as likely.
            margins = [min(int(at * (f - s + 1)), f - s) for at, f, s in zip((top, left), frame, small, strict=True)]
            matrices = axes(size, small, self.kernel, wide)
            for padded, matrix, length, start in zip((rows, columns), matrices, frame, margins, strict=True):
                # `start` rows of zeros above, the rest below.
                padded.append(F.pad(matrix, (0, 0, start, length - len(matrix) - start)))
        # The weights of a pixel add up to 1 inside the picture and to 0 in the frame.
        pictures = torch.stack(rows)[:, None] @ (wide - self.value) @ torch.stack(columns)[:, None].mT
        return saturate(self.value + pictures).to(images.dtype)


@dataclass(frozen=True)
class PixelCrop(Doored):
    """Show a window of the picture that is `margin` pixels lower and narrower, at a drawn place; no resample. A
    resizer without antialiasing behind it reads other pixels each time, at a slightly other ratio.

    Use: before a resizer without antialiasing, so that other pixels are read in each view.
    Not: a window that is enlarged again: `Crop`.
    Source: this project's own.
    Oracle: slices, tests/transforms/camera/test_sizes.py.

    Args:
        margin: rows, and columns, that are cut off in all, 0 to 4096.

    Raises:
        ValueError: when called on a picture that has no more pixels than that.

    Examples:
        >>> from transforms.camera import PixelCrop
        >>> picture = torch.rand(1, 3, 6, 8, generator=torch.Generator().manual_seed(0))
        >>> view = PixelCrop(margin=2)(picture, torch.tensor([[0.0, 0.999]]))
        >>> torch.equal(view, picture[:, :, 2:6, 0:6])
        True
    """

    margin: int = 0

    names: ClassVar[tuple[str, ...]] = ("left (px)", "top (px)")
    discrete: ClassVar[tuple[int, ...]] = (0, 1)

    def __post_init__(self) -> None:
        if type(self.margin) is not int or not 0 <= self.margin <= MAX_MARGIN:
            raise ValueError(f"`margin` must be a whole number of pixels from 0 to {MAX_MARGIN}; got {self.margin!r}")

    def values(self, u: Tensor) -> Tensor:
        return spread_whole(u, (0, self.margin))

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        height, width = (side - self.margin for side in images.shape[2:])
        if min(height, width) < 1:
            raise ValueError(
                f"`margin` must be less than each side of the picture, {images.shape[3]}x{images.shape[2]}; got "
                f"{self.margin}"
            )
        windows = [
            image[:, top : top + height, left : left + width]
            for image, (left, top) in zip(images, self.values(u).int().tolist(), strict=True)
        ]
        return windows[0][None] if len(windows) == 1 else torch.stack(windows)


@dataclass(frozen=True)
class MedianPool(NoCoordinates):
    """Shrink the shorter side to `size`: each pixel is the median, channel by channel, of the block of pixels that it
    stands for (Quiring et al. 2020 put such medians in place of the pixels that a resizer reads).

    Blocks are equally large, ceil(length / size) pixels a side, and overlap where the sides are no multiple. Of an
    even number of pixels the median is the lower of the middle two. The gradient goes to the pixel of the median.

    Use: a defence against pictures that show only behind a resizer.
    Not: an attack that changes most of the pixels a little, whose medians change too.
    Cost: a median of each block of pixels.
    Oracle: numpy, tests/transforms/camera/test_sizes.py.

    Args:
        size: the shorter side in pixels; a picture that is no larger stays as it is.

    Examples:
        >>> from transforms.camera import MedianPool
        >>> picture = torch.full((1, 1, 3, 3), 0.25)
        >>> picture[0, 0, 1, 1] = 1.0
        >>> MedianPool(1)(picture, torch.zeros(1, 0)).item()
        0.25
    """

    size: int

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= 8192:
            raise ValueError(f"`size` must be a whole number of pixels from 1 to 8192; got {self.size!r}")

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        size = (images.shape[2], images.shape[3])
        if min(size) <= self.size:
            return images
        lengths = zip(size, target_size(size, self.size), strict=True)
        rows, columns = (_blocks(n, m, images.device) for n, m in lengths)
        tall = images[:, :, rows[:, :, None, None], columns]  # (N,C,h,k,w,l)
        return tall.transpose(3, 4).flatten(4).median(-1).values


def _blocks(length: int, out: int, device: torch.device) -> Tensor:
    """The source pixels of each output pixel, (out, ceil(length / out))."""
    side = -(-length // out)
    first = torch.arange(out, device=device) * (length - side) // max(1, out - 1)
    return first[:, None] + torch.arange(side, device=device)

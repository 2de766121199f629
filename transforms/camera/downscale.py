"""The stage that shrinks: distance, thumbnails, a service's upload limit."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.devices import picked
from transforms.doors import unchecked
from transforms.draws.ranges import WholeRanged, is_number, whole_pair
from transforms.resizing.resize import DENSE, axes, check_kernel, resize, target_size
from transforms.sampling.straight_through import saturate

#: The longest shorter side of a view in pixels: 800 megabytes a view.
MAX_SIDE = 8192


@dataclass(frozen=True)
class Downscale(WholeRanged):
    """Resize the shorter side to `size` with a named library's kernel, and clamp to [0,1].

    Use: a thumbnail, an upload limit, or a camera that is far away.
    Not: a picture that comes nearer or moves off at its own resolution: `Affine`.
    Source: the library of the kernel.
    Cost: a matrix product along each axis, whether there are one or two steps; with `eight_bit` one for each step.
    Oracle: the libraries, tests/transforms/camera/test_downscale.py and tests/transforms/resizing/test_resize.py.

    Args:
        size: the shorter side in pixels (it may also enlarge); or (low, high): each view is reduced to a side drawn
            from low..high and brought back to `high`, as a service does that keeps thumbnails and a viewer that
            enlarges them. So the views still stack, and distance is part of the expectation. With a fraction among
            them, shares of `of`: (0.5, 1.0) of 224 is (112, 224).
        kernel: see `transforms.resizing.resize`.
        then_size: the shorter side to which the reduced picture is brought, in the picture's original aspect ratio;
            None stands for `high` of a range, and for no second step after a single side. A fraction: of `of`.
        then_kernel: the kernel of the second step, such as the encoder's own after a platform's; None: `kernel`.
        eight_bit: both steps in the library's own 8-bit arithmetic, as in a thumbnail file (see `resize`). The
            gradient is then that of the steps in floating point, straight through the rounding.
        of: what shares are of, in pixels; in the views of a configuration by default the shorter side of the
            encoder's input. It is None afterwards, and the sizes are pixels.

    Examples:
        >>> from transforms import Downscale
        >>> picture = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
        >>> Downscale(24)(picture, torch.zeros(1, 0)).shape
        torch.Size([1, 3, 24, 32])
        >>> Downscale((6, 24))(picture, torch.zeros(1, 1)).shape  # to a side of 6 pixels, and back to 24
        torch.Size([1, 3, 24, 32])
    """

    size: float | tuple[float, float]
    kernel: str = "pil_bicubic"
    then_size: float | None = None
    eight_bit: bool = False
    then_kernel: str | None = None
    of: int | None = None

    name: ClassVar[str] = "shorter side (px)"

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        if self.then_kernel is not None:
            check_kernel(self.then_kernel, "then_kernel")
        if not isinstance(self.eight_bit, bool):
            raise ValueError(f"`eight_bit` must be true or false; got {self.eight_bit!r}")
        size = whole_pair(self._pixels(self.size), "size", MAX_SIDE, " of pixels, or shares `of` a length,")
        final_side = self._pixels(self.then_size)
        if final_side is not None and (type(final_side) is not int or not 1 <= final_side <= MAX_SIDE):
            raise ValueError(
                f"`then_size` must be a whole number of pixels, at least 1, at most {MAX_SIDE}; got {final_side!r}"
            )
        if self.then_kernel is not None and final_side is None and isinstance(size, int):
            raise ValueError(
                f"`then_kernel` must have a `then_size` unless `size` is a range; got {self.then_kernel!r} alone"
            )
        for name, value in (("size", size), ("then_size", final_side), ("of", None)):
            object.__setattr__(self, name, value)

    def _pixels(self, value: Any) -> Any:
        """Shares of `of` in whole pixels; what is no share, as it is."""
        ends = value if isinstance(value, tuple) else (value,)
        shares = any(isinstance(end, float) for end in ends) and all(
            is_number(end) and 0 < end < math.inf for end in ends
        )
        if not shares or type(self.of) is not int:
            return value
        pixels = tuple(max(1, round(end * self.of)) for end in ends)
        return pixels if isinstance(value, tuple) else pixels[0]

    def _number(self) -> int | tuple[int, int]:
        return cast("int | tuple[int, int]", self.size)

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
        if self.eight_bit or max(size) > DENSE:
            return self._by_side(images, {side: target_size(size, side) for side in set(sides)}, sides, final)
        wide = at_least_float32(images)
        like = (wide.dtype, images.device)
        steps = {side: _both_steps(size, target_size(size, side), final, kernels, *like) for side in set(sides)}
        rows, columns = zip(*[steps[side] for side in sides], strict=True)
        return saturate(torch.stack(rows)[:, None] @ wide @ torch.stack(columns)[:, None].mT).to(images.dtype)

    def _by_side(
        self, images: Tensor, smalls: dict[int, tuple[int, int]], sides: list[int], final: tuple[int, int]
    ) -> Tensor:
        """Row by row of one side at a time: with a rounding between the steps they are not one matrix, and for a
        large picture the matrix is no band."""
        groups = {side: [i for i, other in enumerate(sides) if other == side] for side in smalls}
        views = []
        for side, rows in groups.items():
            group = images if len(groups) == 1 else picked(images, rows)
            thumbnail = unchecked(resize)(group, smalls[side], self.kernel, eight_bit=self.eight_bit)
            views.append(
                unchecked(resize)(thumbnail, final, self.then_kernel or self.kernel, eight_bit=self.eight_bit)
            )
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

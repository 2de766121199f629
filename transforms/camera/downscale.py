"""The stage that shrinks: distance, thumbnails, a service's upload limit."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.spaces import widened
from transforms.ranges import WholeRanged, whole_pair
from transforms.resizing.resize import DENSE, axes, check_kernel, resize, target_size
from transforms.sampling.straight_through import saturate

#: The longest shorter side of a view in pixels: 800 megabytes a view.
MOST = 8192


@dataclass(frozen=True)
class Downscale(WholeRanged):
    """Resize the shorter side to `size` with a named library's kernel, and clamp to [0,1].

    Args:
        size: the shorter side in pixels (it may also enlarge); or (low, high): each view is reduced to a side drawn
            from low..high and brought back to `high` by the same kernel, as a service does that keeps thumbnails and
            a viewer that enlarges them. So the views still stack, and distance is part of the expectation.
        kernel: see `transforms.resizing.resize`.
        then_upscale: the shorter side to which the reduced picture is enlarged by the same kernel, at least the
            largest of `size`, in the picture's original aspect ratio; None stands for `high` of a range, and for no
            enlargement of a single side. (Another kernel for the way up is another stage:
            `Compose([Downscale(96, "cv2_area"), Downscale(224)])`.)
        eight_bit: both steps in the library's own 8-bit arithmetic, as in a thumbnail file (see `resize`). The
            gradient is then that of the steps in floating point, straight through the rounding.
    """

    size: int | tuple[int, int]
    kernel: str = "pil_bicubic"
    then_upscale: int | None = None
    eight_bit: bool = False

    name: ClassVar[str] = "shorter side (px)"

    def __post_init__(self) -> None:
        check_kernel(self.kernel)
        if not isinstance(self.eight_bit, bool):
            raise ValueError(f"`eight_bit` must be true or false; got {self.eight_bit!r}")
        size, up = whole_pair(self.size, "size", MOST, " of pixels"), self.then_upscale
        largest = size if isinstance(size, int) else size[1]
        if up is not None and (type(up) is not int or not largest <= up <= MOST):
            raise ValueError(
                f"`then_upscale` must be a whole number of pixels, at least `size` ({largest}), at most {MOST}; "
                f"got {up!r} (two reductions are two stages)"
            )
        object.__setattr__(self, "size", size)

    def _whole(self) -> int | tuple[int, int]:
        return self.size

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if isinstance(self.size, int):
            if self.then_upscale is None:
                view = resize(images, self.size, self.kernel, eight_bit=self.eight_bit)
                return view if self.eight_bit else saturate(view)
            sides, up = [self.size] * len(images), self.then_upscale
        else:
            sides, up = [int(side) for side in self.values(u)[:, 0].tolist()], self.then_upscale or self.size[1]
        size = (images.shape[2], images.shape[3])
        final = target_size(size, up)
        if self.eight_bit or max(size) > DENSE:
            return self._by_side(images, {side: target_size(size, side) for side in set(sides)}, sides, final)
        wide = widened(images)
        like = (wide.dtype, images.device)
        both = {side: _down_and_up(size, target_size(size, side), final, self.kernel, *like) for side in set(sides)}
        rows, columns = zip(*[both[side] for side in sides], strict=True)
        return saturate(torch.stack(rows)[:, None] @ wide @ torch.stack(columns)[:, None].mT).to(images.dtype)

    def _by_side(
        self, images: Tensor, smalls: dict[int, tuple[int, int]], sides: list[int], final: tuple[int, int]
    ) -> Tensor:
        """Row by row of one side at a time: with a rounding between the steps they are not one matrix, and for a
        large picture the matrix is no band."""
        groups = {side: [i for i, other in enumerate(sides) if other == side] for side in smalls}
        views = []
        for side, rows in groups.items():
            some = images if len(groups) == 1 else images[rows]
            thumbnail = resize(some, smalls[side], self.kernel, eight_bit=self.eight_bit)
            views.append(resize(thumbnail, final, self.kernel, eight_bit=self.eight_bit))
        order = torch.tensor([i for rows in groups.values() for i in rows], device=images.device).argsort()
        return saturate(torch.cat(views)).index_select(0, order)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _down_and_up(
    size: tuple[int, int],
    small: tuple[int, int],
    final: tuple[int, int],
    kernel: str,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The reduction and the enlargement as one matrix per axis."""
    like = torch.empty(0, dtype=dtype, device=device)
    down, up = axes(size, small, kernel, like), axes(small, final, kernel, like)
    return up[0] @ down[0], up[1] @ down[1]

"""The stage that cuts whole pixels off: it moves the grid of the resizer behind it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.doors import Doored
from transforms.draws.ranges import spread_whole

#: The most rows and columns that are cut off.
MAX_MARGIN = 4096


@dataclass(frozen=True)
class PixelCrop(Doored):
    """Show a window of the picture that is `margin` pixels lower and narrower, at a drawn place; no resample. A
    resizer without antialiasing behind it reads other pixels each time, at a slightly other ratio.

    Use: before a resizer without antialiasing, so that other pixels are read in each view.
    Not: a window that is enlarged again: `Crop`.
    Source: this project's own.
    Oracle: slices, tests/transforms/camera/test_pixel_crop.py.

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

    @property
    def dims(self) -> int:
        return len(self.names)

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

"""The stage that shrinks by medians: a few pixels that an attacker has changed do not show."""

from dataclasses import dataclass

import torch
from torch import Tensor

from transforms.draws.ranges import NoCoordinates
from transforms.resizing.resize import target_size


@dataclass(frozen=True)
class MedianPool(NoCoordinates):
    """Shrink the shorter side to `size`: each pixel is the median, channel by channel, of the block of pixels that it
    stands for (Quiring et al. 2020 put such medians in place of the pixels that a resizer reads).

    Blocks are equally large, ceil(length / size) pixels a side, and overlap where the sides are no multiple. Of an
    even number of pixels the median is the lower of the middle two. The gradient goes to the pixel of the median.

    Use: a defence against pictures that show only behind a resizer.
    Not: an attack that changes most of the pixels a little, whose medians change too.
    Cost: a median of each block of pixels.
    Oracle: numpy, tests/transforms/camera/test_median_pool.py.

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
        rows, columns = (
            _blocks(n, m, images.device) for n, m in zip(size, target_size(size, self.size), strict=True)
        )
        tall = images[:, :, rows[:, :, None, None], columns]  # (N,C,h,k,w,l)
        return tall.transpose(3, 4).flatten(4).median(-1).values


def _blocks(length: int, out: int, device: torch.device) -> Tensor:
    """The source pixels of each output pixel, (out, ceil(length / out))."""
    side = -(-length // out)
    first = torch.arange(out, device=device) * (length - side) // max(1, out - 1)
    return first[:, None] + torch.arange(side, device=device)

"""The stage that resizes at random and pads at random: a defence, and a way to vary an attack's inputs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.draws.ranges import Range, Ranged, is_number, pair, spread_whole
from transforms.resizing.resize import axes, check_kernel, target_size
from transforms.sampling.straight_through import saturate


@dataclass(frozen=True)
class ResizePad(Ranged):
    """Resize to a random size, and lay the result at a random place of a frame as large as the largest (Xie et al.
    2018): whole pixels, each size and each place equally likely.

    Use: that defence, or attacks that should transfer to other encoders.
    Not: sizes and places between the pixels: the preset `di`.
    Cost: a matrix product along each axis.
    Oracle: the resized picture, pasted, tests/transforms/camera/test_resize_pad.py.

    Args:
        scale: (low, high): the new size over that of the picture; the frame has the size of `high`. The authors go
            from 299 pixels to 299..330 in a frame of 331, by nearest neighbours. (1, 1) changes nothing.
        kernel: see `transforms.resizing.resize`.
        value: of the padding, in [0,1].

    Examples:
        >>> from transforms.camera import ResizePad
        >>> u = torch.tensor([[0.0, 0.0, 0.999]])  # the smallest size, at the left, at the bottom
        >>> ResizePad(scale=(0.5, 1.0))(torch.ones(1, 1, 4, 4), u)[0, 0].round()
        tensor([[0., 0., 0., 0.],
                [0., 0., 0., 0.],
                [1., 1., 0., 0.],
                [1., 1., 0., 0.]])
    """

    scale: Range = (0.9, 1.0)
    kernel: str = "pil_bilinear"
    value: float = 0.0

    names: ClassVar[tuple[str, ...]] = ("size (of the picture's)", "left (of the margin)", "top (of the margin)")
    discrete: ClassVar[tuple[int, ...]] = (0, 1, 2)  # whole pixels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kernel(self.kernel)
        if not is_number(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"`value` must be a number in [0, 1]; got {self.value!r}")

    def _bounds(self) -> tuple[Range, ...]:
        low, high = pair(self.scale, "scale", low=0, high=16)
        if low <= 0:
            raise ValueError(f"`scale` must be above 0; got {self.scale!r}")
        return (low, high), (0.0, 1.0), (0.0, 1.0)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        size = (images.shape[2], images.shape[3])
        low, high = (max(1, round(share * min(size))) for share in self.bounds[0])
        frame, wide = target_size(size, high), at_least_float32(images)
        rows, columns = [], []
        for side, left, top in zip(spread_whole(u[:, 0], (low, high)).tolist(), *u[:, 1:].T.tolist(), strict=True):
            small = target_size(size, int(side))
            # A share in [0,1), and so one of the spare + 1 places, each as likely.
            margins = [min(int(at * (f - s + 1)), f - s) for at, f, s in zip((top, left), frame, small, strict=True)]
            vertical, horizontal = axes(size, small, self.kernel, wide)
            rows.append(_padded(vertical, frame[0], margins[0]))
            columns.append(_padded(horizontal, frame[1], margins[1]))
        # The weights of a pixel add up to 1 inside the picture and to 0 in the frame.
        padded = torch.stack(rows)[:, None] @ (wide - self.value) @ torch.stack(columns)[:, None].mT
        return saturate(self.value + padded).to(images.dtype)


def _padded(matrix: Tensor, length: int, start: int) -> Tensor:
    """(n,k) -> (length,k): `start` rows of zeros above, the rest below."""
    return F.pad(matrix, (0, 0, start, length - len(matrix) - start))

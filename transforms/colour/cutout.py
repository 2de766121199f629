"""Stages that hide a part of the picture."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.draws.ranges import Range, Ranged, is_number, pair
from transforms.sampling.straight_through import saturate


@dataclass(frozen=True)
class Cutout(Ranged):
    """Cover a square at a random place with one value (DeVries & Taylor 2017; T-SEA, Huang et al. 2023, cuts 0.4).

    Use: something small before the picture, or an attack that should not rest on one spot.
    Not: an object of a known shape and place: put it into the pictures.
    Oracle: the covered area, tests/transforms/colour/test_photometric.py.

    Args:
        size: side of the square as a share of the shorter side, within [0, 1].
        value: what covers it, in [0,1].

    The square lies wholly inside the picture. A pixel is covered by the share of its area that the square takes, so
    the place has a gradient, through the pixels that the edge crosses; the picture has none under the cover.

    Examples:
        >>> from transforms.colour import Cutout
        >>> Cutout(size=(0.5, 0.5), value=0.0)(torch.ones(1, 1, 4, 4), torch.zeros(1, 3))[0, 0]
        tensor([[0., 0., 1., 1.],
                [0., 0., 1., 1.],
                [1., 1., 1., 1.],
                [1., 1., 1., 1.]])
    """

    size: Range = (0.0, 0.0)
    value: float = 0.5

    names: ClassVar[tuple[str, ...]] = (
        "size (of shorter side)",
        "from left (of free width)",
        "from top (of free height)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"`value` must be a number in [0, 1]; got {self.value!r}")

    def _bounds(self) -> tuple[Range, ...]:
        return pair(self.size, "size", low=0, high=1), (0.0, 1.0), (0.0, 1.0)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        wide = at_least_float32(images)
        height, width = images.shape[2:]
        share, left, top = self.values(u).to(wide).unbind(-1)
        side = share * min(height, width)
        columns, rows = (_cover_shares(n, at * (n - side), side) for n, at in ((width, left), (height, top)))
        cover = (rows[:, :, None] * columns[:, None, :])[:, None]
        return saturate(wide + cover * (self.value - wide)).to(images.dtype)


def _cover_shares(n: int, start: Tensor, side: Tensor) -> Tensor:
    """The share of each of n pixels that the interval from `start` (N,), `side` (N,) long, covers: (N,n) in [0,1]."""
    edges = torch.arange(n + 1, dtype=start.dtype, device=start.device)
    # The covered length to the left of each pixel's edge; its differences telescope, so nothing is lost between them.
    length = (edges - start[:, None]).clamp(min=0).minimum(side[:, None])
    return length.diff(dim=-1)

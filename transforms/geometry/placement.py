"""Where a layer lies in its scene: anywhere within ranges of scale, rotation and position."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.compose import Homography
from transforms.draws.ranges import Range, Ranged, pair, symmetric
from transforms.geometry.in_frame import InFrame
from transforms.sampling.homography import invert, matrix_of, transform


@dataclass(frozen=True)
class Placement(Ranged, InFrame, Homography):
    """Move a layer of the scene anywhere, from the middle of all ranges, whose corners `quad` gives.

    Args:
        scale: the layer's shorter side as a share of the scene's shorter side.
        degrees: rotation, clockwise as displayed; a number x means (-x, x).
        x, y: where its middle lies, as shares of the free room: at 0 the turned layer touches the left
            (upper) edge of the scene, at 1 the right (lower) one. Without room, in the middle.
        aspect: width of the layer over its height.

    Examples:
        >>> from transforms.geometry import Placement
        >>> Placement(scale=(0.5, 0.5)).quad((100, 200)).round(decimals=4).tolist()  # in the middle
        [[0.375, 0.25], [0.625, 0.25], [0.625, 0.75], [0.375, 0.75]]
    """

    scale: Range = (0.3, 0.6)
    degrees: float | Range = (0.0, 0.0)
    x: Range = (0.0, 1.0)
    y: Range = (0.0, 1.0)
    aspect: float = 1.0

    label: ClassVar[str] = "place"
    names: ClassVar[tuple[str, ...]] = ("scale (of shorter side)", "angle (deg)", "right (of room)", "down (of room)")

    def _bounds(self) -> tuple[Range, ...]:
        if not 0.01 <= self.aspect <= 100:
            raise ValueError(f"`aspect` must lie within [0.01, 100]; got {self.aspect!r}")
        return (
            pair(self.scale, "scale", low=1e-3, high=10),
            symmetric(self.degrees, "degrees"),
            pair(self.x, "x", low=0, high=1),
            pair(self.y, "y", low=0, high=1),
        )

    def quad(self, size: tuple[int, int]) -> Tensor:
        """The corners of the layer at the middle of all ranges, in a scene of `size` (height, width): (4,2)
        in shares of the scene's width and height, upper left, upper right, lower right, lower left."""
        place = self.framed(size)
        middle = torch.full((1, 4), 0.5, dtype=torch.float64)
        wide, high = max(self.aspect, 1.0), max(1 / self.aspect, 1.0)
        corners = middle.new_tensor([[[-wide, -high], [wide, -high], [wide, high], [-wide, high]]])
        return transform(invert(place.pull_of(middle)), corners)[0][0] / middle.new_tensor(place.extent) / 2 + 0.5

    def matrix(self, u: Tensor) -> Tensor:
        """(N,4) -> (N,3,3) from points of the scene to the points that were there before the move."""
        middle = self.pull_of(torch.full_like(u[:1], 0.5))
        return invert(middle) @ self.pull_of(u)

    def pull_of(self, u: Tensor) -> Tensor:
        """(N,4) -> (N,3,3) from the scene's stage frame to the layer's."""
        size, angle, right, down = self.values(u).unbind(-1)
        angle = torch.deg2rad(angle)
        c, s = angle.cos(), angle.sin()
        wide, high = max(self.aspect, 1.0), max(1 / self.aspect, 1.0)
        room_x = (self.extent[0] - size * (wide * c.abs() + high * s.abs())).clamp(min=0)
        room_y = (self.extent[1] - size * (wide * s.abs() + high * c.abs())).clamp(min=0)
        x, y = (2 * right - 1) * room_x, (2 * down - 1) * room_y
        c, s = c / size, s / size
        return matrix_of([[c, s, -c * x - s * y], [-s, c, s * x - c * y], [0, 0, 1]], angle)

"""The stage that bends the picture round a bottle."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.compose import Geometry, hide
from transforms.draws.ranges import Range, Ranged, pair, symmetric
from transforms.geometry.in_frame import InFrame

#: Rays that pass the bottle's side closer than this are hidden: there the derivative of the hit point grows without
#: bound. As a share of the squared distance to the outline, so 0.05 % of the bottle's half width.
GRAZING = 1e-3


@dataclass(frozen=True)
class Cylinder(Ranged, InFrame, Geometry):
    """Show the picture as the label of a bottle, seen by a pinhole camera that looks at the label's middle.

    The middle of the front keeps its place and scale. Past the outline of the bottle, and past the label's edges,
    the view shows the border value (rays are intersected with the cylinder in closed form, the nearer hit counts).

    Use: a label on a bottle or can, or paper that is rolled.
    Not: folds and uneven paper: `ThinPlate`.
    Source: this project's own: each ray meets a cylinder in closed form.
    Oracle: points that are projected from a bottle come back, tests/transforms/geometry/test_distortion.py.

    Args:
        arc: how many degrees of the bottle the picture's width covers, within [0, 360]; 0 is a flat label, and the
            identity. A number x means (0, x).
        turn: rotation of the bottle about its axis in degrees; positive carries the label to the right. At most half
            of the smallest arc, so that a part of the label stays in front. A number x means (-x, x).
        tilt: lean of the axis in degrees, within [-60, 60]; positive leans the bottle's top away from the camera. A
            number x means (-x, x).
        distance: from the camera to the label's middle in half shorter sides, at least 1; a number x means (x, x).

    Raises:
        ValueError: a range that is no range or too wide, with its name.

    Examples:
        >>> from transforms.geometry import Cylinder
        >>> view = Cylinder(arc=(180, 180))(torch.ones(1, 1, 33, 33), torch.zeros(1, 4))[0, 0, 16]
        >>> float(view[16].round(decimals=4)), view[0].item()  # the label's middle; past the outline of the bottle
        (1.0, 0.5)
    """

    arc: float | Range = (0.0, 0.0)
    turn: float | Range = (0.0, 0.0)
    tilt: float | Range = (0.0, 0.0)
    distance: float | Range = 4.0

    names: ClassVar[tuple[str, ...]] = ("arc (deg)", "turn (deg)", "tilt (deg)", "distance (half shorter sides)")

    def __post_init__(self) -> None:
        arc, turn, _, _ = self._bounds()
        if max(map(abs, turn)) > arc[0] / 2:
            raise ValueError(
                f"`turn` must lie within half of the smallest arc, [{-arc[0] / 2:g}, {arc[0] / 2:g}], or the label "
                f"may turn out of sight; got {turn} with arc {arc} (raise the lower end of `arc`)"
            )

    def _bounds(self) -> tuple[Range, ...]:
        arc = (0.0, self.arc) if isinstance(self.arc, int | float) else self.arc
        distance = (self.distance, self.distance) if isinstance(self.distance, int | float) else self.distance
        return (
            pair(arc, "arc", low=0, high=360),
            symmetric(self.turn, "turn"),
            symmetric(self.tilt, "tilt", low=-60, high=60),
            pair(distance, "distance", low=1, high=1000),
        )

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        half_width = self.extent[0]  # of the label
        arc, turn, tilt, distance = (v[:, None, None] for v in self.values(u).unbind(-1))
        bend = arc.deg2rad() / 2 / half_width  # the curvature, 1 / radius
        x, y, depth, height, visible = _front_plane(points, tilt.deg2rad(), distance)
        # In the bottle's frame, with the axis at z = 1 / bend, the ray meets the plane z = 0 at (x, y) and the bottle
        # at 1 + s times the way there: bend ((1 + s)^2 x^2 + away^2 s^2) = 2 away s. The nearer root, without
        # cancellation, so that bend = 0 needs no special case:
        discriminant = 1 - 2 * bend * x.square() / depth - (bend * x).square()
        visible = visible & (discriminant > GRAZING)
        x, y, discriminant = (torch.where(visible, v, fill) for v, fill in ((x, 0.0), (y, 0.0), (discriminant, 1.0)))
        hump = bend * x.square()
        s = hump / (depth - hump + depth * discriminant.sqrt())
        # The angle from the front, over the curvature: atan(w) / w instead of atan2, which 0 / 0 would spoil.
        offset = x * (1 + s) / (1 - bend * depth * s)
        arc_length = offset * _atan_ratio(bend * offset)
        if any(self.bounds[1]):
            arc_length = arc_length - turn / arc * 2 * half_width
            lap = 4 * math.pi * half_width / arc.deg2rad()  # once round the bottle
            arc_length = arc_length - lap * (arc_length / lap).detach().round()
        return hide(torch.stack([arc_length, y + s * (y - height)], dim=-1), visible)


def _front_plane(points: Tensor, tilt: Tensor, distance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where each ray meets the plane that touches the bottle's front: x and y there, with the bottle's axis upright;
    the camera's distance from that plane and its place along the axis; and which rays point at the plane at all."""
    right, down = points.unbind(-1)
    depth, height = distance * tilt.cos(), distance * tilt.sin()
    approach = down * tilt.sin() + depth  # how much nearer to the plane the ray comes, up to the output plane
    visible = (approach > 0.01 * distance) & (points.abs().amax(-1) < 1e4)
    scale = depth / torch.where(visible, approach, 1.0)
    right, down = torch.where(visible, right, 0.0), torch.where(visible, down, 0.0)
    return scale * right, height + scale * (down * tilt.cos() - height), depth, height, visible


def _atan_ratio(w: Tensor) -> Tensor:
    """atan(w) / w, smooth at 0."""
    square = w.square()
    small = square < 1e-3
    series = 1 - square * (1 / 3 - square * (1 / 5 - square * (1 / 7 - square / 9)))
    safe = torch.where(small, 1.0, w)
    return torch.where(small, series, safe.atan() / safe)

"""Geometric stages: each says where an output point looks in its input.

Lengths are in the stage frame: origin at the image centre, unit = half the shorter side. A shift of 10 % of the
shorter side is therefore 0.2 units; parameters are given as shares of the side, the conversion is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.base import Homography
from transforms.homography import quad_to_quad, rotate, scale, shear, shift
from transforms.ranges import Range, pair, spread, symmetric


@dataclass(frozen=True)
class Affine(Homography):
    """Rotate, magnify, shear and shift the picture about its centre, as torchvision's RandomAffine does, in this
    order: shear, scale, rotate, shift.

    Args:
        degrees: rotation, clockwise as displayed; a number x means (-x, x).
        scale: magnification; 2 shows the picture twice as large.
        shear: horizontal shear in degrees.
        translate: shift in each axis as a share of the shorter side, right and down.
    """

    degrees: float | Range = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: float | Range = (0.0, 0.0)
    translate: float | Range = (0.0, 0.0)

    dims: ClassVar[int] = 5
    names: ClassVar[tuple[str, ...]] = (
        "angle (deg)",
        "scale (x)",
        "shear (deg)",
        "shift right (of shorter side)",
        "shift down (of shorter side)",
    )

    def __post_init__(self) -> None:
        self._bounds()

    def values(self, u: Tensor) -> Tensor:
        return torch.stack([spread(u[:, i], bounds) for i, bounds in enumerate(self._bounds())], dim=-1)

    def _bounds(self) -> tuple[Range, ...]:
        shift_by = symmetric(self.translate, "translate")
        return (
            symmetric(self.degrees, "degrees"),
            pair(self.scale, "scale", low=0.01, high=100),
            pair(symmetric(self.shear, "shear"), "shear", low=-89, high=89),
            shift_by,
            shift_by,
        )

    def matrix(self, u: Tensor) -> Tensor:
        angle, magnify, slant, right, down = self.values(u).unbind(-1)
        radians = math.pi / 180
        # Built as the inverse of shift @ rotate @ scale @ shear, so no inversion is needed.
        undo = scale(1 / magnify, 1 / magnify) @ rotate(-angle * radians) @ shift(-2 * right, -2 * down)
        return shear(-slant * radians) @ undo


@dataclass(frozen=True)
class Perspective(Homography):
    """Move each of the four corners of the square [-1,1]^2 (the largest centred square of the picture) on its own.

    Args:
        jitter: most that a corner moves along each axis, as a share of half the side; below 0.5, which keeps every
            quad convex, so that no point of the picture's square falls behind the camera. (The view's own corners
            may look beyond the horizon from about 0.4 on; they show the border value.)
    """

    jitter: float = 0.2

    dims: ClassVar[int] = 8
    names: ClassVar[tuple[str, ...]] = tuple(
        f"{corner} corner {axis} (of half side)"
        for corner in ("top-left", "top-right", "bottom-right", "bottom-left")
        for axis in ("right", "down")
    )

    def __post_init__(self) -> None:
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter < 0.5:
            raise ValueError(f"`jitter` must lie in [0, 0.5), which keeps the quad convex; got {self.jitter}")

    def values(self, u: Tensor) -> Tensor:
        return spread(u, (-self.jitter, self.jitter))

    def matrix(self, u: Tensor) -> Tensor:
        square = u.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        moved = square + self.values(u).unflatten(-1, (4, 2))
        return quad_to_quad(moved, square.expand_as(moved))

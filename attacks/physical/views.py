"""What an encoder gets of a photograph: a square of it, as large as the run's pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from attacks.physical.rectify import project

#: What lies beyond a photograph's edge.
GREY = 128
#: A scene may be so many times as wide as the photograph; of a larger one there is too little to be seen.
MOST = 2


@dataclass(frozen=True, eq=False)
class View:
    """`pixels` (3,S,S) in [0,1], multiples of 1/255; the square that they show: its left and upper edge and its side,
    in the photograph's pixels, 0 its edge; and how much of it lies beyond the photograph."""

    pixels: Tensor
    left: float
    top: float
    side: float
    outside: float

    def frame(self) -> NDArray[np.float64]:
        """(3,3) from the photograph's pixels (a centre is a whole number) to the view's stage frame."""
        half = self.side / 2
        x, y = 0.5 - self.left - half, 0.5 - self.top - half
        return np.array([[1, 0, x], [0, 1, y], [0, 0, half]]) / half


def photo_view(photo: NDArray[np.uint8], size: int) -> View:
    """The central square of a photograph: as the run reads its own pictures from files."""
    height, width = photo.shape[:2]
    side = min(height, width)
    return _square(photo, (width - side) // 2, (height - side) // 2, side, size)


def scene_view(photo: NDArray[np.uint8], homography: NDArray[np.float64], scene: tuple[int, int], size: int) -> View:
    """The upright square that shows the scene: its centre is that of the scene, its area as large.

    Args:
        homography: from the scene's pixels, 0 its edge, to the photograph's, a centre a whole number.
        scene: its (height, width).

    Raises:
        ValueError: a part of the scene lies behind the camera, or it is far larger than the photograph.
    """
    height, width = scene
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], float)
    depth = corners @ homography[2, :2] + homography[2, 2]
    if not ((depth > 0).all() or (depth < 0).all()):
        raise ValueError("the scene lies behind the camera; --view photo needs none of it")
    x, y = project(homography, corners).T
    side = math.sqrt(abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2)
    if not 1 <= side <= MOST * max(photo.shape[:2]):
        raise ValueError(
            f"the scene would be {side:.3g} pixels wide in the photograph; --view photo needs none of it"
        )
    middle = project(homography, [width / 2, height / 2])
    return _square(photo, float(middle[0]) + 0.5 - side / 2, float(middle[1]) + 0.5 - side / 2, side, size)


def _square(photo: NDArray[np.uint8], left: float, top: float, side: float, size: int) -> View:
    height, width = photo.shape[:2]
    margin = math.ceil(2 * max(1.0, side / size)) + 1
    x0, x1 = _reach(left, side, width, margin)
    y0, y1 = _reach(top, side, height, margin)
    part = np.full((y1 - y0, x1 - x0, 3), GREY, np.uint8)
    inside = photo[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    part[max(-y0, 0) :, max(-x0, 0) :][: inside.shape[0], : inside.shape[1]] = inside
    box = (left - x0, top - y0, left + side - x0, top + side - y0)
    shown: Any = Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC, box)
    across = max(0.0, min(left + side, width) - max(left, 0)), max(0.0, min(top + side, height) - max(top, 0))
    pixels = torch.from_numpy(np.array(shown)).permute(2, 0, 1).float() / 255
    return View(pixels, left, top, side, max(0.0, 1 - across[0] * across[1] / side**2))


def _reach(start: float, side: float, length: int, margin: int) -> tuple[int, int]:
    """The pixels that are needed along an axis: those of the square, and of a photograph `length` long as far beside
    it as a kernel reaches, so that a part is resized as a part of the whole is."""
    end = start + side
    low = math.floor(start) if start < 0 else max(math.floor(start) - margin, 0)
    high = math.ceil(end) if end > length else min(math.ceil(end) + margin, length)
    return min(low, length), max(high, 0)

"""A lens that distorts and a sheet that is curled, exactly: forwards for the truth, backwards for the picture.

Both ways are in closed form and in float64, and share nothing with the fit in `attacks.physical.surface_fit`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.physical.simulation.media import Cloth
from attacks.physical.simulation.shots import Matrix, Points, Shot, map_points

#: The focal length of a telephone's main camera, 26 mm on a frame of 36 x 24 mm, in half diagonals.
FOCAL = 1.2


@dataclass(frozen=True, eq=False)
class CameraLens:
    """Radial distortion (Brown 1966, as in OpenCV): a point at the radius r of an ideal photograph is seen at
    r (1 + k1 r^2), r = 1 at the focal length of a telephone's main camera. Of a photograph of `size` (height,
    width)."""

    k1: float
    size: tuple[int, int]

    @property
    def focal(self) -> float:
        return FOCAL * math.hypot(*self.size) / 2

    @property
    def centre(self) -> Points:
        return (np.array(self.size[::-1], np.float64) - 1) / 2

    def project(self, ideal: Points) -> Points:
        """Pixels of this photograph for those of an ideal one (...,2)."""
        off = (np.asarray(ideal, np.float64) - self.centre) / self.focal
        return np.asarray(self.centre + self.focal * off * (1 + self.k1 * (off**2).sum(-1, keepdims=True)))

    def ideal(self, pixels: Points) -> Points:
        """The inverse: the root of k1 r^3 + r in closed form. NaN beyond the fold of a negative k1."""
        if self.k1 == 0:
            return pixels
        off = (pixels - self.centre) / self.focal
        radius = np.sqrt((off**2).sum(-1, keepdims=True))
        root = math.sqrt(3 * abs(self.k1))
        sine, inverse = (np.sinh, np.arcsinh) if self.k1 > 0 else (np.sin, np.arcsin)
        with np.errstate(invalid="ignore"):
            straight = 2 / root * sine(inverse(1.5 * root * radius) / 3)
        return np.asarray(self.centre + self.focal * off * straight / np.maximum(radius, 1e-12))


@dataclass(frozen=True, eq=False)
class Sheet:
    """A card that is curled to a part of a cylinder.

    Args:
        camera: (3,4), from (right, down, height over the scene's plane, 1) in mm to pixels of an ideal photograph.
        middle: of the card, in mm.
        direction: in which the sheet is curled, in degrees clockwise from the right.
        radius: of the cylinder in mm; positive: the middle is nearest to the camera; infinite: flat.
        rise: the height of the middle in mm.
    """

    camera: Matrix
    middle: Points
    direction: float
    radius: float
    rise: float

    @property
    def _axes(self) -> Matrix:
        """Rows: the direction of the curl, and that of the axis."""
        c, s = math.cos(math.radians(self.direction)), math.sin(math.radians(self.direction))
        return np.array([[c, s], [-s, c]])

    def project(self, card: Points) -> Points:
        """Pixels of an ideal photograph for mm of the flat card (n,2)."""
        off = (np.asarray(card, np.float64) - self.middle) @ self._axes.T
        height = np.zeros(len(off))
        if math.isfinite(self.radius):
            angle = off[:, 0] / self.radius
            height = self.radius * (np.cos(angle) - 1)
            off = np.stack([self.radius * np.sin(angle), off[:, 1]], 1)
        flat = self.middle + off @ self._axes
        x, y, w = self.camera @ np.stack([*flat.T, height + self.rise, np.ones(len(flat))])
        return np.stack([x / w, y / w], 1)

    def card(self, ideal: Points) -> Points:
        """The inverse (...,2): where each pixel's ray meets the sheet; NaN where it misses the cylinder."""
        x, y = np.moveaxis(np.asarray(ideal, np.float64), -1, 0)
        back = np.linalg.inv(self.camera[:, :3])
        eye = -back @ self.camera[:, 3]
        rays = np.stack([x, y, np.ones_like(x)], -1) @ back.T
        start = self._axes @ (eye[:2] - self.middle)
        direction = rays[..., :2] @ self._axes.T
        if not math.isfinite(self.radius):
            way = (self.rise - eye[2]) / rays[..., 2]
            return np.asarray(self.middle + (start + way[..., None] * direction) @ self._axes)
        # In the plane across the axis: a circle round (0, rise - radius). Of a sheet that is raised in the middle the
        # nearer hit is seen, of one with raised edges the farther.
        u, v = start[0], eye[2] - self.rise + self.radius
        a = direction[..., 0] ** 2 + rays[..., 2] ** 2
        b = u * direction[..., 0] + v * rays[..., 2]
        with np.errstate(invalid="ignore", divide="ignore"):
            span = np.sqrt(b**2 - a * (u**2 + v**2 - self.radius**2))
            way = (-b - math.copysign(1, self.radius) * span) / a
            angle = np.arctan2((u + way * direction[..., 0]) / self.radius, (v + way * rays[..., 2]) / self.radius)
        arc = np.where(np.abs(angle) < math.pi / 2, self.radius * angle, np.nan)
        return np.asarray(self.middle + np.stack([arc, start[1] + way * direction[..., 1]], -1) @ self._axes)


@dataclass(frozen=True, eq=False)
class LensWarp:
    """A lens, and a card of cloth on a sheet, whose raster has dots of `dot` mm."""

    lens: CameraLens
    sheet: Sheet
    dot: float
    cloth: Cloth

    def scene(self, pixels: Points, at: Matrix) -> Points:
        """From pixels of the photograph (...,2) to those of the scene, which `at` maps to an ideal photograph."""
        flat = self.lens.ideal(pixels) @ (back := np.linalg.inv(at))[:, :2].T + back[:, 2]
        return np.asarray(np.where(flat[..., 2:] * back[2, 2] > 0, flat[..., :2] / flat[..., 2:], np.nan))

    def card(self, pixels: Points) -> Points:
        """From pixels of the photograph to dots of the card, whose centres are whole numbers."""
        return self.cloth.card(self.sheet.card(self.lens.ideal(pixels))) / self.dot - 0.5

    def project(self, card: Any) -> Points:
        """Pixels of the photograph for mm of the card (n,2)."""
        return self.lens.project(self.sheet.project(self.cloth.lay(np.asarray(card, np.float64))))

    def outline(self) -> Points:
        """The edges of the card in the photograph."""
        share, corners = np.linspace(0, 1, 33)[:, None], np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
        sides = zip(corners, np.roll(corners, -1, 0), strict=True)
        return self.project(np.concatenate([a + share * (b - a) for a, b in sides]) * 2 * self.sheet.middle)


def sheet_light(shot: Shot, view: Matrix, placement: Matrix, size: tuple[float, float]) -> Sheet:
    """The card of `size` (width, height) in mm as it lies in a photograph, by its `placement` (3,3) in the scene's
    stage frame, which `view` (3,4) maps to pixels, with the height over it. Curled, it touches the scene with its
    edges or with its middle, and lies about where it would lie flat."""
    middle = np.array(size) / 2
    if shot.sag != 0:  # a sheet can be rolled, and not sheared: the similarity that is closest to `over`
        card = middle * [[-1, -1], [1, -1], [1, 1], [-1, 1]]
        x, y = map_points(placement, card + middle).T
        a, b = (card[:, 0] @ x + card[:, 1] @ y), (card[:, 0] @ y - card[:, 1] @ x)
        turn = np.array([[a, -b], [b, a]]) / (card**2).sum()
        placement = np.vstack([np.c_[turn, [x.mean(), y.mean()] - turn @ middle], [0, 0, 1]])
    ends = map_points(placement, middle + np.array([[0, 0], [1, 0]]))
    unit = float(np.linalg.norm(ends[1] - ends[0]))  # of the frame, a mm
    camera = np.zeros((3, 4))
    camera[:, [0, 1, 3]], camera[:, 2] = view[:, [0, 1, 3]] @ placement, view[:, 2] * unit
    if shot.sag == 0:
        return Sheet(camera, middle, 0.0, math.inf, 0.0)
    half = 4 * abs(shot.sag) * (1 + (4 * shot.sag) ** 2 / 12)  # of the arc: sag = (1 - cos half) / (2 half)
    radius = math.copysign(size[0] / 2 / half, shot.sag)
    return Sheet(camera, middle, shot.curl, radius, max(0.0, radius * (1 - math.cos(half))))

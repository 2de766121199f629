"""A card on a photograph: the map from its mm to pixels through a lens that distorts and over paper that is bent, and
pictures that show it flat."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attacks.perturbations.patch.card import Card
from attacks.physical.detect import Bytes, Floats
from attacks.runtime.extras import extra

#: The radius at which the lens's r is 1, in half diagonals: the focal length of a telephone's main camera.
UNIT = 1.2
#: The focal length before it is fitted, in that unit, and the deviation of its logarithm.
FOCAL, SPREAD = 1.2, 0.35
#: Rows that are resampled at once, and the largest side of a card seen from its front, in pixels.
ROWS, MAX_SIDE = 256, 4096


@dataclass(frozen=True, eq=False)
class Surface:
    """The map from mm of the card to pixels (centres are whole numbers) of a photograph of `size` (height, width).

    `values` (12,) are, in half card widths from the card's middle and in `UNIT` from the photograph's: eight of the
    homography from the bent card's shadow on its own tangent plane to the ideal photograph, row by row; `k1` of the
    lens: what is at the radius r of the ideal photograph is seen at r (1 + k1 r^2); the curvature, positive if the
    middle is nearest to the camera; the direction in which the card is bent, in radians; and the logarithm of the
    focal length over `FOCAL`.
    """

    size: tuple[int, int]
    card: tuple[float, float]
    values: Floats

    @property
    def unit(self) -> float:
        return UNIT * math.hypot(*self.size) / 2

    @property
    def centre(self) -> Floats:
        return (np.array(self.size[::-1], np.float64) - 1) / 2

    @property
    def k1(self) -> float:
        return float(self.values[8])

    @property
    def is_bent(self) -> bool:
        return bool(self.values[9] != 0)

    @property
    def bend(self) -> float:
        """How high the middle of the card rises over its edges along the bend, as a share of its width."""
        return float((1 - math.cos(self.values[9])) / (2 * self.values[9])) if self.is_bent else 0.0

    @property
    def is_plane(self) -> bool:
        return self.k1 == 0 and not self.is_bent

    def project(self, points: Any) -> Floats:
        """Pixels of the photograph for mm of the flat card (...,2)."""
        points = np.asarray(points, np.float64)
        flat = (points.reshape(-1, 2) - np.array(self.card) / 2) / (self.card[0] / 2)
        return (self.centre + self.unit * seen_points(self.values, flat)).reshape(points.shape)

    @property
    def homography(self) -> Floats:
        """(3,3) from mm of the card to pixels of the ideal photograph; of a bent card the closest."""
        plane = np.append(self.values[:8], 1.0).reshape(3, 3)
        if self.is_bent:
            grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 7)] * 2), -1).reshape(-1, 2) * self.card / self.card[0]
            ideal = seen_points(np.where(np.arange(12) == 8, 0.0, self.values), grid)
            plane = extra("cv2").findHomography(grid, ideal, 0)[0]
        return self._in_mm(plane)

    @property
    def resting(self) -> Floats:
        """(3,3) from mm of the flat card to pixels of the ideal photograph, in the plane that the card lies on: it
        touches it with its middle if its edges rise, and else with its edges."""
        plane = np.append(self.values[:8], 1.0).reshape(3, 3)
        if self.bend > 0:
            plane[:, 2] -= 2 * self.bend * _normal(plane, FOCAL * np.exp(self.values[11:]))
        return self._in_mm(plane)

    def _in_mm(self, plane: Floats) -> Floats:
        """A homography in the units of `values`, from mm to pixels."""
        (x, y), (width, height) = self.centre, self.card
        back = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, width / 2]])
        return np.asarray(np.array([[self.unit, 0, x], [0, self.unit, y], [0, 0, 1]]) @ plane @ back)

    def distort(self, ideal: Any) -> Floats:
        """Pixels of the photograph (...,2) for those of the ideal photograph."""
        off = (np.asarray(ideal, np.float64) - self.centre) / self.unit
        return np.asarray(self.centre + self.unit * off * (1 + self.k1 * (off**2).sum(-1, keepdims=True)))


def seen_points(values: Floats, flat: Floats) -> Floats:
    """Points (n,2) of the card on the photograph, in their units, of one or of several surfaces: (...,n,2)."""
    plane = np.concatenate([values[..., :8], np.ones_like(values[..., :1])], -1).reshape(*values.shape[:-1], 3, 3)
    k1, bend, angle, focal = (column[..., None] for column in np.moveaxis(values[..., 8:], -1, 0))
    c, s, (x, y) = np.cos(angle), np.sin(angle), flat.T
    axial, lateral = c * x + s * y, c * y - s * x
    bend_angle = bend * axial
    height = -bend_angle * axial / 2 * np.sinc(bend_angle / 2 / math.pi) ** 2
    axial = axial * np.sinc(bend_angle / math.pi)
    shadow = np.stack([c * axial - s * lateral, s * axial + c * lateral, np.ones_like(axial)], -2)
    images = plane @ shadow
    if np.any(bend):
        images = images + _normal(plane, FOCAL * np.exp(focal))[..., None] * height[..., None, :]
    ideal = np.moveaxis(images[..., :2, :] / images[..., 2:, :], -2, -1)
    return np.asarray(ideal * (1 + k1 * (ideal**2).sum(-1))[..., None])


def _normal(plane: Floats, focal: Floats) -> Floats:
    """What a height over planes (...,3,3) adds to a point's image (...,3): as long as the card's axes."""
    camera = np.concatenate([focal, focal, np.ones_like(focal)], -1)
    right, down = plane[..., 0] / camera, plane[..., 1] / camera
    length = np.sqrt(np.linalg.norm(right, axis=-1) * np.linalg.norm(down, axis=-1))[..., None]
    return np.asarray(-camera * np.cross(right, down) / length)


def remap(photo: Bytes, size: tuple[int, int], to_pixels: Callable[[Floats], Floats]) -> Bytes:
    """A picture of `size` (height, width) of what `photo` shows at `to_pixels` of each pixel (n,2); white beyond it,
    which is saturated and so not measured."""
    cv2, bands = extra("cv2"), []
    for top in range(0, size[0], ROWS):
        x, y = np.meshgrid(np.arange(size[1]), np.arange(top, min(top + ROWS, size[0])))
        points = to_pixels(np.stack([x, y], -1).reshape(-1, 2).astype(np.float64)).reshape(*x.shape, 2)
        positions = np.clip(points, -1e4, 1e5).astype(np.float32)
        bands.append(cv2.remap(photo, positions, None, cv2.INTER_CUBIC, borderValue=(255,) * 3))
    return np.concatenate(bands)


def ideal_photo(photo: Bytes, surface: Surface) -> Bytes:
    """The photograph through a lens without distortion."""
    return photo if surface.k1 == 0 else remap(photo, (photo.shape[0], photo.shape[1]), surface.distort)


def flattened(photo: Bytes, surface: Surface, card: Card) -> tuple[Bytes, Floats]:
    """A picture that shows the card as a plane, and the homography (3,3) from mm to its pixels: the photograph
    itself, or the card seen from its front."""
    if surface.is_plane:
        return photo, surface.homography
    corners = np.array([[0, 0], [card.width, 0], [card.width, card.height], [0, card.height]])
    sides = np.linalg.norm(surface.project(corners) - surface.project(np.roll(corners, -1, 0)), axis=1)
    scale = min(max(8, sides.max()) / min(card.width, card.height), MAX_SIDE / max(card.width, card.height))
    size = (max(1, round(card.height * scale)), max(1, round(card.width * scale)))
    picture = remap(photo, size, lambda pixels: surface.project((pixels + 0.5) / scale))
    return picture, np.array([[scale, 0, -0.5], [0, scale, -0.5], [0, 0, 1]])

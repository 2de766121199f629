"""What shows a card other than flat paper: a screen, cloth, glass. Each after another model than the attack's stages:
numpy and OpenCV only."""

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from attacks.physical.simulation.shots import Matrix, Points, Shot

Pixels = NDArray[Any]  # (h,w,3) of light in float32; 1 saturates
#: A screen's gamma, the light of its black, and its red, green and blue (rows) as a camera sees them.
GAMMA, BLACK = 2.2, 0.004
PRIMARIES = ((0.92, 0.06, 0.02), (0.05, 0.91, 0.04), (0.02, 0.07, 0.91))
#: The share of light that cloth keeps under ink, and how far folds change its light, in stops.
FIBRES, SHADE = 0.12, 0.3
#: The waves of a cloth's folds, and their lengths in card widths.
WAVES, LENGTHS = 3, (0.5, 1.2)


def shown_on_screen(raster: NDArray[np.uint8]) -> Pixels:
    """The light of a screen that shows an 8-bit raster, without its pixels."""
    light = np.float32(BLACK) + np.float32(1 - BLACK) * (raster / np.float32(255)) ** np.float32(GAMMA)
    return np.asarray(light @ np.asarray(PRIMARIES, np.float32).T, np.float32)


def with_pixels(light: Pixels, pitch: float) -> Pixels:
    """The light of a screen whose pixels are `pitch` dots wide: stripes of red, green and blue, as bright on average
    as without."""
    ends = np.arange(light.shape[1] + 1) / pitch
    whole = np.floor(ends)
    lit = [(whole + np.clip(3 * (ends - whole) - k, 0, 1)) * pitch for k in range(3)]
    return np.asarray(light * np.diff(np.stack(lit, -1), axis=0).astype(np.float32))


def mosaicked(light: Pixels) -> Pixels:
    """Red and blue as a sensor reads them, at every second pixel, and in between by interpolation."""
    height, width = light.shape[:2]
    odd, even = (np.meshgrid((np.arange(width) - k) / 2, (np.arange(height) - k) / 2) for k in (1, 0))
    for channel, start, at in ((0, 0, even), (2, 1, odd)):
        plane: Any = np.ascontiguousarray(light[start::2, start::2, channel])
        x, y = (axis.astype(np.float32) for axis in at)
        light[..., channel] = cv2.remap(plane, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return light


def add_front(light: Pixels, card: Points, shot: Shot) -> Pixels:
    """The light of a photograph whose card, with its corners (4,2) or more of its outline in pixels, is a screen whose
    refresh makes bands, or lies behind glass in which a room with a window is seen."""
    if shot.refresh == 0 and shot.reflected == 0:
        return light
    random, (height, width) = np.random.default_rng((shot.seed, 2)), light.shape[:2]
    cover: Any = np.zeros((height, width), np.float32)
    ends: Any = np.rint(card * 16).astype(np.int32)
    cv2.fillPoly(cover, [ends], 1.0, cv2.LINE_AA, 4)
    ramp = np.arange(height) / height * random.uniform(1, 6) + random.uniform()
    bands = 1 + shot.refresh * (4 * np.abs(ramp - np.rint(ramp)) - 1)  # a triangle wave over the rows
    light = light * (1 + cover * (bands[:, None] - 1))[..., None].astype(np.float32)
    room: Any = cv2.resize(random.uniform(0, 0.3, (4, 5, 3)), (width, height), interpolation=cv2.INTER_LINEAR)
    middle = card.mean(0) + random.uniform(-0.5, 0.5, 2) * np.ptp(card, axis=0)
    half = random.uniform(0.1, 0.35, 2) * np.ptp(card, axis=0)
    x, y = np.meshgrid(np.arange(width) - middle[0], np.arange(height) - middle[1])
    across, down = np.abs(x) / half[0], np.abs(y) / half[1]
    panes = (across < 1) & (down < 1) & (across > 0.08) & (down > 0.08)  # four, between the bars
    window = cv2.GaussianBlur(panes.astype(np.float32), (0, 0), 0.004 * width)[..., None]
    return np.asarray(light + np.float32(shot.reflected) * cover[..., None] * np.maximum(room, window), np.float32)


@dataclass(frozen=True, eq=False)
class Cloth:
    """A card on cloth, of `size` (width, height) in mm, that lies in folds and is stretched: what lies at q mm of the
    flat card's plane is the point S (q - middle) + middle + folds(q) of the card, where the folds are waves across
    themselves and along, and S is longer one way."""

    middle: Points
    linear: Matrix
    waves: Matrix  # (WAVES,5): cycles a mm right and down, the phase in cycles, and mm right and down

    def card(self, flat: Points) -> Points:
        """The points of the card (...,2) at points of its plane."""
        angle = 2 * math.pi * (flat @ self.waves[:, :2].T + self.waves[:, 2])
        return np.asarray(self.middle + (flat - self.middle) @ self.linear + np.sin(angle) @ self.waves[:, 3:])

    def lay(self, card: Points) -> Points:
        """The inverse: where points of the card lie in the plane."""
        flat = card
        for _ in range(100):  # folds are less steep than 1, so each step comes nearer
            flat = flat + card - self.card(flat)
        return flat

    def shade(self, size: tuple[int, int], dot: float) -> Pixels:
        """How bright the folds are, (h,w,1), over a raster of `size` (height, width) and dots of `dot` mm."""
        x, y = np.meshgrid(*(np.linspace(0, n * dot, 65) for n in size[::-1]))
        slope = np.cos(2 * math.pi * (np.stack([x, y], -1) @ self.waves[:, :2].T + self.waves[:, 2])).mean(-1)
        steep = np.hypot(*self.waves[:, 3:].T).max() / (self.middle[0] * 0.04)
        return cv2.resize(np.exp2(SHADE * min(1.0, steep) * slope), size[::-1])[..., None].astype(np.float32)


def cloth_of(shot: Shot, size: tuple[float, float]) -> Cloth | None:
    """The cloth of a photograph, whose card has `size` (width, height) in mm; None: it is no cloth."""
    if shot.fold == 0 and shot.stretch == 0:
        return None
    random = np.random.default_rng((shot.seed, 3))
    along, way, phase = random.uniform(0, math.pi, WAVES), random.uniform(0, 2 * math.pi, WAVES), random.uniform(0, 1, 3)
    cycles = 1 / (random.uniform(*LENGTHS, WAVES) * size[0])
    high = shot.fold * size[0] / math.sqrt(WAVES)
    waves = [cycles * np.cos(along), cycles * np.sin(along), phase, high * np.cos(way), high * np.sin(way)]
    axis = random.uniform(0, math.pi)
    unit = np.array([math.cos(axis), math.sin(axis)])
    linear = np.eye(2) - shot.stretch / (1 + shot.stretch) * np.outer(unit, unit)
    return Cloth(np.array(size) / 2, linear, np.stack(waves, 1))

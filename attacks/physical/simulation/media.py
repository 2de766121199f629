"""What shows a card other than flat paper: a screen, cloth, glass. Each after another model than the attack's stages:
numpy and OpenCV only."""

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from attacks.physical.simulation.shots import Matrix, Pixels, Points, Shot

#: A screen's gamma, the light of its black, and its red, green and blue (rows) as a camera sees them.
GAMMA, BLACK = 2.2, 0.004
PRIMARIES = ((0.92, 0.06, 0.02), (0.05, 0.91, 0.04), (0.02, 0.07, 0.91))
#: The share of light that cloth keeps under ink; stops of light for folds as high as half the card is wide; and the
#: waves of the folds with their lengths in card widths.
FIBRES, SHADE, WAVES, LENGTHS = 0.12, 5.0, 3, (0.5, 1.2)


@dataclass(frozen=True, eq=False)
class Cloth:
    """A card on cloth that lies in folds and is stretched: at q mm of the flat card's plane one sees the point
    S (q - middle) + middle + folds(q) of the card, where S is shorter one way, and the folds are waves."""

    middle: Points
    linear: Matrix
    waves: Matrix  # (WAVES,5): radians a mm right and down, the phase, and mm right and down

    def card(self, flat: Points) -> Points:
        """The points of the card (...,2) at points of its plane."""
        folds = np.sin(flat @ self.waves[:, :2].T + self.waves[:, 2]) @ self.waves[:, 3:]
        return np.asarray(self.middle + (flat - self.middle) @ self.linear + folds)

    def lay(self, card: Points) -> Points:
        """The inverse: where points of the card lie in the plane."""
        flat = card
        for _ in range(100):  # folds are less steep than 1, so each step comes nearer
            flat = flat + card - self.card(flat)
        return flat

    def shade(self, size: tuple[int, int], dot: float) -> Pixels:
        """How bright the folds are, (h,w,1), over a raster of `size` (height, width) and dots of `dot` mm."""
        x, y = np.meshgrid(*(np.linspace(0, n * dot, 65) for n in size[::-1]))
        slope = np.cos(np.stack([x, y], -1) @ self.waves[:, :2].T + self.waves[:, 2]) @ np.hypot(*self.waves[:, 3:].T)
        return np.asarray(cv2.resize(np.exp2(SHADE * slope / self.middle[0]), size[::-1])[..., None], np.float32)


def screen_light(raster: NDArray[np.uint8]) -> Pixels:
    """The light of a screen that shows an 8-bit raster, without its pixels."""
    light = np.float32(BLACK) + np.float32(1 - BLACK) * (raster / np.float32(255)) ** np.float32(GAMMA)
    return np.asarray(light @ np.asarray(PRIMARIES, np.float32).T, np.float32)


def add_stripes(light: Pixels, pitch: float) -> Pixels:
    """The light of a screen whose pixels, stripes of red, green and blue, are `pitch` dots wide; the mean stays."""
    ends = np.arange(light.shape[1] + 1) / pitch
    index = np.floor(ends)
    stripes = [(index + np.clip(3 * (ends - index) - k, 0, 1)) * pitch for k in range(3)]
    return np.asarray(light * np.diff(np.stack(stripes, -1), axis=0).astype(np.float32))


def medium_light(ink: Pixels, shot: Shot, cloth: Cloth, dot: float) -> Pixels:
    """The light of a card, dots of `dot` mm, under the folds of its cloth, or with a screen's pixels. Channels beyond
    three stay as they are."""
    light = ink[..., :3] * cloth.shade((ink.shape[0], ink.shape[1]), dot)
    if shot.grid > 0:
        light = add_stripes(light, shot.grid / dot) * np.float32(2**shot.glow)
    return np.dstack([light, ink[..., 3:]])


def demosaic(light: Pixels) -> Pixels:
    """Red and blue as a sensor reads them, at every second pixel, and in between by interpolation."""
    for channel, start in ((0, 0), (2, 1)):
        plane: Any = np.ascontiguousarray(light[start::2, start::2, channel])
        x, y = np.meshgrid(*((np.arange(n, dtype=np.float32) - start) / 2 for n in light.shape[1::-1]))
        light[..., channel] = cv2.remap(plane, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return light


def add_front(light: Pixels, card: Points, shot: Shot) -> Pixels:
    """The light of a photograph whose card, of an outline (n,2) in pixels, is a screen whose refresh makes bands, or
    lies behind glass in which a room with a window is seen."""
    if shot.refresh == 0 and shot.reflection == 0:
        return light
    random, (height, width) = np.random.default_rng((shot.seed, 2)), light.shape[:2]
    cover: Any = np.zeros((height, width), np.float32)
    cv2.fillPoly(cover, [np.rint(card * 16).astype(np.int32)], 1.0, cv2.LINE_AA, 4)
    ramp = np.arange(height) / height * random.uniform(1, 6) + random.uniform()
    bands = 1 + shot.refresh * (4 * np.abs(ramp - np.rint(ramp)) - 1)  # a triangle wave over the rows
    light = light * (1 + cover * (bands[:, None] - 1))[..., None].astype(np.float32)
    room: Any = cv2.resize(random.uniform(0, 0.3, (4, 5, 3)), (width, height), interpolation=cv2.INTER_LINEAR)
    middle = card.mean(0) + random.uniform(-0.5, 0.5, 2) * np.ptp(card, axis=0)
    half = random.uniform(0.1, 0.35, 2) * np.ptp(card, axis=0)
    off = np.abs(np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1) - middle) / half
    panes = ((off > 0.08) & (off < 1)).all(-1)  # four, between the bars
    window = cv2.GaussianBlur(panes.astype(np.float32), (0, 0), 0.004 * width)[..., None]
    return np.asarray(light + np.float32(shot.reflection) * cover[..., None] * np.maximum(room, window), np.float32)


def cloth_of(shot: Shot, size: tuple[float, float]) -> Cloth:
    """The cloth of a photograph, whose card has `size` (width, height) in mm; without folds it is paper."""
    random = np.random.default_rng((shot.seed, 3))
    across, heading, phase = random.uniform(0, 2 * math.pi, (3, WAVES))
    steps = 2 * math.pi / (random.uniform(*LENGTHS, WAVES) * size[0])
    high, axis = shot.fold * size[0] / math.sqrt(WAVES), random.uniform(0, math.pi)
    waves = [steps * np.cos(across), steps * np.sin(across), phase, high * np.cos(heading), high * np.sin(heading)]
    unit = np.array([math.cos(axis), math.sin(axis)])
    linear = np.eye(2) - shot.stretch / (1 + shot.stretch) * np.outer(unit, unit)
    return Cloth(np.array(size) / 2, linear, np.stack(waves, 1)[: WAVES if shot.fold else 0])

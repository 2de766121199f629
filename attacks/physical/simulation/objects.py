"""Disturbances of a photograph: objects in the scene, one across the card's edge, a lamp's glare, fine structure."""

import math
from typing import Any

import cv2
import numpy as np

from attacks.physical.simulation.camera import Pixels
from attacks.physical.simulation.shots import Points, Shot

#: The radius of an object in the scene, as a share of the shorter side, and of the lamp, as a share of the card's.
OBJECT, LAMP = (0.02, 0.07), 0.1
#: The grain of fine structure in pixels: finer than the first, coarser than the second.
GRAIN = (3.0, 0.7)


def furnished(scene: Pixels, shot: Shot) -> Pixels:
    """The light of a scene with fine structure, and with objects in it."""
    random = np.random.default_rng((shot.seed, 0))
    if shot.detail > 0:
        noise = random.standard_normal(scene.shape[:2], np.float32)
        fine = cv2.GaussianBlur(noise, (0, 0), GRAIN[1]) - cv2.GaussianBlur(noise, (0, 0), GRAIN[0])
        scene = scene * np.maximum(1 + shot.detail * fine / fine.std(), 0)[..., None]
    side = min(scene.shape[:2])
    for _ in range(shot.clutter):
        middle, radius = random.uniform(0, 1, 2) * scene.shape[1::-1], random.uniform(*OBJECT) * side
        corners = _outline(middle, radius, int(random.integers(3, 9)), random)
        scene = _covered(scene, corners, random.uniform(0, 0.8, 3))
    return scene


def disturbed(light: Pixels, card: Points, shot: Shot) -> Pixels:
    """The light of a photograph in which an object lies across the edge of the card, whose corners (4,2) are given in
    pixels, and a lamp shines on it."""
    random = np.random.default_rng((shot.seed, 1))
    x, y = card.T
    area = abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2
    side, share = int(random.integers(4)), random.uniform(0.2, 0.8)
    edge = (1 - share) * card[side] + share * card[(side + 1) % 4]
    colour, at = random.uniform(0, 0.8, 3), random.uniform(0.1, 0.9, 2)
    if shot.covered > 0:  # half of it on the card
        light = _covered(light, _outline(edge, math.sqrt(2 * shot.covered * area / math.pi), 24, random), colour)
    if shot.glare > 0:
        top, low = (card[i] + at[0] * (card[j] - card[i]) for i, j in ((0, 1), (3, 2)))
        off = np.stack(np.meshgrid(*map(np.arange, light.shape[1::-1])), -1) - (top + at[1] * (low - top))
        lamp = np.exp(-(((off**2).sum(-1) / (LAMP**2 * area)) ** 2))
        light = light + np.float32(shot.glare) * lamp[..., None].astype(np.float32)
    return light


def _outline(middle: Points, radius: float, corners: int, random: np.random.Generator) -> Points:
    """The corners of a shape that is about round."""
    angles = np.sort(random.uniform(0, 2 * math.pi, corners)) if corners < 9 else np.linspace(0, 2 * math.pi, corners)
    return middle + radius * np.stack([np.cos(angles), np.sin(angles)], 1)


def _covered(light: Pixels, corners: Points, colour: Points) -> Pixels:
    """Light under an opaque shape with a smooth edge."""
    cover: Any = np.zeros(light.shape[:2], np.float32)
    ends: Any = np.rint(corners * 16).astype(np.int32)
    cv2.fillPoly(cover, [ends], 1.0, cv2.LINE_8, 4)
    cover = cv2.GaussianBlur(cover, (0, 0), 0.5)[..., None]
    return np.asarray(light * (1 - cover) + cover * np.asarray(colour, np.float32), np.float32)

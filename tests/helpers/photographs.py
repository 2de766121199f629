"""Computed photographs of a card: every pixel is the mean light of the points that it covers.

Independent of the simulation in `attacks.physical`, so that neither can hide an error in the other.
"""

from dataclasses import replace

import cv2
import numpy as np

from attacks.evaluation.scores import Scores
from attacks.experiment.view_scores import ViewScores, write_scores
from attacks.perturbations.patch.card import card

#: Pixels of the drawn card for each mm, and points along each axis that a pixel averages.
FINE, POINTS = 16, 3
DICTIONARY = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_APRILTAG_36h11)


def numbered_card(first):
    """The card of a patch of 80 x 80 mm, with four tags from a number on."""
    result = card(80, 80)
    return replace(result, tags=tuple(replace(tag, number=first + i) for i, tag in enumerate(result.tags)))


def linear(srgb):
    srgb = np.asarray(srgb, np.float64)
    return np.where(srgb > 0.04045, ((srgb + 0.055) / 1.055) ** 2.4, srgb / 12.92)


def encoded(light):
    light = np.clip(light, 0, None)
    return np.where(light > 0.0031308, 1.055 * light ** (1 / 2.4) - 0.055, light * 12.92)


def card_light(card, texture=None, hidden=(), fine=FINE):
    """The card's light, (h,w,3) float32: white paper, the patch, tags and swatches."""

    def at(box):
        return tuple(round(v * fine) for v in (box.x, box.y, box.x + box.width, box.y + box.height))

    light = np.ones((round(card.height * fine), round(card.width * fine), 3), np.float32)
    left, top, right, low = at(card.patch)
    if texture is None:
        texture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    pixels = cv2.resize(texture, (right - left, low - top), interpolation=cv2.INTER_NEAREST)
    light[top:low, left:right] = linear(pixels / 255)
    for tag in card.tags:
        if tag.number not in hidden:
            left, top, right, low = at(tag.box)
            mark = cv2.aruco.generateImageMarker(DICTIONARY, tag.number, 8)
            pixels = cv2.resize(mark, (right - left, low - top), interpolation=cv2.INTER_NEAREST)
            light[top:low, left:right] = pixels[..., None] / 255
    for swatch in card.chart:
        left, top, right, low = at(swatch.box)
        light[top:low, left:right] = linear(np.array(swatch.colour) / 255)
    return light


def clutter(size, seed=0):
    """A background with edges in many directions, (h,w,3) light."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((size[0] // 40 + 2, size[1] // 40 + 2, 3)).astype(np.float32)
    mild = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC)
    sharp = cv2.resize(coarse[::-1].copy(), size[::-1], interpolation=cv2.INTER_NEAREST)
    return np.clip(0.2 + 0.3 * mild + 0.3 * sharp, 0, 1)


def render_photo(light, homography, size, *, blur=0.7, noise=0.01, light_at=1.0, seed=0, points=POINTS, fine=FINE):
    """The card `light` seen through `homography` (mm -> pixels, centres at whole numbers), (H,W,3) uint8."""
    height, width = size
    offsets = (np.arange(points) + 0.5) / points - 0.5
    scene = clutter(size, seed)
    inverse = np.linalg.inv(homography)
    total, inside = np.zeros((height, width, 3), np.float32), np.zeros((height, width, 1), np.float32)
    layers = np.dstack([light, np.ones(light.shape[:2], np.float32)])
    x, y = np.meshgrid(np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64))
    for dy in offsets:
        for dx in offsets:
            u, v, w = (row[0] * (x + dx) + row[1] * (y + dy) + row[2] for row in inverse)
            u, v = u / w * fine - 0.5, v / w * fine - 0.5
            part = cv2.remap(layers, u.astype(np.float32), v.astype(np.float32), cv2.INTER_LINEAR)
            total += part[..., :3] / points**2
            inside += part[..., 3:] / points**2
    scene = (total + (1 - inside) * scene) * light_at
    if blur:
        scene = cv2.GaussianBlur(scene, (0, 0), blur)
    levels = encoded(scene) * 255 + 255 * noise * np.random.default_rng(seed).standard_normal(scene.shape)
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


def place_card(card, *, width=300.0, degrees=0.0, jitter=0.0, size=(720, 960), seed=0, shift=(0.0, 0.0)):
    """A homography mm -> px: the patch about `width` px wide, turned, its corners moved by up to `jitter` of half a
    side, in the middle of the photograph but for `shift` px."""
    rng = np.random.default_rng(seed)
    patch = card.patch
    corners = np.array(patch.corners) - [patch.x + patch.width / 2, patch.y + patch.height / 2]
    unit = corners + rng.uniform(-jitter, jitter, (4, 2)) * [patch.width / 2, patch.height / 2]
    turn = np.deg2rad(degrees)
    corners_px = unit @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) * width / patch.width
    corners_px += np.array(size[::-1]) / 2 - 0.5 + shift
    return cv2.getPerspectiveTransform(np.float32(patch.corners), np.float32(corners_px)).astype(np.float64)


def map_points(homography, points):
    """Points (...,2) mapped by a homography."""
    points = np.asarray(points, np.float64)
    out = np.concatenate([points, np.ones((*points.shape[:-1], 1))], -1) @ homography.T
    return out[..., :2] / out[..., 2:]


def lattice(card, steps=7):
    """Points (steps^2,2) over the patch, in mm."""
    patch = card.patch
    x, y = np.meshgrid(*(np.linspace(0, 1, steps),) * 2)
    return np.stack([patch.x + patch.width * x, patch.y + patch.height * y], -1).reshape(-1, 2)


def stored_scores(folder, cosine, success, arms=("clean", "noise", "no_eot", "eot")):
    """A run's scores.safetensors, with the same (N,V) cosines and successes in each arm; what is no success is
    recognised."""
    scores = {arm: Scores(cosine.float().clone(), (rank := 1 + success.int()).clone(), rank) for arm in arms}
    write_scores(folder, ViewScores({"same": scores}, {"same": {arm: success.clone() for arm in arms}}, {}, {}))

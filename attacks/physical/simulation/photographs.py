"""One photograph: a scene, the card in it, and the camera."""

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Card
from attacks.physical.simulation import shots
from attacks.physical.simulation.camera import add_noise, blurred, develop, enlarge, lit, render
from attacks.physical.simulation.media import add_front, cloth_of, demosaic, medium_light
from attacks.physical.simulation.optics import CameraLens, LensWarp, sheet_light
from attacks.physical.simulation.shots import Matrix, Pixels, Points, Shot, four_point_homography, map_points

MM = 25.4  # an inch
SHARES = ((0, 0), (1, 0), (1, 1), (0, 1))
#: The radius of an object in the scene, as a share of the shorter side, and of the lamp, as a share of the card's.
OBJECT, LAMP = (0.02, 0.07), 0.1
#: The grain of fine structure in pixels: finer than the first, coarser than the second.
GRAIN = (3.0, 0.7)


def add_objects(scene: Pixels, shot: Shot) -> Pixels:
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
        scene = _cover(scene, corners, random.uniform(0, 0.8, 3))
    return scene


def add_disturbances(light: Pixels, card: Points, shot: Shot) -> Pixels:
    """The light of a photograph in which an object lies across the edge of the card, whose corners (4,2) are given in
    pixels, and a lamp shines on it."""
    random = np.random.default_rng((shot.seed, 1))
    x, y = card.T
    area = abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2
    side, share = int(random.integers(4)), random.uniform(0.2, 0.8)
    edge = (1 - share) * card[side] + share * card[(side + 1) % 4]
    colour, at = random.uniform(0, 0.8, 3), random.uniform(0.1, 0.9, 2)
    if shot.covered > 0:  # half of it on the card
        light = _cover(light, _outline(edge, math.sqrt(2 * shot.covered * area / math.pi), 24, random), colour)
    if shot.glare > 0:
        top, low = (card[i] + at[0] * (card[j] - card[i]) for i, j in ((0, 1), (3, 2)))
        off = np.stack(np.meshgrid(*map(np.arange, light.shape[1::-1])), -1) - (top + at[1] * (low - top))
        lamp = np.exp(-(((off**2).sum(-1) / (LAMP**2 * area)) ** 2))
        light = light + np.float32(shot.glare) * lamp[..., None].astype(np.float32)
    return light


def _outline(middle: Points, radius: float, corners: int, random: np.random.Generator) -> Points:
    angles = np.sort(random.uniform(0, 2 * math.pi, corners)) if corners < 9 else np.linspace(0, 2 * math.pi, corners)
    return middle + radius * np.stack([np.cos(angles), np.sin(angles)], 1)


def _cover(light: Pixels, corners: Points, colour: Points) -> Pixels:
    """Light under an opaque shape with a smooth edge."""
    cover: Any = np.zeros(light.shape[:2], np.float32)
    cv2.fillPoly(cover, [np.rint(corners * 16).astype(np.int32)], 1.0, cv2.LINE_8, 4)
    cover = cv2.GaussianBlur(cover, (0, 0), 0.5)[..., None]
    return np.asarray(light * (1 - cover) + cover * np.asarray(colour, np.float32), np.float32)


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph (h,w,3) in 8-bit sRGB, and the corners of its objects in pixels (centres are whole numbers)."""

    pixels: NDArray[np.uint8]
    patch: list[list[float]]
    card: list[list[float]]
    tags: dict[str, list[list[float]]]
    scene: list[list[float]]


def take_photograph(
    scene: NDArray[np.uint8],
    quad: Any,
    card: Card,
    ink: Pixels,
    dpi: float,
    shot: Shot,
    size: tuple[int, int],
    rng: np.random.Generator,
) -> Photograph:
    """Place the card in the scene, its patch exactly on `quad`, and photograph it. Raises ValueError where the quad
    is not convex, or a corner of the card lies behind the camera.

    Args:
        scene: 8-bit sRGB (h,w,3).
        quad: the patch's upper left, upper right, lower right and lower left corner, in shares of width and height.
        ink: the light that the card reflects (see `simulation.camera.print_raster`), from its upper left corner on; a
            fourth channel is the share of it that nothing hides.
        dpi: dots per inch of `ink`.
        size: (height, width) of the photograph.
        rng: for the sensor's noise.
    """
    plane = shots.from_shares((scene.shape[0], scene.shape[1]))
    eye = np.asarray(shots.frame(size) @ shots.view_homography(shot))  # from the scene to the photograph
    plane_view, placement = eye[:, [0, 1, 3]], four_point_homography(card.patch.corners, map_points(plane, quad))
    edge = ((0, 0), (card.width, 0), (card.width, card.height), (0, card.height))
    map_points(plane_view @ placement, edge)  # raises before anything is rendered
    lens, paper = CameraLens(shot.k1, size), sheet_light(shot, eye, placement, (card.width, card.height))
    cloth = cloth_of(shot, (card.width, card.height))
    warp = LensWarp(lens, paper, MM / dpi, cloth)
    ends = lens.project(map_points(plane_view @ plane, SHARES))
    light = add_objects(enlarge(scene, min(size)), shot)
    picture = render(
        light,
        plane_view @ plane @ _from_pixels(1 / light.shape[1], 1 / light.shape[0]),
        medium_light(ink, shot, cloth, MM / dpi),
        plane_view @ placement @ _from_pixels(MM / dpi, MM / dpi),
        size,
        warp if shot.k1 or shot.sag or shot.fold or shot.stretch else None,
    )
    picture = add_front(picture, warp.outline(), shot)
    picture = add_disturbances(picture, warp.project(edge), shot)
    picture = blurred(lit(picture, shot), shot)
    picture = add_noise(demosaic(picture) if shot.grid > 0 else picture, shot, rng)
    return Photograph(
        develop(picture, shot),
        patch=warp.project(card.patch.corners).tolist(),
        card=warp.project(edge).tolist(),
        tags={str(tag.number): warp.project(tag.box.corners).tolist() for tag in card.tags},
        scene=ends.tolist(),
    )


def _from_pixels(x: float, y: float) -> Matrix:
    """From a raster's pixels, whose centres are whole numbers, to a frame in which a pixel has the size (x, y)."""
    return np.array([[x, 0, x / 2], [0, y, y / 2], [0, 0, 1]])

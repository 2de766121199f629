"""One photograph: a scene, the card in it, and the camera."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Card
from attacks.physical.simulation.camera import Pixels, blurred, developed, enlarged, lit, photographed, sensed
from attacks.physical.simulation.shots import Matrix, Shot, between, frame, from_shares, pose, through

MM = 25.4  # an inch
SHARES = ((0, 0), (1, 0), (1, 1), (0, 1))


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph (h,w,3) in 8-bit sRGB, and the corners of its objects in pixels (centres are whole numbers)."""

    pixels: NDArray[np.uint8]
    patch: list[list[float]]
    card: list[list[float]]
    tags: dict[str, list[list[float]]]
    scene: list[list[float]]


def photograph(
    scene: NDArray[np.uint8],
    quad: Any,
    card: Card,
    ink: Pixels,
    dpi: float,
    shot: Shot,
    size: tuple[int, int],
    rng: np.random.Generator,
) -> Photograph:
    """Place the card in the scene, its patch exactly on `quad`, and photograph it.

    Args:
        scene: 8-bit sRGB (h,w,3).
        quad: the patch's upper left, upper right, lower right and lower left corner, in shares of width and height.
        ink: the light that the card reflects (see `simulation.camera.printed`), from its upper left corner on.
        dpi: dots per inch of `ink`.
        size: (height, width) of the photograph.
        rng: for the sensor's noise.

    Raises:
        ValueError: the quad is not convex, or a corner of the card lies behind the camera.
    """
    plane = from_shares((scene.shape[0], scene.shape[1]))
    seen = frame(size) @ pose(shot)  # from the scene's plane to the photograph
    placed = seen @ between(card.patch.corners, through(plane, quad))  # from the card's millimetres
    edge = ((0, 0), (card.width, 0), (card.width, card.height), (0, card.height))
    whole, ends = through(placed, edge), through(seen @ plane, SHARES)  # raises before anything is rendered
    light = enlarged(scene, min(size))
    view = photographed(
        light,
        seen @ plane @ _from_pixels(1 / light.shape[1], 1 / light.shape[0]),
        ink,
        placed @ _from_pixels(MM / dpi, MM / dpi),
        size,
    )
    view = sensed(blurred(lit(view, shot), shot), shot, rng)
    return Photograph(
        developed(view, shot),
        patch=through(placed, card.patch.corners).tolist(),
        card=whole.tolist(),
        tags={str(tag.number): through(placed, tag.box.corners).tolist() for tag in card.tags},
        scene=ends.tolist(),
    )


def _from_pixels(x: float, y: float) -> Matrix:
    """From a raster's pixels, whose centres are whole numbers, to a frame in which a pixel has the size (x, y)."""
    return np.array([[x, 0, x / 2], [0, y, y / 2], [0, 0, 1]])

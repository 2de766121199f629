"""One photograph: a scene, the card in it, and the camera."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Card
from attacks.physical.simulation.camera import Pixels, blurred, developed, enlarged, lit, photographed, sensed
from attacks.physical.simulation.objects import disturbed, furnished
from attacks.physical.simulation.optics import Bent, Lens, sheet
from attacks.physical.simulation.shots import Matrix, Shot, between, frame, from_shares, through, view

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
    eye = np.asarray(frame(size) @ view(shot))  # from the scene to the photograph
    seen, over = eye[:, [0, 1, 3]], between(card.patch.corners, through(plane, quad))
    edge = ((0, 0), (card.width, 0), (card.width, card.height), (0, card.height))
    through(seen @ over, edge)  # raises before anything is rendered
    lens, paper = Lens(shot.k1, size), sheet(shot, eye, over, (card.width, card.height))
    ends = lens.seen(through(seen @ plane, SHARES))
    light = furnished(enlarged(scene, min(size)), shot)
    shown = photographed(
        light,
        seen @ plane @ _from_pixels(1 / light.shape[1], 1 / light.shape[0]),
        ink,
        seen @ over @ _from_pixels(MM / dpi, MM / dpi),
        size,
        Bent(lens, paper, MM / dpi) if shot.k1 or shot.sag else None,
    )
    shown = disturbed(shown, lens.seen(paper.seen(np.array(edge, np.float64))), shot)
    shown = sensed(blurred(lit(shown, shot), shot), shot, rng)

    def points(box: Any) -> list[list[float]]:
        return lens.seen(paper.seen(np.asarray(box, np.float64))).tolist()  # type: ignore[no-any-return]

    return Photograph(
        developed(shown, shot),
        patch=points(card.patch.corners),
        card=points(edge),
        tags={str(tag.number): points(tag.box.corners) for tag in card.tags},
        scene=ends.tolist(),
    )


def _from_pixels(x: float, y: float) -> Matrix:
    """From a raster's pixels, whose centres are whole numbers, to a frame in which a pixel has the size (x, y)."""
    return np.array([[x, 0, x / 2], [0, y, y / 2], [0, 0, 1]])

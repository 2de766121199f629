"""The card in its scene: whether the photograph shows the run's scene round it, and the card there as it should."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Card
from attacks.physical.colour_fit import SceneCells, scene_cells
from attacks.physical.rectify import project
from attacks.physical.resemblance import correlation
from attacks.physical.scene_features import Found, find

Floats = NDArray[np.float64]
#: The least correlation with the run's picture of a scene in which the card lies wrongly, and how much better it must
#: be than of the scene as it should lie.
SCENE, BETTER = 0.65, 0.03
#: The least correlation with the picture of a scene whose matches show that the card lies as it should; where it
#: cannot be measured, the fewest matches.
LIKELY, CERTAIN = 0.4, 16
#: The least correlation that needs no matches, as in a smooth scene. Where too few matched in 215 pictures, it was
#: 0.96 and more with the card in its place, and at most 0.86 with the card elsewhere.
SMOOTH = 0.92
#: The fewest cells of the scene.
CELLS = 100
#: Cells along each side of a part of the scene, how much it must vary (standard deviation, of 255), and the fewest
#: parts that prove a scene.
PART, FLAT, PARTS = 8, 2.5, 4


@dataclass(frozen=True, eq=False)
class Place:
    """The card in its scene: the `cells` that are compared, their `correlation` with the run's picture (None: they
    cannot be), whether too little of the scene is `unseen`, the angle of the scene and its stretch (see `stretch`),
    and how the card lies in the scene that is `found` (None: too few matches, or by chance)."""

    cells: SceneCells | None
    correlation: float | None
    unseen: bool
    degrees: float
    stretch: float
    found: Found | None = None

    @property
    def belongs(self) -> bool:
        """Whether the scene is that of the picture, and the card lies in it as it should."""
        if self.found is None:
            return self.correlation is not None and self.correlation >= SMOOTH
        return self.found.fault is None


def place(
    photo: NDArray[np.uint8], picture: NDArray[np.uint8], scene: Floats, card: Card | None, homography: Floats
) -> Place:
    """Compare the scene round a card with the run's picture.

    From the card alone its plane is known less the farther it is from the card; its own features show where it is.

    Args:
        scene: from the picture's pixels, 0 its edge, to the photograph's.
        card: None where the user gave the corners of the patch: then only its angle and stretch are known.
        homography: from mm of the flat card, in the plane that it lies on, to the photograph's pixels.
    """
    pose = stretch(scene, (picture.shape[0], picture.shape[1]))
    if card is None:
        return Place(None, None, False, *pose)

    def seen(at: Floats) -> tuple[SceneCells | None, float | None]:
        cells = scene_cells(photo, picture, at, card, homography)
        return cells, None if cells is None else scene_correlation(cells)

    cells, value = seen(scene)
    found = find(photo, picture, scene, card, homography)
    if found is not None:
        looks, there = seen(found.scene)
        own, other = (-1.0 if each is None else each for each in (value, there))
        if found.fault is not None:
            chance = other < max(SCENE, own + BETTER)
        elif value is None and there is None:
            chance = found.matches < CERTAIN
        else:
            chance = max(own, other) < LIKELY
        if chance:  # a few matches of another scene may agree
            found = None
        elif other > own:
            cells, value = looks, there
    unseen = cells is None or (value is None and varying_parts(cells.known, cells.outside) >= PARTS)
    return Place(cells, value, unseen and found is None, *pose, found)


def varying_parts(picture: NDArray[np.uint8], use: NDArray[np.bool_]) -> int:
    """How many parts of the grid vary, of the cells (R,C) that are used."""
    return sum(known.std(0).max() >= FLAT / 255 for known, _ in _parts(picture, picture, use))


def _parts(
    known: NDArray[np.uint8], seen: NDArray[np.uint8], use: NDArray[np.bool_]
) -> Iterator[tuple[Floats, Floats]]:
    """Of each part of the grid of which at least half is used, the cells (n,3) in [0,1] of two pictures."""
    for row in range(0, use.shape[0], PART):
        for column in range(0, use.shape[1], PART):
            part = np.s_[row : row + PART, column : column + PART]
            if 2 * use[part].sum() >= PART**2:
                yield known[part][use[part]] / 255, seen[part][use[part]] / 255


def scene_correlation(cells: SceneCells) -> float | None:
    """How well the scene that is seen round the card correlates with the picture: the median over the parts of the
    grid that vary, so that a stranger in a part of the scene does not count. None where the picture does not vary, or
    too few cells are seen."""
    if cells.shown.sum() < CELLS:
        return None
    varying, others = list[float](), list[float]()
    for known, seen in _parts(cells.known, cells.seen, cells.shown):
        if known.std(0).max() >= FLAT / 255:
            varying.append(correlation(known, seen))
        elif seen.std(0).max() >= 3 * FLAT / 255:
            others.append(correlation(known, seen))
    enough = varying if len(varying) >= PARTS else varying + others  # a flat picture, and a scene that is not
    return float(np.median(enough)) if len(enough) >= PARTS else None


def stretch(scene: Floats, size: tuple[int, int]) -> tuple[float, float]:
    """The angle of a scene in a photograph, in degrees clockwise, and how much longer it is along one direction than
    along another, in the middle of a picture of `size` (height, width); `scene` maps its pixels."""
    middle = np.array([size[1] / 2, size[0] / 2])
    step = min(size) / 100
    right, down = (project(scene, middle + d) - project(scene, middle - d) for d in ([step, 0.0], [0.0, step]))
    singular = np.linalg.svd(np.stack([right, down], 1), compute_uv=False)
    return math.degrees(math.atan2(right[1], right[0])), float(singular[0] / max(singular[1], 1e-12))

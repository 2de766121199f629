"""The card in its scene: whether the photograph shows the run's scene round it, and the card upright there."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Box, Card
from attacks.physical.colour_fit import CELLS as SIDE
from attacks.physical.colour_fit import SceneCells, scene_cells
from attacks.physical.rectify import project
from attacks.physical.resemblance import correlation

Floats = NDArray[np.float64]
#: The least correlation of the scene round the card with the run's picture; of a card that is turned by quarters or
#: stretched, to say so.
SCENE, TURN = 0.65, 0.8
#: The fewest cells of the scene.
CELLS = 100
#: Cells along each side of a part of the scene, how much it must vary (standard deviation, of 255), and the fewest
#: parts that prove a scene.
PART, FLAT, PARTS = 8, 2.5, 4
#: Shifts along an axis, in cells, of which each part has its best where the scene does not correlate as it lies: far
#: from the card its plane is known less exactly.
SHIFTS = (0.0, -0.75, -0.375, 0.375, 0.75)
#: Stretches of the card that are tried, and how much better than none the scene must correlate with one.
TIMES, BETTER = (1.2, 1.45), 0.03


@dataclass(frozen=True, eq=False)
class Place:
    """The card in its scene: the `cells` that are compared, their `correlation` with the run's picture (None: they
    cannot be), by how many quarters clockwise the card is turned there, whether too little of the scene is `unseen`,
    the angle of the scene and its stretch (see `stretch`), and by how much the card is `stretched` in it."""

    cells: SceneCells | None
    correlation: float | None
    quarters: int
    unseen: bool
    degrees: float
    stretch: float
    stretched: float = 1.0

    @property
    def belongs(self) -> bool:
        """Whether the scene is that of the picture."""
        return self.correlation is not None and self.correlation >= SCENE


def place(
    photo: NDArray[np.uint8], picture: NDArray[np.uint8], scene: Floats, card: Card | None, homography: Floats
) -> Place:
    """Compare the scene round a card with the run's picture, as it should lie and turned by quarters.

    Args:
        scene: from the picture's pixels, 0 its edge, to the photograph's.
        card: None where the user gave the corners of the patch: then only its angle and stretch are known.
        homography: from mm of the flat card, in the plane that it lies on, to the photograph's pixels.
    """
    pose = stretch(scene, (picture.shape[0], picture.shape[1]))
    if card is None:
        return Place(None, None, 0, False, *pose)

    cell = max(1.0, max(picture.shape[:2]) / SIDE)

    def seen(change: Floats, shifts: Sequence[float] = (0.0,)) -> tuple[SceneCells | None, float | None]:
        mapped = homography @ change @ np.linalg.inv(homography) @ scene
        moved = (mapped @ _moved(cell * x, cell * y) for x, y in itertools.product(shifts, repeat=2))
        looks = [scene_cells(photo, picture, each, card, homography) for each in moved]
        shown = [each for each in looks if each is not None]
        return (shown[0], scene_correlation(shown)) if shown else (None, None)

    (cells, own), middle = seen(np.eye(3)), card.patch
    best = max(SCENE, -1.0 if own is None else own)
    for quarters in (1, 2, 3):
        value = seen(_about(middle, _turn(quarters)))[1]
        if value is not None and value > max(best, TURN):
            return Place(cells, own, quarters, False, *pose)
    stretched, stretches = 1.0, {times: _stretches(middle, times) for times in TIMES}
    for times, changes in stretches.items():
        for change in changes:
            value = seen(change)[1]
            if value is not None and value > max(best + BETTER, TURN):
                best, stretched = value, times
    if stretched > 1:
        return Place(cells, own, 0, False, *pose, stretched)
    if own is not None and own < SCENE:
        freely = seen(np.eye(3), SHIFTS)[1] or own
        others = (seen(change, SHIFTS)[1] for change in itertools.chain(*stretches.values()))
        if freely >= SCENE and all(other is None or other <= freely for other in others):
            own = freely
    unseen = cells is None or (own is None and varying_parts(cells.known, cells.outside) >= PARTS)
    return Place(cells, own, 0, unseen, *pose)


def _stretches(box: Box, times: float) -> list[Floats]:
    """The box longer or shorter along one direction."""
    return [_about(box, np.diag(d)) for d in ((times, 1.0), (1 / times, 1.0), (1.0, times), (1.0, 1 / times))]


def _turn(quarters: int) -> Floats:
    """A turn counterclockwise as displayed, y down: where a point lies on a card that is turned clockwise."""
    c, s = ((1, 0), (0, -1), (-1, 0), (0, 1))[quarters]
    return np.array([[c, -s], [s, c]], float)


def _moved(x: float, y: float) -> Floats:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def _about(box: Box, matrix: Floats) -> Floats:
    """A linear map (2,2) round the middle of a box, as a homography."""
    middle = np.array([box.x + box.width / 2, box.y + box.height / 2])
    return np.vstack([np.c_[matrix, middle - matrix @ middle], [0, 0, 1]])


def varying_parts(picture: NDArray[np.uint8], use: NDArray[np.bool_]) -> int:
    """How many parts of the grid vary, of the cells (R,C) that are used."""
    return sum(known.std(0).max() >= FLAT / 255 for _, known, _ in _parts(picture, picture, use))


def _parts(
    known: NDArray[np.uint8], seen: NDArray[np.uint8], use: NDArray[np.bool_]
) -> Iterator[tuple[tuple[int, int], Floats, Floats]]:
    """Each part of the grid of which at least half is used: where it is, and the cells (n,3) in [0,1] of two
    pictures."""
    for row in range(0, use.shape[0], PART):
        for column in range(0, use.shape[1], PART):
            part = np.s_[row : row + PART, column : column + PART]
            if 2 * use[part].sum() >= PART**2:
                yield (row, column), known[part][use[part]] / 255, seen[part][use[part]] / 255


def scene_correlation(looks: Sequence[SceneCells]) -> float | None:
    """How well the scene that is seen round the card correlates with the picture: the median over the parts of the
    grid that vary, so that a stranger in a part of the scene does not count. Of several looks, of which the first
    decides what is seen, each part has its best. None where the picture does not vary, or too few cells are seen."""
    if looks[0].shown.sum() < CELLS:
        return None
    varying: dict[tuple[int, int], float] = {}
    others: dict[tuple[int, int], float] = {}
    for cells in looks:
        for at, known, seen in _parts(cells.known, cells.seen, cells.shown):
            kept = varying if known.std(0).max() >= FLAT / 255 else others
            if cells is looks[0] and (kept is varying or seen.std(0).max() >= 3 * FLAT / 255):
                kept[at] = correlation(known, seen)
            elif at in kept:
                kept[at] = max(kept[at], correlation(known, seen))
    enough = list(varying.values())
    if len(enough) < PARTS:  # a flat picture, and a scene that is not
        enough += others.values()
    return float(np.median(enough)) if len(enough) >= PARTS else None


def stretch(scene: Floats, size: tuple[int, int]) -> tuple[float, float]:
    """The angle of a scene in a photograph, in degrees clockwise, and how much longer it is along one direction than
    along another, in the middle of a picture of `size` (height, width); `scene` maps its pixels."""
    middle = np.array([size[1] / 2, size[0] / 2])
    step = min(size) / 100
    right, down = (project(scene, middle + d) - project(scene, middle - d) for d in ([step, 0.0], [0.0, step]))
    singular = np.linalg.svd(np.stack([right, down], 1), compute_uv=False)
    return math.degrees(math.atan2(right[1], right[0])), float(singular[0] / max(singular[1], 1e-12))

"""Where things lie on the printed card, in millimetres.

A card is what is cut out and put into the scene: the patch, a fiducial at each corner, and a colour chart along the
sides between them. Every photograph of it then tells where the patch is, and what printer, light and camera did to
known colours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.runtime.extras import extra

#: AprilTag 36h11 has so many tags, and a tag so many modules on each side, its black border counted.
TAGS, MODULES = 587, 8
#: So many cards can be told apart, each with four tags of its own.
GROUPS = TAGS // 4
#: The sides of a patch that can be printed, in mm: a larger one has more sheets than anyone glues together.
SIDES = (1.0, 10_000.0)
#: A tag's side as a share of the patch's shorter one, and at least so many millimetres: smaller ones are not found.
SHARE, LEAST = 0.12, 8.0
#: Swatches along each of the four sides.
ALONG = 8
#: What lies between two swatches, as a share of one.
GAP = 0.1


@dataclass(frozen=True)
class Box:
    """A rectangle: its upper left corner from that of the card, y down, and its size, all in mm."""

    x: float
    y: float
    width: float
    height: float

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """Upper left, upper right, lower right, lower left."""
        right, low = self.x + self.width, self.y + self.height
        return (self.x, self.y), (right, self.y), (right, low), (self.x, low)


@dataclass(frozen=True)
class Tag:
    """A fiducial of AprilTag's family 36h11: its number, and the outer edge of its black border."""

    number: int
    box: Box


@dataclass(frozen=True)
class Swatch:
    """A field of one known colour, 8-bit sRGB."""

    colour: tuple[int, int, int]
    box: Box


@dataclass(frozen=True)
class Card:
    """What is cut out: its size, the patch, the fiducials (from the upper left one, clockwise) and the chart."""

    width: float
    height: float
    patch: Box
    tags: tuple[Tag, ...]
    chart: tuple[Swatch, ...]


def card(width: float, height: float, group: int = 0) -> Card:
    """The card of a patch of `width` x `height` mm.

    Args:
        group: which four tags it carries, 0..145: another patch's photograph is then not taken for this one's.

    Raises:
        ValueError: a size beyond `SIDES`, or no such group.
    """
    for name, value in (("width", width), ("height", height)):
        if not SIDES[0] <= value <= SIDES[1]:
            raise ValueError(f"`{name}` of a patch must lie in {SIDES[0]:g}..{SIDES[1]:g} mm; got {value:g}")
    if not 0 <= group < GROUPS:
        raise ValueError(f"`group` must lie in 0..{GROUPS - 1}; got {group}")
    side = max(LEAST, SHARE * min(width, height))
    quiet = side / MODULES  # a module of white on every side, which detectors want
    band = side + 2 * quiet
    patch = Box(band, band, width, height)
    right, low = width + band + quiet, height + band + quiet
    places = ((quiet, quiet), (right, quiet), (right, low), (quiet, low))
    tags = tuple(Tag(4 * group + i, Box(x, y, side, side)) for i, (x, y) in enumerate(places))
    rows = (_row(band, quiet, width, side), _row(band, low, width, side))
    columns = (_row(band, quiet, height, side), _row(band, right, height, side))
    boxes = [*rows[0], *rows[1], *(Box(b.y, b.x, b.height, b.width) for column in columns for b in column)]
    chart = tuple(Swatch(colour, box) for colour, box in zip(COLOURS, boxes, strict=True))
    return Card(width + 2 * band, height + 2 * band, patch, tags, chart)


def _row(start: float, y: float, length: float, height: float) -> list[Box]:
    step = length / ALONG
    return [Box(start + (i + GAP / 2) * step, y, (1 - GAP) * step, height) for i in range(ALONG)]


def _colours() -> tuple[tuple[int, int, int], ...]:
    """The 27 of {0, 128, 255}^3 and five more greys, shuffled by a fixed step so that neighbours differ."""
    cube = list(itertools.product((0, 128, 255), repeat=3))
    greys = [(v, v, v) for v in (43, 85, 170, 191, 213)]
    mixed = cube + greys
    return tuple(mixed[i * 13 % len(mixed)] for i in range(len(mixed)))  # type: ignore[misc]


COLOURS = _colours()


def card_from(said: Mapping[str, Any]) -> Card:
    """The inverse of `dataclasses.asdict`, from what `sheet.json` holds: the file may be a stranger's. Raises
    KeyError, TypeError or ValueError where it is no card."""
    found = Card(
        width=said["width"],
        height=said["height"],
        patch=Box(**said["patch"]),
        tags=tuple(Tag(tag["number"], Box(**tag["box"])) for tag in said["tags"]),
        chart=tuple(Swatch(tuple(each["colour"]), Box(**each["box"])) for each in said["chart"]),
    )
    whole = Box(0, 0, found.width, found.height)
    for box in (whole, found.patch, *(tag.box for tag in found.tags), *(each.box for each in found.chart)):
        values = (box.x, box.y, box.width, box.height)
        if not all(type(value) in (int, float) and 0 <= value <= 2 * SIDES[1] for value in values):
            raise ValueError(f"a box must be four numbers of mm, 0..{2 * SIDES[1]:g}; got {values!r:.80}")
        right, low = box.x + box.width, box.y + box.height
        if not (box.x < right <= found.width + 1e-6 and box.y < low <= found.height + 1e-6):
            raise ValueError(f"a box must lie on the card; got {values}")
    numbers = [tag.number for tag in found.tags]
    if not len(set(numbers)) == len(numbers) == 4 or not all(
        type(each) is int and 0 <= each < TAGS for each in numbers
    ):
        raise ValueError(f"a card must have four different tags of 0..{TAGS - 1}; got {numbers!r:.80}")
    colours = [swatch.colour for swatch in found.chart]
    if not colours or not all(len(c) == 3 and all(type(v) is int and 0 <= v < 256 for v in c) for c in colours):
        raise ValueError("a card must have swatches of three whole numbers, 0..255")
    return found


def modules(number: int) -> NDArray[np.bool_]:
    """Tag `number` of AprilTag 36h11 as (8, 8), True where it is black: 6 x 6 of code in a black border."""
    if not 0 <= number < TAGS:
        raise ValueError(f"`number` of a tag must lie in 0..{TAGS - 1}; got {number}")
    aruco = extra("cv2").aruco
    family = aruco.getPredefinedDictionary(aruco.DICT_APRILTAG_36h11)
    return np.asarray(aruco.generateImageMarker(family, number, MODULES, borderBits=1) == 0)


def black(tag: Tag) -> tuple[Box, ...]:
    """The black parts of a tag as boxes that do not overlap: one for each run of black modules in a row."""
    side = tag.box.width / MODULES
    found = []
    for row, line in enumerate(modules(tag.number)):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(np.int8)))
        for start, stop in edges.reshape(-1, 2).tolist():
            found.append(Box(tag.box.x + start * side, tag.box.y + row * side, (stop - start) * side, side))
    return tuple(found)

"""The printed card: its layout in millimetres, and the shapes that draw it into pixels and into a PDF.

The patch, a tag (AprilTag 36h11) at each corner, a colour chart along the sides between them, and above it a label.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import ImageFont

from attacks.runtime.extras import extra

#: The number of tags in the family, and of modules along a side of a tag, with its black border.
TAGS, MODULES = 587, 8
#: The numbers that a corner's tag can have: corner i has one of i, i + 4, i + 8, ...
CHOICES = TAGS // 4
#: The range of a patch's sides, in mm.
SIDES = (1.0, 10_000.0)
#: A tag's side as a share of the patch's shorter one, and its minimum in mm: smaller ones are not detected.
SHARE, MIN_SIDE = 0.12, 8.0
#: Swatches along each of the four sides.
SWATCHES = 8
#: The gap between two swatches, as a share of one.
GAP = 0.1
#: In modules of a tag: the height of the label above the upper swatches, and the gap between it and them.
LABEL, BELOW = 2.5, 1.0
#: Characters of a label, at most.
LONGEST = 40
#: The arrow of a label, a dot each sign.
ARROW = ("...#...", "..###..", ".#####.", "#######", "..###..", "..###..", "..###..", "..###..", "..###..")


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
    """A tag: its number, and the outer edge of its black border."""

    number: int
    box: Box


@dataclass(frozen=True)
class Swatch:
    """A field of one colour, 8-bit sRGB."""

    colour: tuple[int, int, int]
    box: Box


@dataclass(frozen=True)
class Card:
    """Its size, the patch, the tags (from the upper left one, clockwise), the colour chart, and the words of the
    label with the box that they stand in."""

    width: float
    height: float
    patch: Box
    tags: tuple[Tag, ...]
    chart: tuple[Swatch, ...]
    words: str
    label: Box


def tag_numbers(words: str) -> tuple[int, ...]:
    """The numbers of the four tags of the card with these words: a digest, one of `CHOICES` for each corner, so that
    two cards share two of them by chance once in 3,600."""
    digest = hashlib.sha256(words.encode()).digest()
    return tuple(4 * (int.from_bytes(digest[4 * i : 4 * i + 4], "big") % CHOICES) + i for i in range(4))


def card_words(patch_id: str, arm: str) -> str:
    return f"{patch_id}  {arm}"


def card(width: float, height: float, words: str = "") -> Card:
    """The card of a patch of `width` x `height` mm, whose `words` say which run and arm it is of, and whose tags
    follow from them. Raises ValueError for a size beyond `SIDES`."""
    for name, value in (("width", width), ("height", height)):
        if not SIDES[0] <= value <= SIDES[1]:
            raise ValueError(f"`{name}` of a patch must lie in {SIDES[0]:g}..{SIDES[1]:g} mm; got {value:g}")
    side = max(MIN_SIDE, SHARE * min(width, height))
    quiet = side / MODULES  # detectors need a module of white on every side
    band = side + 2 * quiet
    patch = Box(band, band, width, height)
    right, low = width + band + quiet, height + band + quiet
    corners = ((quiet, quiet), (right, quiet), (right, low), (quiet, low))
    numbers = tag_numbers(words)
    tags = tuple(Tag(number, Box(*at, side, side)) for number, at in zip(numbers, corners, strict=True))
    above = (LABEL + BELOW) * quiet
    rows = (_row(band, quiet + above, width, side - above), _row(band, low, width, side))
    columns = (_row(band, quiet, height, side), _row(band, right, height, side))
    boxes = [*rows[0], *rows[1], *(Box(b.y, b.x, b.height, b.width) for column in columns for b in column)]
    chart = tuple(Swatch(colour, box) for colour, box in zip(COLOURS, boxes, strict=True))
    label = Box(band, quiet, width, LABEL * quiet)
    return Card(width + 2 * band, height + 2 * band, patch, tags, chart, words, label)


def _row(start: float, y: float, length: float, height: float) -> list[Box]:
    step = length / SWATCHES
    return [Box(start + (i + GAP / 2) * step, y, (1 - GAP) * step, height) for i in range(SWATCHES)]


_LEVELS = (0, 128, 255)
_PALETTE = [*itertools.product(_LEVELS, _LEVELS, _LEVELS), *((v, v, v) for v in (43, 85, 170, 191, 213))]
#: The chart: a cube of 27 colours and five more greys, shuffled by a fixed step so that neighbours differ.
COLOURS = tuple(_PALETTE[i * 13 % len(_PALETTE)] for i in range(len(_PALETTE)))


def parse_card(record: Mapping[str, Any]) -> Card:
    """The inverse of `dataclasses.asdict`, for the untrusted `sheet.json`. Raises KeyError, TypeError or ValueError
    for an invalid record."""
    result = Card(
        width=record["width"],
        height=record["height"],
        patch=Box(**record["patch"]),
        tags=tuple(Tag(tag["number"], Box(**tag["box"])) for tag in record["tags"]),
        chart=tuple(Swatch(tuple(entry["colour"]), Box(**entry["box"])) for entry in record["chart"]),
        words=record["words"],
        label=Box(**record["label"]),
    )
    if not isinstance(result.words, str) or not (result.words.isascii() and len(result.words) <= LONGEST):
        raise ValueError(f"the words of a card must be at most {LONGEST} ASCII characters; got {result.words!r:.80}")
    full = Box(0, 0, result.width, result.height)
    on_it = (result.patch, result.label, *(tag.box for tag in result.tags), *(entry.box for entry in result.chart))
    for box in (full, *on_it):
        values = (box.x, box.y, box.width, box.height)
        if not all(type(value) in (int, float) and 0 <= value <= 2 * SIDES[1] for value in values):
            raise ValueError(f"a box must be four numbers of mm, 0..{2 * SIDES[1]:g}; got {values!r:.80}")
        right, low = box.x + box.width, box.y + box.height
        if not (box.x < right <= result.width + 1e-6 and box.y < low <= result.height + 1e-6):
            raise ValueError(f"a box must lie on the card; got {values}")
    numbers = [tag.number for tag in result.tags if type(tag.number) is int and 0 <= tag.number < TAGS]
    if not len(set(numbers)) == len(result.tags) == 4:
        raise ValueError(f"a card must have four different tags of 0..{TAGS - 1}; got {result.tags!r:.80}")
    colours = [swatch.colour for swatch in result.chart]
    if not colours or not all(len(c) == 3 and all(type(v) is int and 0 <= v < 256 for v in c) for c in colours):
        raise ValueError("a card must have swatches of three whole numbers, 0..255")
    return result


def modules(number: int) -> NDArray[np.bool_]:
    """Tag `number` of AprilTag 36h11 as (8, 8), True where it is black: 6 x 6 of code in a black border."""
    aruco = extra("cv2").aruco
    family = aruco.getPredefinedDictionary(aruco.DICT_APRILTAG_36h11)
    return np.asarray(aruco.generateImageMarker(family, number, MODULES, borderBits=1) == 0)


Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Fill:
    """Boxes of one 8-bit sRGB colour, drawn as one shape: no seam where two of them touch."""

    boxes: tuple[Box, ...]
    colour: Colour = (0, 0, 0)


@dataclass(frozen=True)
class Text:
    """One line of text that starts at, or is centred on, the point (x, y) of its baseline; `size` of its em in mm."""

    text: str
    x: float
    y: float
    size: float
    anchor: Literal["start", "middle"] = "start"
    colour: Colour = (0, 0, 0)
    bold: bool = False


def card_fills(card: Card) -> tuple[Fill, ...]:
    """The shapes of a card without its patch: tags, chart and label. The label's letters are shapes too, so that the
    attack sees what is printed."""
    tags = (Fill(black(tag)) for tag in card.tags)
    return *tags, *(Fill((swatch.box,), swatch.colour) for swatch in card.chart), Fill(letters(card))


def letters(card: Card) -> tuple[Box, ...]:
    """The arrow and the words of a card, as large as its label, as boxes that do not overlap: runs of dots."""
    dots = _dots(f"up  {card.words}")
    size = min(card.label.height / dots.shape[0], card.label.width / dots.shape[1])
    return _runs(dots, card.label.x, card.label.y, size)


def _dots(words: str) -> NDArray[np.bool_]:
    """An arrow and words in Pillow's own bitmap font, (h,w), True where it is black."""
    mask = ImageFont.load_default_imagefont().getmask(words)
    text = np.array(mask).reshape(mask.size[::-1])[2:] > 0  # no letter reaches the first two rows
    arrow = np.array([[sign == "#" for sign in row] for row in ARROW])
    gap = np.zeros((len(ARROW), 5), bool)
    return np.hstack([arrow, gap, text])


def black(tag: Tag) -> tuple[Box, ...]:
    """The black parts of a tag as boxes that do not overlap: one for each run of black modules in a row."""
    return _runs(modules(tag.number), tag.box.x, tag.box.y, tag.box.width / MODULES)


def _runs(dots: NDArray[np.bool_], x: float, y: float, size: float) -> tuple[Box, ...]:
    """The black dots (h,w), each `size` mm, as one box for each run of them in a row."""
    boxes = []
    for row, line in enumerate(dots):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(np.int8)))
        for start, stop in edges.reshape(-1, 2).tolist():
            boxes.append(Box(x + start * size, y + row * size, (stop - start) * size, size))
    return tuple(boxes)

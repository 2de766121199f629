"""Which part of a card lies where on which sheet of paper.

A card that fits is centred on one page, upright or across. A larger one is cut into tiles of one size that overlap;
they are placed on whole pixels of the print, so that a page in pixels is a copy of the card's pixels.

The card is white at its edge, and so is the bleed round it: there is nothing to print there, but the marks keep out
of it, so that a cut beside the line meets white and no ink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attacks.perturbations.patch.card import Box, Card

#: Width and height in mm.
PAPERS = {"a4": (210.0, 297.0), "letter": (215.9, 279.4)}
#: What printers leave blank at the edges of a sheet, in mm.
MARGIN = 5.0
#: Outside the cut line: so many mm without any mark, then marks of this length.
BLEED, MARK = 3.0, 4.0
#: The height of the ruler and the text below the card.
FOOT = 20.0
#: What two tiles both show, for gluing.
OVERLAP = 10.0
INCH = 25.4


@dataclass(frozen=True)
class Page:
    """One sheet: the part of the card on it, and where that part's upper left corner lies on the sheet, in mm."""

    row: int
    column: int
    tile: Box
    left: float
    top: float

    def on_page(self, x: float, y: float) -> tuple[float, float]:
        """A point of the card, from the upper left corner of the sheet."""
        return self.left + x - self.tile.x, self.top + y - self.tile.y


@dataclass(frozen=True)
class Plan:
    """The sheets of a card, row by row: `width` x `height` mm each, as they are turned."""

    paper: str
    width: float
    height: float
    rows: int
    columns: int
    pages: tuple[Page, ...]

    def page(self, row: int, column: int) -> tuple[int, Page]:
        """The sheet in that place of the whole, its number from 1 before it."""
        index = row * self.columns + column
        return index + 1, self.pages[index]


def plan(card: Card, paper: str, dpi: int) -> Plan:
    """The fewest sheets that hold the card, upright where that makes no difference.

    Raises:
        ValueError: unknown paper, or a resolution that is not positive.
    """
    if paper not in PAPERS:
        raise ValueError(f"`paper` must be one of {', '.join(PAPERS)}; got {paper!r}")
    if dpi < 1:
        raise ValueError(f"`dpi` must be at least 1; got {dpi}")
    short, long = PAPERS[paper]
    return min((_plan(card, paper, size, dpi) for size in ((short, long), (long, short))), key=lambda p: len(p.pages))


def _plan(card: Card, paper: str, size: tuple[float, float], dpi: int) -> Plan:
    around = 2 * (MARGIN + BLEED + MARK)
    pixel = INCH / dpi
    columns = _split(card.width, size[0] - around, pixel)
    rows = _split(card.height, size[1] - around - FOOT, pixel)
    pages = []
    for row, (top, high) in enumerate(rows):
        for column, (left, wide) in enumerate(columns):
            tile = Box(left * pixel, top * pixel, wide * pixel, high * pixel)
            x = round((size[0] / pixel - wide) / 2) * pixel
            y = round(((size[1] - FOOT) / pixel - high) / 2) * pixel
            pages.append(Page(row, column, tile, x, y))
    return Plan(paper, *size, len(rows), len(columns), tuple(pages))


def _split(length: float, room: float, pixel: float) -> list[tuple[int, int]]:
    """First pixel and length of the fewest equal parts of a length that fit into a room and overlap, in pixels."""
    whole, most, overlap = round(length / pixel), math.floor(room / pixel), round(OVERLAP / pixel)
    if whole <= most:
        return [(0, whole)]
    parts = math.ceil((whole - overlap) / (most - overlap))
    part = math.ceil((whole + (parts - 1) * overlap) / parts)
    return [(round(i * (whole - part) / (parts - 1)), part) for i in range(parts)]

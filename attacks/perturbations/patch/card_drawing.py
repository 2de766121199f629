"""What stands on paper, in millimetres: the same list is drawn into a PDF and into pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from attacks.perturbations.patch.card import Box, Card, black

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Fill:
    """Boxes of one colour, drawn as one shape: no seam shows where two of them touch."""

    boxes: tuple[Box, ...]
    colour: Colour = (0, 0, 0)


@dataclass(frozen=True)
class Words:
    """One line of text from the point (x, y) on its baseline, or round it, or up to it; `size` of its em in mm."""

    text: str
    x: float
    y: float
    size: float
    anchor: Literal["start", "middle", "end"] = "start"
    colour: Colour = (0, 0, 0)
    bold: bool = False


def printed(card: Card) -> tuple[Fill, ...]:
    """All of a card but its patch: the fiducials and the chart."""
    return (
        *(Fill(black(tag)) for tag in card.tags),
        *(Fill((swatch.box,), swatch.colour) for swatch in card.chart),
    )


def shifted(fill: Fill, x: float, y: float) -> Fill:
    """The same, so many mm further right and down."""
    return replace(fill, boxes=tuple(replace(box, x=box.x + x, y=box.y + y) for box in fill.boxes))

"""The keys of what is printed: the patch, the printer, the scenes. No torch here, as in `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class Patch:
    name: str = "patch"
    size: list[int] = MISSING  # height and width of the texture
    # Its corners (x, y), as shares of the picture's width and height, or several such quads. data=scenes has its own.
    quad: Any = MISSING
    # Anywhere instead, in every view anew: ranges of scale, degrees, x and y (see transforms.Placement).
    place: dict[str, Any] = field(default_factory=dict)
    start: str = MISSING  # grey, noise, or the path of a picture
    shape: Any = MISSING  # rectangle, ellipse, circle, a polygon [[x, y], ...] in shares, or the path of a mask
    grey: bool = False  # the same value in all channels
    gamut: Any = None  # the colours it may have: [low, high], generic, or the path of a profile or LUT
    width_mm: float | None = None  # how wide it will be printed
    card: bool = False  # seen as it is printed: with the paper, fiducials and colour chart round it


@dataclass
class Printer:
    name: str = MISSING
    colour: str = "ideal"  # generic, or the path of an ICC profile (.icc, .icm), a LUT (.cube) or a fit (.json)
    intent: str = "relative"  # of a profile: relative, perceptual, absolute
    stages: dict[str, Any] = field(default_factory=dict)  # what happens to the sheet, in order, as of transforms


@dataclass
class NonPrintability:
    name: str = "nps"
    weight: float = MISSING
    palette: str = "generic"  # or the path of a text file: r, g, b of a colour a line, 0..255


@dataclass
class Scenes:
    name: str = "scenes"
    path: str = MISSING  # a .csv or .json of photographs, and where the patch lies in them; bundled: some that ship
    gallery: str | None = None  # what a view can be taken for; null for the bundled tiles
    size: int = MISSING
    count: int | None = None
    unreadable: str = "refuse"  # or skip: what to do about photographs that cannot be read
    cache: str | None = None


PRINTERS: dict[str, type] = dict.fromkeys(("none", "generic", "paper"), Printer)

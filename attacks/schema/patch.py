"""The keys of what is printed: the patch, the printer, the scenes. No torch."""

from dataclasses import dataclass
from typing import Any

from attacks.schema.options import MISSING, option

SPLIT = (
    "column of the table that says fit or judge, for a perturbation that pictures share; null: half of the clusters, "
    "if they are at least five, are judged"
)


@dataclass
class PatchConfig:
    """One texture for all pictures, laid into each of them."""

    name: str = "patch"
    size: list[int] = option([48, 48], "height and width of the texture in texels", range="1 to 16384 each")
    quad: Any = option(
        [[0.3, 0.3], [0.7, 0.3], [0.7, 0.7], [0.3, 0.7]],
        "its corners [x, y] as shares of the picture, or several such quads; data=scenes has its own",
    )
    place: dict[str, Any] = option(
        {}, "anywhere instead, in each view anew: {scale: [0.3, 0.5], degrees: 20, x: [0, 1], y: [0, 1]}"
    )
    start_from: str = option("noise", "the first texture: noise, grey, or the path of a picture")
    shape: Any = option(
        "rectangle", "rectangle, ellipse, circle, a polygon [[x, y], ...] in shares, or the path of a mask"
    )
    grey: bool = option(False, "the same value in all channels")
    gamut: Any = option(
        None, "the colours it may have: [low, high], generic, or the path of an ICC profile or a .cube; null: all"
    )
    width_mm: float | None = option(None, "how wide it will be printed, in mm", range="1..10000")
    card: bool = option(False, "seen as it is printed, with paper, fiducials and colour chart; needs width_mm")


@dataclass
class PrinterConfig:
    """What printing does to a patch; for perturbation=patch only."""

    name: str = MISSING
    colour: str = option(
        "ideal", "ideal, generic, family, or the path of an ICC profile (.icc, .icm), a LUT (.cube) or a fit (.json)"
    )
    intent: str = option("relative", "of a profile: relative, perceptual, absolute")
    stages: dict[str, Any] = option({}, "stage: its arguments, in order; what happens to the sheet")


@dataclass
class ScenesConfig:
    """Photographs in which a patch has its places (docs/patch_in_a_scene.md has the format).

    Use: a patch that lies on a surface of its own in each photograph.
    Not: pictures without places: folder.
    Oracle: tests/data/test_scenes.py.
    With: config=patch data.path=bundled
    """

    name: str = "scenes"
    path: str = option(MISSING, "a .csv or .json of photographs and places; bundled: a few that ship")
    gallery: str | None = option(None, "what a view can be taken for, as of folder; null: all of data.path")
    size: int = option(224, "shorter side in pixels; the central square is used", low=8, high=8192)
    count: int | None = option(None, "photographs to attack; null: every one")
    split: str | None = option(None, SPLIT)
    unreadable: str = option("refuse", "or skip: leave out photographs that cannot be read, with a note")
    cache: str | None = option(None, "a folder that keeps the gallery's embeddings and index for other runs")

"""From a configuration's `printer` to the stages of a printed sheet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attacks.experiment.build.make import make
from attacks.experiment.build.pipeline import stages as made_stages
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.schema.patch import PatchConfig, PrinterConfig
from attacks.schema.suggestions import closest
from transforms import Compose, OnLayers, Placement, Stage
from transforms.colour.lut import ColourMap

#: What happens to a print by itself: the printer's errors of colour and sharpness, and the light on the sheet.
PRINT = (
    "brightness",
    "contrast",
    "gain",
    "channel_gain",
    "gamma",
    "saturation",
    "hue",
    "exposure",
    "white_balance",
    "shading",
    "shadow",
    "gaussian_blur",
)
#: How the sheet bends; after the above.
PAPER = ("cylinder", "thin_plate")


def printed(node: PrinterConfig) -> list[Stage]:
    """What a printer does to a texture and its sheet, as a configuration names it: see `sheet`."""
    return make(sheet, node, "printer")


def sheet(colour: str, intent: str, stages: dict[str, Any]) -> list[Stage]:
    """What a printer does to the colours of a texture, and what happens to the sheet: its map of colours first, then
    the stages in their order.

    Raises:
        ValueError, FileNotFoundError: in one line; also for a stage that is not of a sheet, and for one that changes
            colours after one that bends.
    """
    made = made_stages(stages, "printer.stages")  # first says what is no stage at all
    bent = ""
    for label in stages:
        name = re.sub(r"\d+$", "", str(label))
        if name in PAPER:
            bent = str(label)
        elif name in PRINT and bent:
            raise ValueError(f"`printer.stages.{label}` must stand before {bent}: a sheet is printed, then it bends")
        elif name not in PRINT:
            known = ", ".join((*PRINT, *PAPER))
            raise ValueError(
                f"`printer.stages.{label}` is of a camera, not of a sheet (put it into transforms.stages); a sheet "
                f"has {known}"
            )
    lut = read_colour_map(colour, intent)
    return made if lut is None else [ColourMap(lut, colour), *made]


#: Keys of `perturbation.place`.
PLACE = ("scale", "degrees", "x", "y")


def laid(transforms: Compose, printer: PrinterConfig, node: object) -> Compose:
    """The pipeline with what the printer does to the patch, and where it lies, before the camera. Raises ValueError
    for a printer without a patch to print."""
    stages = printed(printer)
    if not isinstance(node, PatchConfig):
        if stages:
            own = f"printer={printer.name}" if printer.name != "none" else "printer.colour"
            raise ValueError(
                f"`{own}` is of what is printed, perturbation=patch; with another one use printer=none alone"
            )
        return transforms
    place = anywhere(node)
    if not stages and place is None:
        return transforms
    return replace(transforms, stages=(OnLayers(stages, place), *transforms.stages))


def anywhere(node: PatchConfig) -> Placement | None:
    """The ranges in which a patch lies, or None for one that stays at its quad. Raises ValueError in one line."""
    return make(placed, node, "perturbation")


def placed(size: Sequence[int], place: dict[str, Any]) -> Placement | None:
    """The ranges in which a texture of a size lies, or None where no key of `PLACE` is given."""
    if not place or len(size) != 2 or min(size) < 1:  # such a size is refused with the texture
        return None
    for key in place:
        if key not in PLACE:
            raise ValueError(
                f"unknown key `perturbation.place.{key}`: known here are {', '.join(PLACE)}{closest(key, PLACE)}"
            )
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in place.items()}
    try:
        return Placement(**given, aspect=size[1] / size[0])
    except (TypeError, ValueError) as error:
        raise ValueError(f"`perturbation.place`: {error}") from None


def fixed(transforms: Compose) -> Compose:
    """What is left of a pipeline for an attack that ignores the views: only what happens to every print alike. A
    patch is sampled as it is in the views, so that on CUDA the same seed gives the same bits here too."""
    first = transforms.stages[0] if transforms.stages else None
    alike = [stage for stage in first.stages if not stage.dims] if isinstance(first, OnLayers) else []
    return replace(transforms, stages=[OnLayers(alike)] if alike else [])

"""From a configuration's `printer` to the stages of a printed sheet."""

from __future__ import annotations

import re

from attacks.schema import patch as choices
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.experiment.build.pipeline import stages
from transforms import Stage
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


def printed(node: choices.Printer) -> list[Stage]:
    """What a printer does to the colours of a texture, and what happens to the sheet: its map of colours first, then
    the stages in their order.

    Raises:
        ValueError, FileNotFoundError: in one line; also for a stage that is not of a sheet, and for one that changes
            colours after one that bends.
    """
    made = stages(node.stages, "printer.stages")  # first says what is no stage at all
    bent = ""
    for label in node.stages:
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
    lut = read_colour_map(node.colour, node.intent)
    return made if lut is None else [ColourMap(lut, node.colour), *made]

"""The configured printer: the stages of a printed sheet, and its placement."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.perturbations.patch.inks import FAMILY, Inks
from attacks.perturbations.patch.physical_patch import MEDIA
from attacks.schema.groups import PatchConfig, PrinterConfig
from attacks.schema.suggestions import closest
from attacks.study.make import make
from attacks.study.pipeline import stage_name
from attacks.study.pipeline import stages as made_stages
from transforms import Compose, Stage
from transforms.colour.lut import ColourMap
from transforms.geometry import Placement
from transforms.wrappers import OnLayers

#: Stages of the print itself: the printer's errors in colour and sharpness, and the light on the sheet.
PRINT: tuple[str, ...] = ("brightness", "contrast", "gain", "channel_gain", "gamma", "saturation", "hue", "exposure")
PRINT += ("white_balance", "shading", "shadow", "gaussian_blur", "moire", "reflection")
#: Stages that bend and stretch the sheet; they follow those of `PRINT`.
PAPER = ("cylinder", "perspective", "thin_plate")


def sheet_views(colour: str, intent: str, stages: dict[str, Any], medium: str = MEDIA[0]) -> list[Stage]:
    """The printer's colours, unless they are ideal, then the stages of the sheet in their order, whatever the medium.
    Raises ValueError or FileNotFoundError, also for a camera's stage and one of `PRINT` after one of `PAPER`."""
    if medium not in MEDIA:
        raise ValueError(f"`medium` must be one of {', '.join(MEDIA)}; got {medium!r}{closest(medium, MEDIA)}")
    parts = made_stages(stages, "printer.stages")  # refuses an unknown stage
    paper_label = ""
    for label in stages:
        name = stage_name(str(label))
        if name in PAPER:
            paper_label = str(label)
        elif name in PRINT and paper_label:
            raise ValueError(
                f"`printer.stages.{label}` must stand before {paper_label}: a sheet is printed, then it bends"
            )
        elif name not in PRINT:
            choices = ", ".join((*PRINT, *PAPER))
            raise ValueError(
                f"`printer.stages.{label}` is of a camera, not of a sheet (put it into transforms.stages); a sheet "
                f"has {choices}"
            )
    if colour == FAMILY:
        return [Inks(), *parts]
    lut = read_colour_map(colour, intent)
    return parts if lut is None else [ColourMap(lut, colour), *parts]


#: Keys of `perturbation.place`.
PLACE = ("scale", "degrees", "x", "y")


def lay_on_sheet(transforms: Compose, printer: PrinterConfig, node: object) -> Compose:
    """The pipeline with printer and patch before the camera. Raises ValueError for a printer without a patch."""
    stages = make(sheet_views, printer, "printer")
    if not isinstance(node, PatchConfig):
        if stages:
            key_text = f"printer={printer.name}" if printer.name != "none" else "printer.colour"
            raise ValueError(
                f"`{key_text}` is of what is printed, perturbation=patch; with another one use printer=none alone"
            )
        return transforms
    place = make(place_of, node, "perturbation")
    if not stages and place is None:
        return transforms
    return replace(transforms, stages=(OnLayers(stages, place), *transforms.stages))


def place_of(size: Sequence[int], place: dict[str, Any]) -> Placement | None:
    """The ranges of a random placement of a texture (height, width); None without any key. Raises ValueError."""
    if not place or len(size) != 2 or min(size) < 1:  # a wrong size is refused with the texture
        return None
    for key in place:
        if key not in PLACE:
            raise ValueError(
                f"unknown key `perturbation.place.{key}`: known here are {', '.join(PLACE)}{closest(key, PLACE)}"
            )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in place.items()}
    try:
        return Placement(**values, aspect=size[1] / size[0])
    except (TypeError, ValueError) as error:
        raise ValueError(f"`perturbation.place`: {error}") from None


def reprint(transforms: Compose, lut: Tensor) -> Compose:
    """The pipeline with the colours of another printer, a table; all else stays, the light on the sheet too."""
    first = transforms.stages[0] if transforms.stages else None
    sheet, rest = (first, transforms.stages[1:]) if isinstance(first, OnLayers) else (OnLayers(), transforms.stages)
    others = [stage for stage in sheet.stages if not isinstance(stage, ColourMap | Inks)]
    return replace(transforms, stages=(replace(sheet, stages=(ColourMap(lut, "measured"), *others)), *rest))


def fixed(transforms: Compose) -> Compose:
    """The pipeline of an attack without views: only the printer's stages without coordinates. The other settings
    stay, so that a patch is sampled as in the views, and with the same bits on CUDA."""
    first = transforms.stages[0] if transforms.stages else None
    constant = [stage for stage in first.stages if not stage.dims] if isinstance(first, OnLayers) else []
    return replace(transforms, stages=[OnLayers(constant)] if constant else [])

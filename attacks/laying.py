"""The way from a texture to the scene, as the first stage of a pipeline: print it, bend it, lay it somewhere."""

from __future__ import annotations

from dataclasses import replace

from attacks.experiment.build.printer import printed
from attacks.schema import patch as choices
from transforms import Compose, OnLayers, Place

#: Keys of `perturbation.place`.
PLACE = ("scale", "degrees", "x", "y")


def laid(transforms: Compose, printer: choices.Printer, node: object) -> Compose:
    """The pipeline with what the printer does to the patch, and where it lies, before the camera. Raises ValueError
    for a printer without a patch to print."""
    stages = printed(printer)
    if not isinstance(node, choices.Patch):
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


def anywhere(node: choices.Patch) -> Place | None:
    """The ranges in which a patch lies, or None for one that stays at its quad. Raises ValueError in one line."""
    if not node.place or len(node.size) != 2 or min(node.size) < 1:  # such a size is refused with the texture
        return None
    for key in node.place:
        if key not in PLACE:
            raise ValueError(f"unknown key `perturbation.place.{key}`: known here are {', '.join(PLACE)}")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in node.place.items()}
    height, width = node.size
    try:
        return Place(**given, aspect=width / height)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`perturbation.place`: {error}") from None


def fixed(transforms: Compose) -> Compose:
    """What is left of a pipeline for an attack that ignores the views: only what happens to every print alike. A
    patch is sampled as it is in the views, so that on CUDA the same seed gives the same bits here too."""
    first = transforms.stages[0] if transforms.stages else None
    alike = [stage for stage in first.stages if not stage.dims] if isinstance(first, OnLayers) else []
    return replace(transforms, stages=[OnLayers(alike)] if alike else [])

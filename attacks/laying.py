"""The way from a texture to the scene, as the first stage of a pipeline: print it, bend it, lay it somewhere."""

from __future__ import annotations

from dataclasses import replace

from attacks import choices_physical as choices
from attacks.printers import printed
from transforms import Compose, OnLayers, Place

#: Keys of `perturbation.place`.
PLACE = ("scale", "degrees", "x", "y")


def laid(transforms: Compose, printer: choices.Printer, node: object) -> Compose:
    """The pipeline with what the printer does to the patch, and where it lies, before the camera. Raises ValueError
    for a printer without a patch to print."""
    stages = printed(printer)
    if not isinstance(node, choices.Patch):
        if stages:
            raise ValueError(f"`printer={printer.name}` prints a patch; with another perturbation use printer=none")
        return transforms
    place = anywhere(node)
    if not stages and place is None:
        return transforms
    return replace(transforms, stages=(OnLayers(stages, place), *transforms.stages))


def anywhere(node: choices.Patch) -> Place | None:
    """The ranges in which a patch lies, or None for one that stays at its quad. Raises ValueError in one line."""
    if not node.place:
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
    """What is left of a pipeline for an attack that ignores the views: only what happens to every print alike."""
    first = transforms.stages[0] if transforms.stages else None
    if not isinstance(first, OnLayers):
        return Compose()
    alike = [stage for stage in first.stages if not stage.dims]
    return Compose([OnLayers(alike)] if alike else [])

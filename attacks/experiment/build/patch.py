"""A patch from a configuration."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.schema import patch as choices
from attacks.perturbations.patch.gamut import gamut
from attacks.data.images import load_image
from attacks.experiment.build.printer import anywhere
from attacks.perturbations.patch.patch import Patch
from attacks.perturbations.patch.card import GROUPS, card
from attacks.perturbations.patch.card_raster import surround
from attacks.perturbations.patch.placement import Placements
from attacks.perturbations.patch.card_layer import Surround
from transforms import resize


def patch(node: choices.Patch, images: Tensor, placements: Placements | None = None) -> Patch:
    """The patch that a configuration names, for pictures (N,3,H,W). Raises ValueError or FileNotFoundError."""
    size = texture_size(node)
    place = anywhere(node)
    if place is not None and placements is not None:
        raise ValueError("`perturbation.place` lays the patch anywhere, and the scenes have places for it: drop one")
    where: Any = placements if placements is not None else _corners(node.quad)
    if place is not None:
        where = place.quad((images.shape[2], images.shape[3]))
    if node.width_mm is not None and not 0 < node.width_mm < math.inf:
        raise ValueError(f"`perturbation.width_mm` must be a number of millimetres above 0; got {node.width_mm:g}")
    colours, sheet = gamut(node.gamut), _card(node, size) if node.card else None
    try:
        return Patch(size, where, _start(node.start, size), _shape(node.shape), node.grey, colours, sheet)
    except (ValueError, TypeError) as error:
        raise ValueError(_named(str(error))) from None


def tags(node: choices.Patch) -> int | None:
    """Which fiducials its card carries, if it is seen with its card: the run must know them before it has a texture
    that they could be taken from."""
    return zlib.crc32(repr(node).encode()) % GROUPS if node.card else None


def _card(node: choices.Patch, size: tuple[int, int]) -> Surround:
    """The printed card round the texture. Raises ValueError without a width in millimetres."""
    if node.width_mm is None:
        raise ValueError("`perturbation.card` needs perturbation.width_mm: how wide the patch will be printed")
    made = card(node.width_mm, node.width_mm * size[0] / size[1], tags(node) or 0)
    picture, top, left, times = surround(made, size)
    return Surround(torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255, top, left, times)


def texture_size(node: choices.Patch) -> tuple[int, int]:
    """(height, width) of the texture. Raises ValueError."""
    size = tuple(node.size)
    if len(size) != 2 or not all(type(side) is int and 1 <= side <= LONGEST for side in size):
        raise ValueError(
            f"`perturbation.size` must be [height, width] in whole texels, each 1 to {LONGEST}; got {node.size}"
        )
    return size


#: The most texels of a side; a print of a metre at 300 dpi has 11 811 dots.
LONGEST = 2**14


def _corners(quad: Any) -> Any:
    try:
        nested = [[tuple(map(float, corner)) for corner in one] for one in (quad if _deep(quad) else [quad])]
        if not nested or any(len(one) != 4 or any(len(corner) != 2 for corner in one) for one in nested):
            raise ValueError
    except (TypeError, ValueError, LookupError):
        raise ValueError(f"`perturbation.quad` must be four corners [x, y], or several quads; got {quad!r}") from None
    return nested if len(nested) > 1 else nested[0]


def _deep(quad: Any) -> bool:
    """Whether it is a list of quads."""
    return isinstance(quad[0][0], list | tuple)


def _start(start: str, size: tuple[int, int]) -> Any:
    """A word as it is; a picture as large as the texture."""
    if start in ("grey", "noise"):
        return start
    if not Path(start).is_file():
        raise FileNotFoundError(f"`perturbation.start` must be grey, noise, or a picture; there is none at {start!r}")
    return resize(load_image(start)[0][None], size, "pil_bicubic").clamp(0, 1)


def _shape(shape: Any) -> Any:
    try:
        return [tuple(map(float, corner)) for corner in shape] if isinstance(shape, list) else shape
    except (TypeError, ValueError):
        return shape  # refused where any other outline is


def _named(message: str) -> str:
    """With the key of the configuration, where the message has the argument's."""
    for key in ("size", "quad", "shape", "start_from"):
        if message.startswith(f"`{key}`"):
            return message.replace(f"`{key}`", f"`perturbation.{key.removesuffix('_from')}`", 1)
    return message

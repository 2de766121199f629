"""What a patch run is about, for its readers: how large the patch is, where it lies, and what prints it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attacks.experiment.build.patch import tags
from attacks.experiment.build.printer import PLACE, anywhere
from attacks.perturbations.patch.patch import Patch
from attacks.schema.patch import PatchConfig, PrinterConfig
from transforms import Compose, OnLayers, Place
from transforms.scene import Scene

#: Where a place in every view anew is looked at: its smallest, middle and largest.
SIZES = (0.0, 0.5, 1.0)


def facts(
    node: PatchConfig, printer: PrinterConfig, patch: Patch, size: tuple[int, int], target: str | None
) -> dict[str, Any]:
    """The block `threat.patch` of metrics.json, for pictures of `size` (height, width).

    `area` is the share of a picture that the patch covers: its mean over the pictures (where it lies anywhere: at the
    middle of its sizes), the least and the most. `sheet_area` is that of the card with it.
    """
    place = anywhere(node)
    bare = replace(patch, surround=None)
    return {
        "texture": list(patch.size),
        "start": node.start_from,
        "shape": node.shape,
        "grey": node.grey,
        "gamut": node.gamut,
        "places": len(patch.places),
        "anywhere": None if place is None else _ranges(place),
        "area": _area(bare, place, size),
        "sheet_area": None if patch.surround is None else _area(patch, place, size),
        "width_mm": node.width_mm,
        "card": node.card,
        "tags": tags(node),
        "printer": {
            "name": printer.name,
            "colour": printer.colour,
            "intent": printer.intent,
            "stages": printer.stages,
        },
        "target": target,
    }


def _area(patch: Patch, place: Place | None, size: tuple[int, int]) -> dict[str, float]:
    """What of each picture is hidden: a white layer without edges of its own over black pictures."""
    black = torch.zeros(len(patch.places.quads), 3, *size)
    sheet = patch.surround
    if sheet is not None:
        patch = replace(patch, surround=replace(sheet, picture=torch.ones_like(sheet.picture)))
    scene = patch.scene(black, torch.ones(1, 3, *patch.size))
    views, u = Compose(), torch.zeros(len(black), 0)
    if place is not None:
        views, u = Compose([OnLayers((), place)]), torch.full((len(SIZES), 4), 0.5)
        u[:, 0] = torch.tensor(SIZES)
        scene = Scene(scene.layers, scene.size)
    shares = views(scene, u)[:, 0].mean((1, 2)).double()
    mean = shares[1] if place is not None else shares.mean()
    return {"mean": float(mean), "low": float(shares.min()), "high": float(shares.max())}


def _ranges(place: Place) -> dict[str, list[float]]:
    """Those that were left out too."""
    ends = place.values(torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64))
    return dict(zip(PLACE, ends.T.tolist(), strict=True))

"""The facts of a patch run for its report: the size of the patch, its placement, and its printer."""

from dataclasses import asdict
from typing import Any

import torch

from attacks.eot.protocols import Perturbation
from attacks.schema.groups import PatchConfig, PrinterConfig
from attacks.study.printer import PLACE, anywhere
from transforms import Compose
from transforms.geometry import Placement
from transforms.scene import Scene
from transforms.wrappers import OnLayers

#: Coordinates at which the size of a random placement is evaluated: smallest, middle and largest.
SIZES = (0.0, 0.5, 1.0)


def facts(
    node: PatchConfig, printer: PrinterConfig, perturbation: Perturbation, size: tuple[int, int], target: str | None
) -> dict[str, Any]:
    """The block `threat.patch` of metrics.json, for pictures of `size` (height, width). The areas are shares of a
    picture: the mean, least and most over the pictures. `sheet_area` includes the card."""
    place = anywhere(node)
    return {
        "texture": list(perturbation.texture_size or ()),
        "start": node.start_from,
        "shape": node.shape,
        "grey": node.grey,
        "gamut": node.gamut,
        "places": max(map(len, perturbation.corners())),
        "anywhere": None if place is None else _ranges(place),
        "area": _area(perturbation.footprint(size), place),
        "sheet_area": _area(perturbation.footprint(size, sheet=True), place),
        "width_mm": node.width_mm,
        "card": node.card,
        "printer": asdict(printer),
        "target": target,
    }


def _area(footprint: Scene | None, place: Placement | None) -> dict[str, float] | None:
    """The share of each picture under a white `footprint`; for a `place` at its smallest, middle and largest."""
    if footprint is None:
        return None
    views, u = Compose(), torch.zeros(len(footprint.layers[0].pixels), 0)
    if place is not None:
        views, u = Compose([OnLayers((), place)]), torch.full((len(SIZES), 4), 0.5)
        u[:, 0] = torch.tensor(SIZES)
    shares = views(footprint, u)[:, 0].mean((1, 2)).double()
    mean = shares[1] if place is not None else shares.mean()
    return {"mean": float(mean), "low": float(shares.min()), "high": float(shares.max())}


def _ranges(place: Placement) -> dict[str, list[float]]:
    """The ranges of all keys, also of those left at their defaults."""
    ends = place.values(torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64))
    return dict(zip(PLACE, ends.T.tolist(), strict=True))

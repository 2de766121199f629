"""Photographs in which a patch has its places, and these places in the squares that are attacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.data.images import load_image
from attacks.data.listing import Entry
from attacks.data.pictures import Shelf, read_entries, squared
from attacks.data.scene_geometry import Print, checked, corners_of, covered, mask_of, seen
from attacks.data.scene_table import Spot, read_table
from attacks.perturbations.patch.placement import Places

#: The table that ships with the package; `data.path=bundled` names it.
BUNDLED = Path(__file__).parent / "scenes.csv"


class Photo(NamedTuple):
    """A photograph and the places in it."""

    entry: Entry
    spots: tuple[Spot, ...]


def read_scenes(path: str, size: int, unreadable: str = "refuse") -> tuple[Shelf, list[Photo]]:
    """The photographs of a table (see `read_table`), each `square`, and where the patch lies in each. Raises
    FileNotFoundError or ValueError, in one line."""
    photos = {entry.name: Photo(entry, spots) for entry, spots in read_table(BUNDLED if path == "bundled" else path)}
    shelf = read_entries([photo.entry for photo in photos.values()], [], size, unreadable)
    return shelf, [photos[name] for name in shelf.names]


def places_in(photos: Sequence[Photo], size: int, sheet: Print) -> tuple[Places, list[str]]:
    """Where the patch lies in the squares of these photographs, and notes. A photograph with fewer places than
    another gets the rest with a cover of 0. Raises ValueError in one line, with the line of the table."""
    most = max(len(photo.spots) for photo in photos)
    quads = torch.empty(len(photos), most, 4, 2, dtype=torch.float64)
    there = torch.zeros(len(photos), most, 1, 1)
    parts: dict[tuple[int, int], Tensor] = {}
    notes: list[str] = []
    for i, (entry, spots) in enumerate(photos):
        image, _ = load_image(entry.path)
        before = (image.shape[1], image.shape[2])
        for k, spot in enumerate(spots):
            mask, said = mask_of(spot, entry.name, before)
            corners = corners_of(spot, sheet, mask)
            said += checked(spot, entry.name, corners, before, sheet)
            quads[i, k] = squared(corners, before, size)
            notes += [*said, *seen(spot, entry.name, quads[i, k])]
            there[i, k] = 1
            if mask is not None:
                parts[i, k] = covered(spot, mask, corners, sheet.texture)
        quads[i, len(spots) :] = quads[i, 0]
    if not parts:
        return Places(quads, None if bool(there.all()) else there), notes
    cover = there.repeat(1, 1, *sheet.texture)
    for place, part in parts.items():
        cover[place] = part
    return Places(quads, cover), notes

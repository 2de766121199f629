"""Photographs with placements of a patch, and these placements in the squares that are attacked."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.data.images import load_image
from attacks.data.listing import Entry
from attacks.data.pictures import Shelf, read_entries, squared
from attacks.data.scene_geometry import Print, check_corners, check_crop, corners_of, mask_of, texel_cover
from attacks.data.scene_table import PlacementCorners, read_table
from attacks.perturbations.patch.placement import Placements

#: The table that ships with the package; `data.path=bundled` names it.
BUNDLED = Path(__file__).parent / "scenes.csv"


class Photo(NamedTuple):
    """A photograph and the placements in it."""

    entry: Entry
    placements: tuple[PlacementCorners, ...]


def read_scenes(
    path: str, size: int, unreadable: str = "refuse", column: str | None = None
) -> tuple[Shelf, list[Photo]]:
    """The photographs of a table (see `read_table`), each cut to a `square`, and the placements in each. Raises
    FileNotFoundError or ValueError, in one line."""
    photos = {
        entry.name: Photo(entry, placements)
        for entry, placements in read_table(BUNDLED if path == "bundled" else path, column)
    }
    shelf = read_entries([photo.entry for photo in photos.values()], [], size, unreadable)
    return shelf, [photos[name] for name in shelf.names]


def placements_in(photos: Sequence[Photo], size: int, sheet: Print) -> tuple[Placements, list[str]]:
    """The placements in the squares of these photographs, and notes. A photograph with fewer placements than another
    is padded with placements of cover 0. Raises ValueError in one line, with the line of the table."""
    most = max(len(photo.placements) for photo in photos)
    quads = torch.empty(len(photos), most, 4, 2, dtype=torch.float64)
    shown = torch.zeros(len(photos), most, 1, 1)
    covers: dict[tuple[int, int], Tensor] = {}
    notes: list[str] = []
    for i, (entry, placements) in enumerate(photos):
        image, _ = load_image(entry.path)
        size_of_photo = (image.shape[1], image.shape[2])
        for k, placement in enumerate(placements):
            mask, mask_notes = mask_of(placement, entry.name, size_of_photo)
            corners = corners_of(placement, sheet, mask)
            notes += [*mask_notes, *check_corners(placement, entry.name, corners, size_of_photo, sheet)]
            quads[i, k] = squared(corners, size_of_photo, size)
            notes += check_crop(placement, entry.name, quads[i, k])
            shown[i, k] = 1
            if mask is not None:
                covers[i, k] = texel_cover(placement, mask, corners, sheet.texture)
        quads[i, len(placements) :] = quads[i, 0]
    if not covers:
        return Placements(quads, None if bool(shown.all()) else shown), notes
    cover = shown.repeat(1, 1, *sheet.texture)
    for index, part in covers.items():
        cover[index] = part
    return Placements(quads, cover), notes

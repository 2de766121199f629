"""Photographs with placements of a patch, as a table lists them, and these placements in the squares that are
attacked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.data.images import load_image
from attacks.data.listing import name_entries
from attacks.data.pictures import Shelf, read_entries, read_mask, square, to_square
from attacks.data.table import CORNERS, TABLES, Entry, read_number, read_table
from attacks.perturbations.patch.placement import UNIT, Placements, cover_of
from attacks.runtime.untrusted import short_path
from transforms.sampling.homography import clipped_area, homography

#: The table that ships with the package; `data.path=bundled` names it.
BUNDLED_TABLE = Path(__file__).parent / "scenes.csv"
#: Those of the unit square, as (a, b, c) of a x + b y + c >= 0 inside.
EDGES = ((1.0, 0.0, 0.0), (-1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (0.0, -1.0, 1.0))


class Photo(NamedTuple):
    """A photograph, and the rows of the table that have its placements."""

    entry: Entry
    placements: tuple[Entry, ...]


def read_scenes_table(path: str | Path) -> tuple[list[Photo], list[str]]:
    """The photographs of a table (see `read_table`) and the placements in each, in the order of the file, and notes.
    A row is a placement: the corners `x1,y1` ... `x4,y4` (upper left, upper right, lower right, lower left of the
    texture) in pixels of the photograph as displayed, where 0 is its left or upper edge and its width the right one;
    or a `mask`, in whose light part it lies; or both. Raises FileNotFoundError or ValueError in one line, with the
    line of the table."""
    path = Path(path)
    if not path.is_file():
        problem = f"is no file (paths are relative to {Path.cwd()})"
        raise FileNotFoundError(f"`data.path`: `{short_path(str(path))}` {problem}")
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"`data.path` must be a .csv of scenes; got {path} (data=folder takes pictures)")
    rows, notes = read_table(path)
    photos: dict[Path, Photo] = {}
    for row in rows:
        quad_of(row)
        entry, placements = photos.get(row.path, Photo(row, ()))
        merged: dict[str, Any] = {}
        for key in ("label", "cluster", "split", "weight"):
            values = {getattr(entry, key), getattr(row, key)} - {None}
            if len(values) > 1:
                two = " and ".join(sorted(map(str, values)))
                column = "identity" if key == "label" else key
                raise ValueError(f"{row.where}: `{row.name}` must have one `{column}` in all rows; got {two}")
            merged[key] = next(iter(values), None)
        photos[row.path] = Photo(replace(entry, cells={**row.cells, **entry.cells}, **merged), (*placements, row))
    entries = name_entries([photo.entry for photo in photos.values()])
    return [Photo(entry, photos[entry.path].placements) for entry in entries], notes


def quad_of(row: Entry) -> list[list[float]] | None:
    """The corners of a placement, or None: the bounding box of the light part of its mask. Raises ValueError."""
    present, missing = ([name for name in CORNERS if (name in row.cells) is has] for has in (True, False))
    if not present and "mask" not in row.cells:
        raise ValueError(f"{row.where}: nothing says where the patch lies; give the columns x1 to y4, or mask")
    if present and missing:
        raise ValueError(f"{row.where}: it has {', '.join(present)}, but no {', '.join(missing)}")
    numbers = [read_number(row.where, name, row.cells[name]) for name in present]
    return [numbers[i : i + 2] for i in range(0, 8, 2)] if numbers else None


def find_corners(placement: Entry, mask: Tensor | None) -> Tensor:
    """The four corners (4,2) in pixels of the photograph."""
    if (quad := quad_of(placement)) is not None:
        return torch.tensor(quad, dtype=torch.float64)
    assert mask is not None
    rows, columns = (mask > 0.5).any(1).nonzero().flatten(), (mask > 0.5).any(0).nonzero().flatten()
    corner = torch.tensor([columns[0], rows[0]], dtype=torch.float64)
    return corner + UNIT * UNIT.new_tensor([columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]])


def check_corners(placement: Entry, photo: str, corners: Tensor, size: tuple[int, int], shares: Tensor) -> list[str]:
    """Notes on a quad (4,2), also given in `shares` of the photograph's central square. Raises ValueError if it is
    degenerate, not inside the photograph, or outside the square."""
    location, corner_list = placement.where, ", ".join(f"({x:g}, {y:g})" for x, y in corners.tolist())
    height, width = size
    place = f"`{photo}`, {width}x{height}"
    if bool((corners.amax(0) <= 1).all()):
        raise ValueError(f"{location}: corners are in pixels of {place}, no shares; got {corner_list}")
    for x, y in corners.tolist():
        if not (-1e-6 <= x <= width + 1e-6 and -1e-6 <= y <= height + 1e-6):
            raise ValueError(f"{location}: the corner ({x:g}, {y:g}) lies beyond {place} as displayed")
    try:
        homography(UNIT, corners)
    except ValueError:
        fix = f"give upper left, upper right, lower right, lower left of the texture; got {corner_list}"
        problem = f"the quad in `{photo}` folds over, or has three corners in a line"
        raise ValueError(f"{location}: {problem}; {fix}") from None
    notes = []
    if _area(corners) < 0:
        notes.append(f"{location}: the corners run counterclockwise, so `{photo}` shows the patch mirrored")
    inside = clipped_area(shares.tolist(), EDGES) / abs(_area(shares))
    square_text = f"outside the central square of `{photo}`"
    if inside < 1e-6 or float((shares - 0.5).abs().max()) >= 1.5:
        fix = "or reaches far out of it; only this is used: move it, or crop the photograph"
        raise ValueError(f"{location}: the quad lies {square_text}, {fix}")
    if inside <= 0.999:
        notes.append(f"{location}: {1 - inside:.0%} of the quad is {square_text}, and cut off")
    return notes


def _area(points: Tensor) -> float:
    """The area of a polygon (n,2); positive if it runs clockwise as displayed."""
    x, y = points.unbind(-1)
    return float((x * y.roll(-1) - y * x.roll(-1)).sum()) / 2


def read_scenes(path: str, size: int, unreadable: str = "refuse") -> tuple[Shelf, list[Photo]]:
    """The photographs of a table, each cut to a `square`, and their placements. Raises as `read_scenes_table`."""
    table, notes = read_scenes_table(BUNDLED_TABLE if path == "bundled" else path)
    photos = {photo.entry.name: photo for photo in table}
    shelf = read_entries([photo.entry for photo in photos.values()], notes, size, unreadable)
    return shelf, [photos[name] for name in shelf.names]


def placements_in(photos: Sequence[Photo], size: int, texture: tuple[int, int]) -> tuple[Placements, list[str]]:
    """The placements of a texture of this (height, width) in the squares of these photographs, and notes. One with
    fewer placements than another is padded with some of cover 0. Raises ValueError with the line of the table."""
    largest = max(len(photo.placements) for photo in photos)
    quads = torch.empty(len(photos), largest, 4, 2, dtype=torch.float64)
    visible = torch.zeros(len(photos), largest, 1, 1)
    parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # the cover and the mask of a placement
    notes: list[str] = []
    for i, (entry, placements) in enumerate(photos):
        image, _ = load_image(entry.path)
        size_of_photo = (image.shape[1], image.shape[2])
        for k, placement in enumerate(placements):
            mask, mask_notes = read_mask(placement, size_of_photo) if "mask" in placement.cells else (None, [])
            corners = find_corners(placement, mask)
            quads[i, k] = to_square(corners, size_of_photo, size)
            notes += [*mask_notes, *check_corners(placement, entry.name, corners, size_of_photo, quads[i, k])]
            visible[i, k] = 1
            if mask is not None:
                light = (square(mask[None], size)[0] > 0.5).float()
                parts[i, k] = cover_of(light, quads[i, k], texture), light
                if not bool((parts[i, k][0] > 1 / 255).any()):
                    raise ValueError(f"{placement.where}: `mask` is dark all over the quad; the patch would not show")
        quads[i, len(placements) :] = quads[i, 0]
    if not parts:
        return Placements(quads, None if bool(visible.all()) else visible), notes
    cover, mask = visible.repeat(1, 1, *texture), visible.repeat(1, 1, size, size)
    for index, part in parts.items():
        cover[index], mask[index] = part
    return Placements(quads, cover, mask), notes

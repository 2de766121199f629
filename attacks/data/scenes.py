"""Photographs with placements of a patch, as a table lists them, and these placements in the squares that are
attacked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.images import load_image
from attacks.data.listing import Entry, make_entry, name_entries, read_number, table_rows
from attacks.data.pictures import Shelf, read_entries, to_square
from attacks.perturbations.patch.placement import Placements
from attacks.runtime.untrusted import short_path
from transforms.sampling.homography import clipped_area, edges_to_centres, homography, transform
from transforms.sampling.warp import warp_by_matrix

#: The table that ships with the package; `data.path=bundled` names it.
BUNDLED_TABLE = Path(__file__).parent / "scenes.csv"
CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
COLUMNS = ("path", *CORNERS, "mask", "identity", "cluster", "weight")
#: The most samples along each side of a texel; beyond this, antialiasing averages the pixels.
SAMPLES = 16
#: The corners of a texture as shares of its sides, in the order of a quad.
UNIT = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
#: Those of the unit square, as (a, b, c) of a x + b y + c >= 0 inside.
EDGES = ((1.0, 0.0, 0.0), (-1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (0.0, -1.0, 1.0))


class PlacementCorners(NamedTuple):
    """One placement in a photograph: four corners (x, y), or None: the bounding box of the light part of `mask`.

    Corners are in pixels of the photograph as displayed: 0 is its left or upper edge, its width the right one.
    `where` names the line of the table.
    """

    where: str
    quad: tuple[tuple[float, float], ...] | None
    mask: Path | None


class Photo(NamedTuple):
    """A photograph and the placements in it."""

    entry: Entry
    placements: tuple[PlacementCorners, ...]


def read_table(path: str | Path, column: str | None = None) -> list[Photo]:
    """The photographs of a .csv and the placements in each, in the order of the file.

    After a header, a line for each placement: `path`, and the corners `x1,y1` ... `x4,y4` (upper left, upper right,
    lower right, lower left of the texture), or a `mask`, or both. Optional: `identity` (the label), `cluster`
    (photographs with the same one count as one), `weight` (a number above 0). `column` names one more, which says fit
    or judge (see `attacks.data.split`). Text is UTF-8; paths in it are relative to its file.

    Raises FileNotFoundError or ValueError in one line, with the line of the table.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`data.path`: `{short_path(str(path))}` is no file (paths are relative to {Path.cwd()})"
        )
    if path.suffix.lower() != ".csv":
        raise ValueError(f"`data.path` must be a .csv of scenes; got {path} (data=folder takes pictures)")
    placements: dict[Path, list[PlacementCorners]] = {}
    entries: dict[Path, Entry] = {}
    for number, cells in table_rows(path, partial(_check_header, column)):
        location, entry = f"`{path}` line {number}", make_entry(path, number, cells["path"], cells, column)
        placement = _placement(location, path, cells)
        first = entries.setdefault(entry.path, entry)
        for kind, *values in (
            ("identities", first.label, entry.label),
            ("clusters", first.cluster, entry.cluster),
            ("values of data.split", first.split, entry.split),
            ("values of `weight`", first.weight, entry.weight),
        ):
            if None not in values and values[0] != values[1]:
                raise ValueError(f"{location}: `{entry.name}` has two {kind}, {values[0]} and {values[1]}")
        merged: dict[str, Any] = {
            key: getattr(first, key) or getattr(entry, key) for key in ("label", "cluster", "weight")
        }
        entries[entry.path] = replace(first, **merged)
        placements.setdefault(entry.path, []).append(placement)
    if not placements:
        raise ValueError(f"`{path}` names no photograph")
    return [Photo(entry, tuple(placements[entry.path])) for entry in name_entries(list(entries.values()))]


def _check_header(column: str | None, location: str, cells: list[str]) -> None:
    for name in cells:
        if name not in (*COLUMNS, column):
            raise ValueError(
                f"{location}: unknown column `{short_path(name)}`; known, separated by commas, are "
                f"{', '.join(COLUMNS)}"
            )
        if cells.count(name) > 1:
            raise ValueError(f"{location}: the column `{name}` is there twice")
    if "path" not in cells:
        raise ValueError(f"{location}: the column `path` is missing; got {short_path(', '.join(cells))}")


def _placement(location: str, path: Path, cells: Mapping[str, str]) -> PlacementCorners:
    missing = [name for name in CORNERS if name not in cells]
    if len(missing) == len(CORNERS) and "mask" not in cells:
        raise ValueError(f"{location}: nothing says where the patch lies; give the columns x1 to y4, or mask")
    if 0 < len(missing) < len(CORNERS):
        present = ", ".join(name for name in CORNERS if name in cells)
        raise ValueError(f"{location}: it has {present}, but no {', '.join(missing)}")
    numbers = [] if missing else [read_number(location, name, cells[name]) for name in CORNERS]
    quad = tuple(zip(numbers[::2], numbers[1::2], strict=True)) or None
    return PlacementCorners(location, quad, path.parent / cells["mask"] if "mask" in cells else None)


def read_mask(placement: PlacementCorners, photo: str, size: tuple[int, int]) -> tuple[Tensor | None, list[str]]:
    """The mask of a placement, (H,W) in [0,1] or None, and notes on its conversion. Raises ValueError or
    FileNotFoundError for a mask that is unreadable, of another size, or dark."""
    location = placement.where
    if placement.mask is None:
        return None, []
    try:
        image, notes = load_image(placement.mask)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{location}: `mask`: {error}") from None
    mask = image.mean(0)
    if mask.shape != size:
        raise ValueError(
            f"{location}: `mask` must be as large as its photograph `{photo}`, {size[1]}x{size[0]}; "
            f"{placement.mask.name} has {mask.shape[1]}x{mask.shape[0]}"
        )
    if not bool((mask > 0.5).any()):
        raise ValueError(
            f"{location}: `mask` {placement.mask.name} is dark all over; the patch shows where it is light"
        )
    return mask, notes


def find_corners(placement: PlacementCorners, mask: Tensor | None) -> Tensor:
    """The four corners (4,2) in pixels of the photograph."""
    if placement.quad is not None:
        return torch.tensor(placement.quad, dtype=torch.float64)
    assert mask is not None
    rows, columns = (mask > 0.5).any(1).nonzero().flatten(), (mask > 0.5).any(0).nonzero().flatten()
    corner = torch.tensor([columns[0], rows[0]], dtype=torch.float64)
    return corner + UNIT * UNIT.new_tensor([columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]])


def check_corners(
    placement: PlacementCorners, photo: str, corners: Tensor, size: tuple[int, int], shares: Tensor
) -> list[str]:
    """Notes on a quad (4,2), also given in `shares` of the photograph's central square. Raises ValueError if it is
    degenerate, not inside the photograph, or outside the square."""
    location, corner_list = placement.where, ", ".join(f"({x:g}, {y:g})" for x, y in corners.tolist())
    height, width = size
    if bool((corners.amax(0) <= 1).all()):
        raise ValueError(
            f"{location}: corners are in pixels of `{photo}`, {width}x{height}, no shares; got {corner_list}"
        )
    for x, y in corners.tolist():
        if not (-1e-6 <= x <= width + 1e-6 and -1e-6 <= y <= height + 1e-6):
            raise ValueError(
                f"{location}: the corner ({x:g}, {y:g}) lies beyond `{photo}`, {width}x{height} as displayed"
            )
    try:
        homography(UNIT, corners)
    except ValueError:
        raise ValueError(
            f"{location}: the quad in `{photo}` folds over, or has three corners in a line; give upper left, upper "
            f"right, lower right, lower left of the texture; got {corner_list}"
        ) from None
    notes = []
    if _area(corners) < 0:
        notes.append(f"{location}: the corners run counterclockwise, so `{photo}` shows the patch mirrored")
    inside = clipped_area(shares.tolist(), EDGES) / abs(_area(shares))
    if inside < 1e-6 or float((shares - 0.5).abs().max()) >= 1.5:
        raise ValueError(
            f"{location}: the quad lies outside the central square of `{photo}`, or reaches far out of it; only "
            "this is used: move it, or crop the photograph"
        )
    if inside <= 0.999:
        notes.append(
            f"{location}: {1 - inside:.0%} of the quad is outside the central square of `{photo}`, and cut off"
        )
    return notes


def _area(points: Tensor) -> float:
    """The area of a polygon (n,2); positive if it runs clockwise as displayed."""
    x, y = points.unbind(-1)
    return float((x * y.roll(-1) - y * x.roll(-1)).sum()) / 2


def texel_cover(placement: PlacementCorners, mask: Tensor, corners: Tensor, texture: tuple[int, int]) -> Tensor:
    """The visible share of each texel, (h,w) in [0,1]: the mean of the mask over the texel's part of the photograph.
    Raises ValueError if no texel shows."""
    sides = (corners.roll(-1, 0) - corners).norm(dim=1)
    pixels = max(float(sides[[0, 2]].max()) / texture[1], float(sides[[1, 3]].max()) / texture[0])
    samples = min(max(math.ceil(pixels), 1), SAMPLES)
    size = (texture[0] * samples, texture[1] * samples)
    to_centres = edges_to_centres(UNIT)
    outer = UNIT * UNIT.new_tensor([size[1], size[0]])
    ends = [transform(to_centres[None], points[None])[0] for points in (outer, corners)]
    dense = warp_by_matrix(mask[None, None], homography(*ends), size, border="reflect", antialias=True)
    cover = F.avg_pool2d(dense, samples)[0, 0].clamp(0, 1)
    if not bool((cover > 1 / 255).any()):
        raise ValueError(f"{placement.where}: `mask` is dark all over the quad; the patch would not show")
    return cover


def read_scenes(
    path: str, size: int, unreadable: str = "refuse", column: str | None = None
) -> tuple[Shelf, list[Photo]]:
    """The photographs of a table (see `read_table`), each cut to a `square`, and the placements in each. Raises
    FileNotFoundError or ValueError, in one line."""
    table = read_table(BUNDLED_TABLE if path == "bundled" else path, column)
    photos = {photo.entry.name: photo for photo in table}
    shelf = read_entries([photo.entry for photo in photos.values()], [], size, unreadable)
    return shelf, [photos[name] for name in shelf.names]


def placements_in(photos: Sequence[Photo], size: int, texture: tuple[int, int]) -> tuple[Placements, list[str]]:
    """The placements of a texture of this (height, width) in the squares of these photographs, and notes. One with
    fewer placements than another is padded with placements of cover 0. Raises ValueError in one line, with the line
    of the table."""
    largest = max(len(photo.placements) for photo in photos)
    quads = torch.empty(len(photos), largest, 4, 2, dtype=torch.float64)
    visible = torch.zeros(len(photos), largest, 1, 1)
    covers: dict[tuple[int, int], Tensor] = {}
    notes: list[str] = []
    for i, (entry, placements) in enumerate(photos):
        image, _ = load_image(entry.path)
        size_of_photo = (image.shape[1], image.shape[2])
        for k, placement in enumerate(placements):
            mask, mask_notes = read_mask(placement, entry.name, size_of_photo)
            corners = find_corners(placement, mask)
            quads[i, k] = to_square(corners, size_of_photo, size)
            notes += [*mask_notes, *check_corners(placement, entry.name, corners, size_of_photo, quads[i, k])]
            visible[i, k] = 1
            if mask is not None:
                covers[i, k] = texel_cover(placement, mask, corners, texture)
        quads[i, len(placements) :] = quads[i, 0]
    if not covers:
        return Placements(quads, None if bool(visible.all()) else visible), notes
    cover = visible.repeat(1, 1, *texture)
    for index, part in covers.items():
        cover[index] = part
    return Placements(quads, cover), notes

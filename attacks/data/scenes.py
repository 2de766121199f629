"""Photographs with placements of a patch, and these placements in the squares that are attacked."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.images import load_image
from attacks.data.listing import Entry
from attacks.data.pictures import Shelf, read_entries, to_square
from attacks.data.scene_table import PlacementCorners, read_table
from attacks.perturbations.patch.placement import Placements
from transforms.sampling.homography import clipped_area, edges_to_centres, homography, transform
from transforms.sampling.warp import warp_by_matrix

#: The table that ships with the package; `data.path=bundled` names it.
BUNDLED_TABLE = Path(__file__).parent / "scenes.csv"


#: The largest relative difference between the width of the print and that of its quad that needs no note.
OFF = 0.05
#: The most samples along each side of a texel; beyond this, antialiasing averages the pixels.
SAMPLES = 16
#: The corners of a texture as shares of its sides, in the order of a quad.
UNIT = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
#: Those of the unit square, as (a, b, c) of a x + b y + c >= 0 inside.
EDGES = ((1.0, 0.0, 0.0), (-1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (0.0, -1.0, 1.0))


class Print(NamedTuple):
    """The (height, width) of a texture, and the width of its print."""

    texture: tuple[int, int]
    width_mm: float | None = None


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


def find_corners(placement: PlacementCorners, sheet: Print, mask: Tensor | None) -> Tensor:
    """The four corners (4,2) in pixels of the photograph. Raises ValueError for a middle without a size."""
    location = placement.where
    if placement.quad is not None:
        return torch.tensor(placement.quad, dtype=torch.float64)
    if placement.middle is None:
        assert mask is not None
        rows, columns = (mask > 0.5).any(1).nonzero().flatten(), (mask > 0.5).any(0).nonzero().flatten()
        corner = torch.tensor([columns[0], rows[0]], dtype=torch.float64)
        return corner + UNIT * UNIT.new_tensor([columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]])
    if sheet.width_mm is not None and not sheet.width_mm > 0:
        raise ValueError(f"`perturbation.width_mm` must be above 0; got {sheet.width_mm:g}")
    if placement.mm_per_pixel is None or sheet.width_mm is None:
        missing = "perturbation.width_mm" if sheet.width_mm is None else "mm_per_pixel"
        raise ValueError(f"{location}: a middle (x, y) needs a size; give `{missing}`, or four corners")
    x, y, degrees = placement.middle
    width = sheet.width_mm / placement.mm_per_pixel
    height = width * sheet.texture[0] / sheet.texture[1]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rotation = UNIT.new_tensor([[cos, sin], [-sin, cos]])  # of rows (x, y), clockwise because y points down
    return UNIT.new_tensor([x, y]) + (UNIT - 0.5) * UNIT.new_tensor([width, height]) @ rotation


def check_corners(
    placement: PlacementCorners, photo: str, corners: Tensor, size: tuple[int, int], sheet: Print
) -> list[str]:
    """Notes on a quad. Raises ValueError if it is degenerate, or not inside the photograph."""
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
    if placement.quad is not None and placement.mm_per_pixel is not None and sheet.width_mm is not None:
        top, bottom = (corners[1] - corners[0]).norm(), (corners[2] - corners[3]).norm()
        width_mm = float(top + bottom) / 2 * placement.mm_per_pixel
        if abs(width_mm / sheet.width_mm - 1) > OFF:
            notes.append(
                f"{location}: the quad in `{photo}` is {width_mm:.0f} mm wide at {placement.mm_per_pixel:g} mm a "
                f"pixel, and perturbation.width_mm is {sheet.width_mm:g}; the quad is used"
            )
    return notes


def check_crop(placement: PlacementCorners, photo: str, shares: Tensor) -> list[str]:
    """A note if the central square of the photograph cuts off a part of a quad (4,2), given in shares of the square.
    Raises ValueError if it cuts off the whole quad."""
    location, inside = placement.where, clipped_area(shares.tolist(), EDGES) / abs(_area(shares))
    reach = float((shares - 0.5).abs().max())
    if inside < 1e-6 or reach >= 1.5:
        raise ValueError(
            f"{location}: the quad lies outside the central square of `{photo}`, or reaches far out of it; only "
            "this is used: move it, or crop the photograph"
        )
    if inside > 0.999:
        return []
    return [f"{location}: {1 - inside:.0%} of the quad is outside the central square of `{photo}`, and cut off"]


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
        for entry, placements in read_table(BUNDLED_TABLE if path == "bundled" else path, column)
    }
    shelf = read_entries([photo.entry for photo in photos.values()], [], size, unreadable)
    return shelf, [photos[name] for name in shelf.names]


def placements_in(photos: Sequence[Photo], size: int, sheet: Print) -> tuple[Placements, list[str]]:
    """The placements in the squares of these photographs, and notes. A photograph with fewer placements than another
    is padded with placements of cover 0. Raises ValueError in one line, with the line of the table."""
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
            corners = find_corners(placement, sheet, mask)
            notes += [*mask_notes, *check_corners(placement, entry.name, corners, size_of_photo, sheet)]
            quads[i, k] = to_square(corners, size_of_photo, size)
            notes += check_crop(placement, entry.name, quads[i, k])
            visible[i, k] = 1
            if mask is not None:
                covers[i, k] = texel_cover(placement, mask, corners, sheet.texture)
        quads[i, len(placements) :] = quads[i, 0]
    if not covers:
        return Placements(quads, None if bool(visible.all()) else visible), notes
    cover = visible.repeat(1, 1, *sheet.texture)
    for index, part in covers.items():
        cover[index] = part
    return Placements(quads, cover), notes

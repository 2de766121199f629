"""Antialiasing: where a map shrinks, each pixel is the mean of 2 x 2 samples of a smaller copy of the image.

The copies are a pyramid of means of 2 x 2 pixels (Williams 1983), one for all views of an image. An output pixel that
is s source pixels wide (the root mean square of the map's two singular values) is at level log2(s), blended from the
two levels around it. Level 0 is one sample of the image, level k is 2 x 2 samples of the copy reduced by 2^(k-1).
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.devices import HOST, constants, uploaded
from transforms.sampling.homography import HORIZON, Pull
from transforms.sampling.read import FAR, Border, Resampling, read

#: The Jacobian is taken at the nodes of a lattice with so many cells along each axis, and interpolated.
CELLS = 16
#: How far towards the next level the blend with it begins, and ends.
BLEND = (0.3, 0.8)
#: Levels this near to a whole number are taken for it, so that one level serves.
SNAP = 1e-3


def levels(
    pull: Pull, size: tuple[int, int], source: tuple[int, int], border: Border, dtype: torch.dtype
) -> Tensor | None:
    """The pyramid's level for each node of a lattice over the output, (N,k,l) >= 0, and some level of the same view
    where nothing but a constant border is near. Differentiable in whatever the map depends on. None: 0 everywhere.
    On the host: the levels decide what is read."""
    rows, columns = min(size[0], CELLS + 1), min(size[1], CELLS + 1)
    y = torch.linspace(1, 2 * size[0] - 1, rows, dtype=dtype)
    x = torch.linspace(1, 2 * size[1] - 1, columns, dtype=dtype)
    # A step of half a pixel, one unit: near enough for a derivative, far enough for float32.
    # all in one, for these are many small kernels
    points, w = pull(torch.cat([x, x + 1]), torch.cat([y, y + 1]), HOST)
    corner, right, down = points[:, :rows, :columns], points[:, :rows, columns:], points[:, rows:, :columns]
    jacobian = torch.cat([right - corner, down - corner], dim=-1)
    energy = jacobian.nan_to_num(nan=0.0).clamp(-1e6, 1e6).square().sum(-1)  # the singular values' squares, added
    shrinks = (energy > 2 * 4 ** BLEND[0]).flatten(1).any(1)
    if not bool(shrinks.any()):
        return None
    level = (energy / 2).clamp(1, 4 ** top(source)).log2() / 2
    level = level.detach().floor() + ((level.frac() - BLEND[0]) / (BLEND[1] - BLEND[0])).clamp(0, 1)
    if w is not None:  # a step over the edge of what is seen is no derivative: the neighbours' level stands for it
        ahead = w.detach() > HORIZON
        visible = ahead[:, :rows, :columns] & ahead[:, :rows, columns:] & ahead[:, rows:, :columns]
        level = torch.where(visible, level, _dilate(torch.where(visible, level.detach(), -1.0)) + 1)
    if border == "constant":
        near = _near(corner.detach(), level.detach(), source)
        # Any level will do elsewhere; one that the view reads anyway costs nothing.
        lowest = torch.where(near, level.detach(), torch.inf).flatten(1).amin(1).nan_to_num(posinf=0.0)
        level = torch.where(near, level, lowest[:, None, None])
    level = torch.where(shrinks[:, None, None], level, 0.0)  # whatever the other views do
    if not level.requires_grad:  # without perspective levels of a view differ by rounding; one is read faster
        middle = (level.amin((1, 2), keepdim=True) + level.amax((1, 2), keepdim=True)) / 2
        level = torch.where((level - middle).abs().amax((1, 2), keepdim=True) < SNAP, middle, level)
    near = level.detach().round()
    return torch.where((level - near).abs() < SNAP, near, level)


def top(source: tuple[int, int]) -> int:
    """The last level: an image of `source` (height, width) takes a quarter of its only pixel's side."""
    return math.ceil(math.log2(max(source))) + 2


def read_levels(
    images: Tensor,
    grid: Tensor,
    finer: Callable[[], Tensor],
    level: Tensor,
    field: Callable[[Tensor], Tensor],
    resampling: Resampling,
    solid: bool = False,
) -> Tensor:
    """As `transforms.sampling.read.read`, each place from the levels of the pyramid around its own. Views that need
    no level above 0 come out as `read` gives them.

    Args:
        finer: gives the grid of 2 x 2 places in each pixel, (N,2h,2w,2): the first of all pixels along each axis,
            then the second.
        level: (N,...) on the host; decides which levels each view reads.
        field: from rows of `level` on the device to the levels of their places, (n,1,h,w) or (n,1,1,1).
    """
    low, high = torch.stack(torch.aminmax(level.detach().flatten(1), dim=1))[..., None]
    all_levels = torch.arange(math.ceil(high.max()) + 1)
    used = (low < all_levels + 1) & (high > all_levels - 1)  # (N,levels): which view reads which level
    is_single = (low == all_levels) & (high == all_levels)
    level_numbers = used.any(0).nonzero()[:, 0].tolist()
    textures = _pyramid(images, resampling.border, max(level_numbers[-1] - 1, 0))
    fine = finer() if level_numbers[-1] else grid
    level = level if level.device == grid.device else uploaded(level, grid.device)

    def read_level(k: int, rows: Tensor | None, shared: bool, weight: Tensor | None) -> Tensor:
        texture, share = textures[max(k - 1, 0)]
        places = (fine if k else grid) if rows is None else (fine if k else grid).index_select(0, rows)
        if weight is not None and weight.shape[3] > 1 and resampling.border == "constant":
            # Nothing is read where nothing counts. A GPU takes turns to add to a pixel, and at a level that is too
            # high for them many places would read the same one.
            counts = (weight != 0)[:, 0, :, :, None]
            places = torch.where(counts.repeat(1, 2, 2, 1) if k else counts, places, FAR)
        inner = resampling
        if k > 1:
            places, border = _to_texture(places, share, resampling.border, images)
            inner = replace(resampling, border=border)
        pixels = texture if shared or rows is None else texture.index_select(0, rows)
        return read(pixels, places, inner, mean=k > 0, solid=solid)

    total = images.new_zeros(())
    for k in level_numbers:
        rows, shared = _rows(used[:, k], len(images))
        row_numbers = None if len(rows) == len(grid) else uploaded(rows, grid.device)
        weight = None
        if not bool(is_single[rows, k].all()):
            corner = field(level if row_numbers is None else level.index_select(0, row_numbers))
            weight = (1 - (corner - k).abs()).clamp(min=0)
        part = read_level(k, row_numbers, shared, weight)
        part = part if weight is None else part * weight
        if row_numbers is None:
            total = total + part if total.dim() else part
        else:
            total = total if total.dim() else part.new_zeros(len(grid), *part.shape[1:])
            total.index_add_(0, row_numbers, part)
    return total


def _rows(used: Tensor, images: int) -> tuple[Tensor, bool]:
    """Which views are read, of those `used` (N,), and whether they still share their images evenly."""
    views = len(used) // images
    if views > 1:  # a view that one image needs is read for every image: they share the texture
        used = used.view(images, views).any(0).repeat(images)
    return used.nonzero()[:, 0], views > 1 or images == 1


def _pyramid(images: Tensor, border: Border, depth: int) -> list[tuple[Tensor, tuple[float, float]]]:
    """The textures up to one of 2**-most the size, and the share (x, y) of each one's sides that the image takes."""
    height, width = images.shape[2:]
    textures, texture = [(images, (1.0, 1.0))], images
    for k in range(1, depth + 1):
        texture = F.avg_pool2d(_pad_sides(texture, border), 2)
        h, w = texture.shape[2:]
        textures.append((texture, (width / (w * 2**k), height / (h * 2**k))))
    return textures


def _pad_sides(images: Tensor, border: Border) -> Tensor:
    """Sides of odd length get one more pixel, of what the border shows there."""
    for dim in (2, 3):
        n = images.shape[dim]
        if n % 2:
            edge = images.narrow(dim, n - 2 if border == "reflect101" and n > 1 else n - 1, 1)
            # Not F.pad, whose gradient CUDA adds up in no fixed order.
            images = torch.cat([images, torch.zeros_like(edge) if border == "constant" else edge], dim)
    return images


def _to_texture(grid: Tensor, scale: tuple[float, float], border: Border, images: Tensor) -> tuple[Tensor, Border]:
    """The grid for a texture of which the image takes the share `scale`; reflections are folded in beforehand, since
    the texture's edge need not be the image's."""
    if border.startswith("reflect"):
        sides = [images.shape[3], images.shape[2]]
        ends = tuple(1.0 if border == "reflect" else max(n - 1, 0.5) / n for n in sides)
        edge = constants(ends, grid.dtype, grid.device)
        turn = torch.remainder(grid + edge, 4 * edge)
        grid, border = torch.where(turn > 2 * edge, 4 * edge - turn, turn) - edge, "replicate"
    if scale != (1.0, 1.0):
        share = constants(scale, grid.dtype, grid.device)
        grid = grid * share + (share - 1)
    return grid, border


def _dilate(level: Tensor) -> Tensor:
    """The largest level among a node and its neighbours."""
    return F.max_pool2d(level[:, None], 3, stride=1, padding=1)[:, 0]


def _near(corner: Tensor, level: Tensor, source: tuple[int, int]) -> Tensor:
    """Which nodes (N,k,l) border on a cell that may show a part of the source."""
    margin = 4 * level.exp2()[..., None]  # two pixels of that level
    size = corner.new_tensor([2 * source[1], 2 * source[0]])[:, None, None]
    window = min(2, corner.shape[1]), min(2, corner.shape[2])
    high = F.max_pool2d((corner + margin).permute(0, 3, 1, 2), window, stride=1)
    low = -F.max_pool2d((margin - corner).permute(0, 3, 1, 2), window, stride=1)
    inside = ((low < size) & (high > 0)).all(1, keepdim=True)
    grow = [window[1] - 1] * 2 + [window[0] - 1] * 2
    return F.max_pool2d(F.pad(inside.to(corner.dtype), grow), window, stride=1)[:, 0] > 0

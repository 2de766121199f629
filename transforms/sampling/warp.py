"""The only place where an image is resampled through a map of output places to source places, both in the half-pixel
frame of `transforms.sampling.homography`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.devices import HOST, constants, wide_dtype
from transforms.sampling.boxes import Boxes, interpolate_levels
from transforms.sampling.homography import HORIZON, Pull, invert, lattice, pixels_to_halves
from transforms.sampling.outline import Outline, cut
from transforms.sampling.pyramid import levels, read_levels
from transforms.sampling.read import FAR, Border, Resampling, border_value, copies, read
from transforms.sampling.tone import Tone, apply_tone

#: Bilinear, with black beyond the image, and no antialiasing.
PLAIN = Resampling()


def warp(
    images: Tensor,  # (B,C,H,W)
    pull: Pull,
    size: tuple[int, int],
    resampling: Resampling = PLAIN,
    *,
    tone: Tone | None = None,
    outline: Outline | None = None,
    at: Boxes | None = None,
    solid: bool = False,
) -> Tensor:  # (N,C,*size), or (N,C,*at.size)
    """Resample through the map `pull` (see `sampling.homography.Pull`), which gives N = k B views: the first
    k are of the first image. Where w is not positive the result is the border value, and no gradient flows.

    Each view is antialiased from its own levels, so a view does not depend on its neighbours in the batch.

    Args:
        tone: applied to the views, border and all.
        outline: where premultiplied colours, with their coverage as the last channel, end; give it with a constant
            border of 0 and without a tone.
        at: the part of each of the N views of `size` that is made, and its levels; it is what it is in the whole
            view.
        solid: the coverage needs no gradient; where it is cheaper so, it gets none.
    """
    border, value = resampling.border, resampling.value
    work = torch.promote_types(images.dtype, torch.float32)  # never half: its grid is pixels off
    source = images.shape[2], images.shape[3]
    if at is None:
        level = levels(pull, size, source, border, work) if resampling.antialias else None
        (height, width), x0, y0 = size, torch.zeros(()), torch.zeros(())
    else:
        level, (height, width), x0, y0 = at.level, at.size, 2 * at.left[:, None], 2 * at.top[:, None]
    x, y = x0 + 2 * torch.arange(width, dtype=work) + 1, y0 + 2 * torch.arange(height, dtype=work) + 1
    points, w = pull(x, y, images.device)
    grid = _grid(points, images, w)
    fill = border_value(value, images) if border == "constant" or w is not None else None
    times = len(images) if len(grid) < len(images) else 1  # one map for all
    grid = copies(grid, times)

    def finer() -> Tensor:
        points, ahead = pull(torch.cat([x - 0.5, x + 0.5], -1), torch.cat([y - 0.5, y + 0.5], -1), images.device)
        fine = _grid(points, images, ahead)
        if ahead is not None:  # a sample beyond the horizon gives way to its pixel's centre
            centre = grid[: len(fine)].repeat(1, 2, 2, 1)
            fine = torch.where((ahead > HORIZON)[..., None], fine, centre)
        return copies(fine, times)

    def field(nodes: Tensor) -> Tensor:  # of whole views on the device; boxes are small, and spread on the host
        return F.interpolate(nodes[:, None], size, mode="bilinear", align_corners=True) if at is None else nodes

    def views(pixels: Tensor, view_tone: Tone | None) -> Tensor:
        if level is None:
            return read(pixels, grid, resampling, view_tone, solid=solid)
        own_level = level if at is None else interpolate_levels(level, size, x, y)
        view = read_levels(pixels, grid, finer, copies(own_level, times), field, resampling, solid)
        return view if view_tone is None else apply_tone(view, view_tone)

    view = _fill(views, images, w, fill, border, len(grid), tone)
    return view if outline is None else cut(view, grid, outline, None if w is None else w > HORIZON)


def warp_by_matrix(images: Tensor, matrix: Tensor, size: tuple[int, int], **options: object) -> Tensor:
    """`warp` through a homography (N,3,3) from output pixels to source pixels; options: those of `Resampling`."""
    wide = matrix.to(HOST, wide_dtype(matrix))
    halves = pixels_to_halves(wide)
    half_matrix = (halves @ wide @ invert(halves)).to(torch.promote_types(images.dtype, torch.float32))
    return warp(images, lambda x, y, device: lattice(half_matrix, x, y, device), size, Resampling(**options))  # type: ignore[arg-type]


def _grid(points: Tensor, images: Tensor, far: Tensor | None) -> Tensor:
    """From the half-pixel frame to the grid frame; unless `far` is None, some points may be far away."""
    size = constants((images.shape[3], images.shape[2]), points.dtype, points.device)
    # In place where no graph holds them: these are the largest tensors but the views.
    grid = (points / size if points.requires_grad else points.div_(size)).sub_(1)
    # A place that is no number is far away: grid_sample would make an index of it.
    return grid if far is None else grid.nan_to_num(nan=FAR).clamp(-FAR, FAR)


def _fill(
    read_views: Callable[[Tensor, Tone | None], Tensor],
    images: Tensor,
    w: Tensor | None,
    fill: Tensor | None,
    border: Border,
    views: int,
    tone: Tone | None = None,
) -> Tensor:
    """What `read_views` reads from the images, with `fill` beyond a constant border and beyond the horizon, and then
    the tone."""
    work = torch.promote_types(images.dtype, torch.float32) if w is None else w.dtype
    images, dtype, colour = images.to(work), images.dtype, images.new_zeros((), dtype=work)
    tone = None if tone is None else tone.to(work)
    if fill is not None:
        colour = fill.to(work)
        images = images - colour if border == "constant" else images
        colour = copies(colour, views // len(colour)) if colour.dim() else colour  # one for each view
    is_raised = fill is not None and border == "constant"
    if tone is not None and w is None and not colour.requires_grad:  # all in one
        if is_raised:  # `colour`, () or (1|N,1|C,1,1), has been taken from the values
            tone = tone._replace(offset=tone.gain * colour + tone.offset)
        return read_views(images, tone).to(dtype)
    view = read_views(images, None)
    if is_raised:
        view = view.add_(colour)  # fresh from reading, and the largest tensor there is
    if w is not None:
        view = torch.where((w > HORIZON)[:, None], view, colour)
    return (view if tone is None else apply_tone(view, tone)).to(dtype)

"""The only place where an image is resampled through a map.

A map takes an output place to a source place, both in the half-pixel frame of `transforms.homography`. This file
turns maps into views: border value, horizon, antialiasing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transforms.homography import HORIZON, invert, lattice, pixels_to_halves, wide_dtype
from transforms.pyramid import Pull, levels, read_levels
from transforms.reading import Border, Kernel, Value, border_value, check_names, copies, read

__all__ = ["Border", "Kernel", "Pull", "Value", "border_value", "check_names", "sample", "warp", "warp_by_matrix"]

#: Places farther out than this see the border as well; beyond, grid_sample makes a NaN of an infinite coordinate.
FAR = 1e4


def warp(
    images: Tensor,  # (B,C,H,W)
    pull: Pull,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
    deterministic: bool = False,
) -> Tensor:  # (N,C,*size)
    """Resample through the map `pull` (see `transforms.pyramid.Pull`), which gives N = k B views: the first k are of
    the first image. Where w is not positive the result is `value`, and no gradient flows.

    Borders follow OpenCV: `constant` blends with `value` over one pixel, `reflect` repeats the edge pixel,
    `reflect101` does not. `bicubic` is Keys' kernel with a = -0.75, OpenCV's and torch's; `keys(a)` has any other a
    (scikit-image's order 3 is keys(-0.5), Pillow's `transform` keys(-1)).

    `antialias` reads a pyramid where the map shrinks (see `transforms.pyramid`); each view from its own levels, so a
    view does not depend on its neighbours in the batch.

    `deterministic` reads tap by tap, several times slower: on CUDA, where `grid_sample` adds up its gradient in no
    fixed order, the same call then gives the same bits. On a CPU either way does.
    """
    check_names(kernel, border)
    work = torch.promote_types(images.dtype, torch.float32)  # never half: its grid is pixels off
    like = torch.empty(0, dtype=work, device=images.device)
    y, x = (2 * torch.arange(n, dtype=like.dtype, device=like.device) + 1 for n in size)
    points, w = pull(x, y)
    grid = _grid(points, images)
    grid = grid if w is None else grid.clamp(-FAR, FAR)
    fill = border_value(value, images) if border == "constant" or w is not None else None
    level = levels(pull, size, (images.shape[2], images.shape[3]), border, like) if antialias else None
    if len(grid) < len(images):  # one map for all
        grid, level = copies(grid, len(images)), None if level is None else copies(level, len(images))
    return _read(images, grid, w, fill, level, kernel, border, deterministic)


def warp_by_matrix(images: Tensor, matrix: Tensor, size: tuple[int, int], **options: object) -> Tensor:
    """`warp` through a homography (N,3,3) from output pixels to source pixels; options as in `warp`."""
    wide = matrix.to(wide_dtype(matrix))
    halves = pixels_to_halves(wide)
    halved = (halves @ wide @ invert(halves)).to(torch.promote_types(images.dtype, torch.float32))
    return warp(images, lambda x, y: lattice(halved, x, y), size, **options)  # type: ignore[arg-type]


def sample(
    images: Tensor,  # (B,C,H,W)
    points: Tensor,  # (N,h,w,2)
    seen: Tensor | None = None,  # (N,h,w) bool
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    deterministic: bool = False,
) -> Tensor:  # (N,C,h,w)
    """Read `images` at `points` of the pixel frame (integer = pixel centre); where `seen` is false (beyond the
    horizon) the result is `value`. Options as in `warp`."""
    check_names(kernel, border)
    points = points.to(torch.promote_types(images.dtype, points.dtype))
    w = None if seen is None else seen.to(points.dtype)
    grid = _grid(2 * points + 1, images).clamp(-FAR, FAR)
    return _read(images, grid, w, border_value(value, images), None, kernel, border, deterministic)


def _grid(points: Tensor, images: Tensor) -> Tensor:
    """From the half-pixel frame to the grid frame."""
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=points.dtype, device=points.device)
    return (points / size).sub_(1)


def _read(
    images: Tensor,
    grid: Tensor,
    w: Tensor | None,
    fill: Tensor | None,
    level: Tensor | None,
    kernel: Kernel,
    border: Border,
    deterministic: bool,
) -> Tensor:
    images, dtype, beyond = images.to(grid.dtype), images.dtype, images.new_zeros((), dtype=grid.dtype)
    if fill is not None:
        beyond = fill.to(grid.dtype)
        images = images - beyond if border == "constant" else images
        beyond = copies(beyond, len(grid) // len(beyond)) if beyond.dim() else beyond  # one for each view
    if level is None:
        views = read(images, grid, kernel=kernel, border=border, deterministic=deterministic)
    else:
        views = read_levels(images, grid, level, kernel=kernel, border=border, deterministic=deterministic)
    if fill is not None and border == "constant":
        views = views + beyond
    if w is not None:
        views = torch.where((w > HORIZON)[:, None], views, beyond)
    return views.to(dtype)

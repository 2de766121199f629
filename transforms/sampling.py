"""The only place where an image is sampled through a grid.

Points are pixel-frame coordinates (integer = pixel centre). `torch.nn.functional.grid_sample` does the work in its
one convention without a residual at the identity (`align_corners=False`); this file adds what it lacks: a border
value, reflect101, the horizon, and antialiasing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.homography import HORIZON, transform

Kernel = Literal["nearest", "bilinear", "bicubic"]
Border = Literal["constant", "replicate", "reflect", "reflect101"]
Value = float | Tensor  # a number, (C,) or (N,C)
Rows = Tensor | None  # indices into a batch; None for all of it
Pull = Callable[[Tensor, Rows], tuple[Tensor, Tensor]]

#: A bilinear tap covers two source pixels; output samples further apart than this start to alias.
SAMPLE_SPACING = 1.5
#: Supersampling is capped at this factor per axis.
MOST_SAMPLES = 4

_PADDING = {"constant": "zeros", "replicate": "border", "reflect": "reflection", "reflect101": "reflection"}


def sample(
    images: Tensor,  # (N,C,H,W)
    points: Tensor,  # (N,h,w,2)
    seen: Tensor | None = None,  # (N,h,w) bool
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
) -> Tensor:  # (N,C,h,w)
    """Read `images` at `points`; where `seen` is false (beyond the horizon) the result is `value`.

    Borders follow OpenCV: `constant` blends with `value` over one pixel, `reflect` repeats the edge pixel,
    `reflect101` does not. `bicubic` is Keys' kernel with a = -0.75, OpenCV's and torch's.
    """
    check_names(kernel, border)
    fill = border_value(value, images)
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=points.dtype, device=points.device)
    aligned = border == "reflect101"  # reflection about pixel centres is grid_sample's align_corners=True
    grid = 2 * points / (size - 1).clamp(min=1) - 1 if aligned else (2 * points + 1) / size - 1
    grid = grid.clamp(-1e4, 1e4)  # grid_sample turns an infinite coordinate into NaN
    work = torch.promote_types(images.dtype, grid.dtype)  # never half: its grid is pixels off
    shifted = images.to(work)
    if border == "constant" and fill is not None:
        shifted = shifted - fill
    views = F.grid_sample(shifted, grid.to(work), kernel, _PADDING[border], align_corners=aligned)
    if border == "constant" and fill is not None:
        views = views + fill
    if seen is not None:
        views = torch.where(seen[:, None], views, views.new_zeros(()) if fill is None else fill.to(work))
    return views.to(images.dtype)


def warp(
    images: Tensor,  # (N,C,H,W)
    pull: Pull,
    size: tuple[int, int],
    *,
    kernel: Kernel = "bilinear",
    border: Border = "constant",
    value: Value = 0.0,
    antialias: bool = False,
) -> Tensor:  # (N,C,*size)
    """Resample through a map `pull`: output pixel points (1,h,w,2) -> source pixel points (N,h,w,2) and their w
    (N,h,w), for the images of the given rows (None: all).

    `antialias` supersamples: each view is read on an s x s finer grid and averaged, with the smallest s that
    brings neighbouring samples within `SAMPLE_SPACING` source pixels. s is chosen view by view, so a view does
    not depend on its neighbours in the batch, and its gradient is exact.
    """
    like = images if images.dtype in (torch.float32, torch.float64) else images.float()

    def read(rows: Rows, factor: int) -> Tensor:
        here = take(images, rows)
        points, w = pull(pixel_grid(size, factor, like), rows)
        points, seen = points.expand(len(here), -1, -1, -1), (w > HORIZON).expand(len(here), -1, -1)
        fill = take(value, rows) if isinstance(value, Tensor) and value.dim() == 2 else value
        views = sample(here, points, seen, kernel=kernel, border=border, value=fill)
        return F.avg_pool2d(views, factor) if factor > 1 else views

    if not antialias:
        return read(None, 1)
    factors = _supersampling(pull, size, images, like)
    first = int(factors[0])
    if bool((factors == first).all()):
        return read(None, first)
    groups = [(int(f), (factors == f).nonzero()[:, 0]) for f in factors.unique()]
    order = torch.cat([rows for _, rows in groups]).argsort()
    return torch.cat([read(rows, factor) for factor, rows in groups]).index_select(0, order)


def warp_by_matrix(images: Tensor, matrix: Tensor, size: tuple[int, int], **options: object) -> Tensor:
    """`warp` through a homography (N,3,3) from output pixels to source pixels; options as in `warp`."""
    return warp(images, lambda points, rows: transform(take(matrix, rows), points), size, **options)  # type: ignore[arg-type]


def take(tensor: Tensor, rows: Rows) -> Tensor:
    """The given rows of a batch; a batch of one serves every row."""
    return tensor if rows is None or len(tensor) == 1 else tensor.index_select(0, rows)


def pixel_grid(size: tuple[int, int], factor: int, like: Tensor) -> Tensor:
    """The (1, h*factor, w*factor, 2) points (x, y) of the output's pixels, each split in factor x factor."""
    y, x = ((torch.arange(n * factor, dtype=like.dtype, device=like.device) + 0.5) / factor - 0.5 for n in size)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]


def check_names(kernel: str, border: str) -> None:
    """Raise ValueError on a kernel or a border that does not exist."""
    for name, given, known in (("kernel", kernel, get_args(Kernel)), ("border", border, get_args(Border))):
        if given not in known:
            raise ValueError(f"`{name}` must be one of {', '.join(known)}; got {given!r}")


def border_value(value: Value, images: Tensor) -> Tensor | None:
    """The border value as a tensor that broadcasts over (N,C,H,W), or None for plain zero.

    Raises ValueError unless `value` is a number, (C,) or (N,C).
    """
    if not isinstance(value, Tensor):
        if isinstance(value, int | float) and value == 0:
            return None
        value = torch.as_tensor(value, dtype=images.dtype, device=images.device)
    if value.dim() == 0:
        return value
    n, c = images.shape[:2]
    if value.shape not in ((c,), (n, c), (1, c)):
        raise ValueError(f"`value` must be a number, ({c},) or ({n},{c}); got shape {tuple(value.shape)}")
    return value.reshape(-1, c, 1, 1)


@torch.no_grad()
def _supersampling(pull: Pull, size: tuple[int, int], images: Tensor, like: Tensor) -> Tensor:
    """The factor for each view (N,): from the largest stretch of the map over a lattice of output points."""
    height, width = images.shape[2:]
    y, x = (torch.linspace(0, n - 1, min(n, 17), dtype=like.dtype, device=like.device) for n in size)
    here = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]
    points, w = pull(here, None)
    inside = (w > HORIZON) & (points > -1).all(-1) & (points < points.new_tensor([width, height])).all(-1)
    step = 0.5  # pixels: near enough for a derivative, far enough for float32
    a, b = ((pull(here + here.new_tensor(s), None)[0] - points) / step for s in ([step, 0.0], [0.0, step]))
    # Largest singular value of the 2x2 Jacobian with columns a, b.
    trace = (a * a).sum(-1) + (b * b).sum(-1)
    det = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    stretch = ((trace + (trace * trace - 4 * det * det).clamp(min=0).sqrt()) / 2).sqrt()
    stretch = torch.where(inside, stretch, 0.0).flatten(1).amax(1)
    return (stretch / SAMPLE_SPACING).ceil().clamp(1, MOST_SAMPLES).expand(len(images))

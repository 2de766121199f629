"""Edges of a layer: the share of each of a view's pixels that lies within a known outline, exactly.

A printed sheet is cut along a line; read from a texture, its edge would be a ramp as wide as a texel. Only the pixels
that the line passes are computed: a pixel's footprint in the texture is a parallelogram, and the area that it has in
common with a polygon is a sum over the polygon's sides (Green's theorem).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transforms.devices import constants

Places = tuple[Tensor, Tensor, Tensor]  # view, row and column of some pixels

#: A pixel is at an edge if its coverage, as read, is at least this far from 0 and from 1, or its neighbour's is.
RIM = 1e-3
#: A neighbour this many times farther off than the opposite one is beyond a fold, or not visible.
FOLD = 3.0
#: Sides that approximate the arc of an ellipse near a pixel.
SIDES = 8


@dataclass(frozen=True)
class Outline:
    """The opaque part of a layer: the polygon of `corners` (x, y), or if there are two, the ellipse inscribed in the
    box from the first to the second; in shares of the layer's width and height."""

    corners: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))

    def near(self, places: Tensor, reach: Tensor) -> Tensor:
        """Polygons (2,n,1|K) that agree with the outline up to `reach` (K,) from `places` (2,K), all in the grid
        frame (the layer's edges at -1 and 1)."""
        flat = tuple(each for corner in self.corners for each in corner)
        corners = constants(flat, places.dtype, places.device).view(-1, 2) * 2 - 1
        if len(corners) > 2:
            return corners.T[..., None]
        middle, radii = (corners[0] + corners[1]) / 2, (corners[1] - corners[0]) / 2
        x, y = (places - middle[:, None]) / radii[:, None]  # as if it were the unit circle
        half = (reach / radii.amin()).clamp(max=math.pi / 2)
        sides = torch.linspace(-1, 1, SIDES + 1, dtype=places.dtype, device=places.device)[:, None]
        turn = torch.atan2(y, x) + half * sides
        side = (2 / SIDES * half).clamp(min=1e-3)
        beyond = (side / side.sin()).sqrt()  # as much of the polygon is outside as is missing inside
        arc = torch.stack([turn.cos(), turn.sin()]) * beyond
        # With the arc across, so that a place deep inside is far from every side: coarse texels have edges there.
        return torch.cat([arc, -arc], dim=1) * radii[:, None, None] + middle[:, None, None]


def cut(view: Tensor, grid: Tensor, outline: Outline, ahead: Tensor | None = None) -> Tensor:
    """Premultiplied colours and coverage (N,C+1,h,w), which are changed in place, read at the places `grid` (N,h,w,2)
    of a layer, in the grid frame: at its edges the coverage becomes that of the outline, and the colours follow.
    Where `ahead` (N,h,w) is false, nothing is seen. The coverage as read gives a gradient to places only."""
    height, width = view.shape[2:]
    if min(height, width) < 2:  # without neighbours a pixel's size is unknown
        return view
    read = view[:, -1] if grid.requires_grad else view[:, -1].detach()
    rim = _rim(read.detach())
    n, i, j = at = (rim if ahead is None else rim & ahead).nonzero(as_tuple=True)
    if not len(n):
        return view
    above, below = (i - 1).clamp(min=0), (i + 1).clamp(max=height - 1)
    left, right = (j - 1).clamp(min=0), (j + 1).clamp(max=width - 1)
    start = n * height
    five = torch.stack([start + i, start + i, start + i, start + above, start + below]) * width
    places = grid.permute(3, 0, 1, 2).flatten(1)[:, five + torch.stack([j, left, right, j, j])]
    centre, before, after, over, under = places.unbind(1)
    across, down = _step(centre, before, after), _step(centre, over, under)
    covered = _covered(centre, across, down, outline).to(view.dtype)
    own = read[at]
    uncovered = own.detach() < RIM  # such a pixel has no colour of its own, and gets that of its neighbours
    share = torch.where(uncovered, 0.0, covered / torch.where(uncovered, 1.0, own))
    some = (uncovered & (covered.detach() > 0)).nonzero()[:, 0]
    beside = [each[some] for each in (above, i, below)], [each[some] for each in (left, j, right)]
    rows, columns = torch.stack([k for k in beside[0] for _ in range(3)]), torch.stack(beside[1] * 3)
    around = (n[some].expand(9, -1), rows, columns)
    total = read[around].sum(0)
    borrowed = torch.where(total > RIM, covered[some] / total.clamp(min=RIM), 0.0)
    cut_: Tensor = _Cut.apply(view, share, borrowed, at, some, around)
    return cut_


class _Cut(torch.autograd.Function):
    """Some pixels of a view, in place: each `share` times itself, but `some` of them `borrowed` times the sum of
    those around them. Autograd would make a view full of zeros for each of the reads."""

    @staticmethod
    def forward(
        ctx: Any, view: Tensor, share: Tensor, borrowed: Tensor, at: Places, some: Tensor, around: Places
    ) -> Tensor:
        shown = view.permute(0, 2, 3, 1)
        ink, sums = shown[at], shown[around].sum(0)
        moves = ctx.needs_input_grad[1]
        ctx.save_for_backward(share, borrowed, some, *at, *around, *((ink, sums) if moves else ()))
        ctx.mark_dirty(view)
        ink = ink * share[:, None]
        ink[some] = sums * borrowed[:, None]
        shown[at] = ink
        return view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share, borrowed, some, *rest = ctx.saved_tensors
        at, around, read = tuple(rest[:3]), tuple(rest[3:6]), rest[6:]
        grad = grad.clone()
        shown = grad.permute(0, 2, 3, 1)
        ink = shown[at]
        sums = ink[some]
        to = [(ink * read[0]).sum(1).index_fill(0, some, 0), (sums * read[1]).sum(1)] if read else [None, None]
        ink = ink * share[:, None]
        ink[some] = 0
        shown[at] = ink
        shown.index_put_(around, (sums * borrowed[:, None]).expand(9, -1, -1), accumulate=True)
        return grad, *to, None, None, None


def _covered(centre: Tensor, across: Tensor, down: Tensor, outline: Outline) -> Tensor:
    """How much of the parallelogram round each place (2,K), of sides `across` and `down`, lies within the outline."""
    area = across[0] * down[1] - across[1] * down[0]
    flat = area.abs() < torch.finfo(area.dtype).tiny
    safe = torch.where(flat, 1.0, area)
    reach = across.detach().abs().sum(0) + down.detach().abs().sum(0)
    x, y = (outline.near(centre.detach(), reach) - centre[:, None]).unbind(0)
    x, y = (x * down[1] - y * down[0]) / safe, (y * across[0] - x * across[1]) / safe
    return torch.where(flat, 0.0, within(x + 0.5, y + 0.5))


def _rim(seen: Tensor) -> Tensor:
    """Where a view (N,h,w) is neither all inside nor all outside, and beside that: a corner may be cut off there. And
    where a pixel that is all inside lies beside one that is all outside: the edge passes between their middles."""
    part = (seen > RIM) & (seen < 1 - RIM)
    rim = part.clone()
    for dim in (1, 2):
        n = part.shape[dim] - 1
        one, other = part.narrow(dim, 0, n), part.narrow(dim, 1, n)
        edge = one | other | ((seen.narrow(dim, 0, n) - seen.narrow(dim, 1, n)).abs() > 0.5)
        rim.narrow(dim, 0, n).logical_or_(edge)
        rim.narrow(dim, 1, n).logical_or_(edge)
    return rim


def _step(centre: Tensor, previous: Tensor, following: Tensor) -> Tensor:
    """How far the places move from one pixel to the next, (2,K): the mean of both sides, or the one within `FOLD`."""
    back, forth = centre - previous, following - centre
    b, f = (each.detach().abs().sum(0) for each in (back, forth))
    one, other = (b > 0) & ((b <= FOLD * f) | (f == 0)), (f > 0) & ((f <= FOLD * b) | (b == 0))
    return (torch.where(one, back, 0.0) + torch.where(other, forth, 0.0)) / (one.to(b) + other.to(b)).clamp(min=1)


def within(x: Tensor, y: Tensor) -> Tensor:
    """The area (K,) that simple polygons with the corners x, y (n,K) have in common with the unit square."""
    dx, dy = x.roll(-1, 0) - x, y.roll(-1, 0) - y
    low, high = y.clamp(0, 1), (y + dy).clamp(0, 1)
    slope = dx / torch.where(dy == 0, 1.0, dy)
    left, right = x + (low - y) * slope, x + (high - y) * slope
    least, most = torch.minimum(left, right), torch.maximum(left, right)
    # The mean of x, clamped to the square, along a side: the part that is within, and the part that is beyond.
    p, q, span = least.clamp(0, 1), most.clamp(0, 1), most - least
    total = (q - p) * (p + q) / 2 + (most - 1).clamp(min=0) - (least - 1).clamp(min=0)
    mean = torch.where(span > 0, total / torch.where(span > 0, span, 1.0), p)
    return ((high - low) * mean).sum(0).abs().clamp(max=1)

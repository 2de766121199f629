"""Edges of a layer: the share of each of a view's pixels that lies within a known outline, exactly: the area that its
footprint in the texture, a parallelogram, has in common with a polygon (Green's theorem)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transforms.devices import HOST, constants

#: A pixel is at an edge if its coverage, as read, is at least this far from 0 and from 1, or its neighbour's is.
RIM = 1e-3
#: A neighbour this many times farther off than the opposite one is beyond a fold, or not visible.
FOLD = 3.0
#: Texels whose shares are computed at once, which bounds the memory.
TEXELS = 2**13
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
        flat = tuple(value for corner in self.corners for value in corner)
        corners = constants(flat, places.dtype, places.device).view(-1, 2) * 2 - 1
        if len(corners) > 2:
            return corners.T[..., None]
        middle, radii = (corners[0] + corners[1]) / 2, (corners[1] - corners[0]) / 2
        x, y = (places - middle[:, None]) / radii[:, None]  # as if it were the unit circle
        half = (reach / radii.amin()).clamp(max=math.pi / 2)
        sides = torch.linspace(-1, 1, SIDES + 1, dtype=places.dtype, device=places.device)[:, None]
        turn = torch.atan2(y, x) + half * sides
        side = (2 / SIDES * half).clamp(min=1e-3)
        factor = (side / side.sin()).sqrt()  # as much of the polygon is outside as is missing inside
        arc = torch.stack([turn.cos(), turn.sin()]) * factor
        # With the arc across, so that a place deep inside is far from every side: coarse texels have edges there.
        return torch.cat([arc, -arc], dim=1) * radii[:, None, None] + middle[:, None, None]


def cut(view: Tensor, grid: Tensor, outline: Outline, ahead: Tensor | None = None) -> Tensor:
    """Premultiplied colours and coverage (N,C+1,h,w), which are changed in place, read at the places `grid` (N,h,w,2)
    of a layer, in the grid frame: at its edges the coverage becomes that of the outline, and the colours follow.
    Where `ahead` (N,h,w) is false, nothing is seen. The coverage as read gives a gradient to places only."""
    height, width = view.shape[2:]
    if min(height, width) < 2:  # without neighbours a pixel's size is unknown
        return view
    view = view.contiguous()
    flat = view.view(-1) if grid.requires_grad else view.detach().view(-1)
    # Where a pixel or a neighbour has some coverage, and it or a neighbour is not wholly covered: a corner may be cut
    # off there, or the edge passes between the middles of two pixels.
    coverage = view.detach()[:, -1]
    rim = _dilate(coverage > RIM) & _dilate(coverage < 1 - RIM)
    n, i, j = (rim if ahead is None else rim & ahead).nonzero().T.contiguous()
    if not len(n):
        return view
    pixels, colour_count = height * width, view.shape[1] - 1
    up, down = -width * (i > 0), width * (i < height - 1)
    left, right = -1 * (j > 0), 1 * (j < width - 1)
    # Numbers into memory, not rows and columns: so many places are read three times as fast. In memory, a grid
    # usually has all x before all y of a view, so this order needs no copy.
    first, cells = n * pixels, i * width + j
    five = 2 * first + cells + torch.stack([torch.zeros_like(n), left, up, right, down])
    places = _values(grid.permute(0, 3, 1, 2).reshape(-1), torch.stack([five, five + pixels]))
    centre, previous, following = places.view(2, 5, -1).split([1, 2, 2], 1)
    x_side, y_side = _step(centre - previous, following - centre).unbind(1)
    coverage = _coverage(centre[:, 0], x_side, y_side, outline).to(view.dtype)
    spots = (colour_count + 1) * first + cells
    ink = _values(flat, spots + colour_count * pixels)
    is_bare = ink.detach() < RIM  # such a pixel has no colour of its own, and gets that of its neighbours
    share = torch.where(is_bare, 0.0, coverage / torch.where(is_bare, 1.0, ink))
    bare = (is_bare & (coverage.detach() > 0)).nonzero()[:, 0]
    sides = [[way[bare] for way in ways] for ways in ((up, 0 * up, down), (left, 0 * left, right))]
    neighbours = spots[bare] + torch.stack([row + column for row in sides[0] for column in sides[1]])
    total = _values(flat, neighbours + colour_count * pixels).sum(0)
    colour = torch.where(total > RIM, coverage[bare] / total.clamp(min=RIM), 0.0)
    return _Cut.apply(view, share, colour, spots, bare, neighbours)  # type: ignore[no-any-return]


class _Cut(torch.autograd.Function):
    """Some pixels of a view, in place: each `share` times itself, but those of `bare` are `colour` times the sum of
    those around them. Autograd would make a view full of zeros for each of the reads."""

    @staticmethod
    def forward(
        ctx: Any, view: Tensor, share: Tensor, colour: Tensor, spots: Tensor, bare: Tensor, neighbours: Tensor
    ) -> Tensor:
        at, neighbour_spots = (_channels(value, view) for value in (spots, neighbours))
        flat = view.view(-1)
        ink, sums = flat.index_select(0, at.flatten()).view_as(at), flat[neighbour_spots].sum(0)
        moves = ctx.needs_input_grad[1]
        ctx.save_for_backward(share, colour, bare, at, neighbour_spots, *((ink, sums) if moves else ()))
        ctx.mark_dirty(view)
        ink = ink * share
        ink[:, bare] = sums * colour
        flat.index_copy_(0, at.flatten(), ink.flatten())
        return view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        share, colour, bare, at, neighbour_spots, *read = ctx.saved_tensors
        grad = grad.clone(memory_format=torch.contiguous_format)
        flat = grad.view(-1)
        ink = flat.index_select(0, at.flatten()).view_as(at)
        sums = ink[:, bare]
        to = [(ink * read[0]).sum(0).index_fill(0, bare, 0), (sums * read[1]).sum(0)] if read else [None, None]
        ink = ink * share
        ink[:, bare] = 0
        flat.index_copy_(0, at.flatten(), ink.flatten())
        _add(flat, neighbour_spots, sums * colour)
        return grad, *to, None, None, None


def _values(flat: Tensor, at: Tensor) -> Tensor:
    """The values with numbers `at` of any shape. A gradient is added up in a fixed order, also on a GPU; that of
    `index_select` is not."""
    return flat[at] if flat.requires_grad else flat.index_select(0, at.flatten()).view(at.shape)


def _add(flat: Tensor, at: Tensor, values: Tensor) -> None:
    """Add `values` to each of the numbers at[k], in place and in a fixed order."""
    if flat.device != HOST:
        flat.index_put_((at,), values.expand_as(at), accumulate=True)
        return
    for value in at:  # of threads, `index_put_` would have an order of their own
        flat.index_add_(0, value.flatten(), values.flatten())


def _channels(spots: Tensor, view: Tensor) -> Tensor:
    """The numbers (...,K) of pixels in the first channel of views (N,C,h,w) -> those in all channels (...,C,K)."""
    channels, pixels = view.shape[1], view.shape[2] * view.shape[3]
    return spots[..., None, :] + torch.arange(0, channels * pixels, pixels, device=spots.device)[:, None]


def _coverage(centre: Tensor, x_side: Tensor, down: Tensor, outline: Outline) -> Tensor:
    """How much of the parallelogram round each place (2,K), of sides `x_side` and `down`, lies within the outline."""
    if outline.corners != Outline.corners or centre.device != HOST:
        return _polygon_area(centre, x_side, down, outline)
    # Most pixels near the edge of a whole layer are wholly inside or outside, as their bounds show. Only on the host:
    # of a device, the numbers of the others would have to be read back.
    far, reach = centre.detach().abs(), (x_side.detach().abs() + down.detach().abs()) / 2
    neighbour_spots = (far - reach < 1).all(0)
    edge_cells = (neighbour_spots & (far + reach > 1).any(0)).nonzero()[:, 0]
    middle, right, below = torch.cat([centre, x_side, down]).index_select(1, edge_cells).split(2)
    part = _polygon_area(middle, right, below, outline)
    flat = _area(x_side.detach(), down.detach()).abs() < torch.finfo(far.dtype).tiny
    return (neighbour_spots & ~flat).to(far).index_copy(0, edge_cells, part)


def _area(x_side: Tensor, down: Tensor) -> Tensor:
    """Of the parallelogram (2,K) of sides, with a sign."""
    return x_side[0] * down[1] - x_side[1] * down[0]


def _polygon_area(centre: Tensor, x_side: Tensor, down: Tensor, outline: Outline) -> Tensor:
    """`_coverage`, as a sum over the sides of the outline."""
    area = _area(x_side, down)
    flat = area.abs() < torch.finfo(area.dtype).tiny
    safe = torch.where(flat, 1.0, area)
    reach = x_side.detach().abs().sum(0) + down.detach().abs().sum(0)
    x, y = (outline.near(centre.detach(), reach) - centre[:, None]).unbind(0)
    x, y = (x * down[1] - y * down[0]) / safe, (y * x_side[0] - x * x_side[1]) / safe
    return torch.where(flat, 0.0, square_area(x + 0.5, y + 0.5))


def covered_texels(outline: Outline, size: tuple[int, int]) -> Tensor:
    """The share of each texel of a layer of `size` (height, width) that lies within an outline, (h,w) in float64;
    exact, but of a curve to 0.003."""
    height, width = size
    y, x = torch.meshgrid(*((torch.arange(n, dtype=torch.float64) + 0.5) * 2 / n - 1 for n in size), indexing="ij")
    centres = torch.stack([x.flatten(), y.flatten()])
    right, down = torch.diag(centres.new_tensor([2 / width, 2 / height])).T[..., None]
    parts = [_polygon_area(part, right, down, outline) for part in centres.split(TEXELS, 1)]
    return torch.cat(parts).round(decimals=9).view(size)  # without rounding errors: bare texels are exactly 0


def _dilate(cells: Tensor) -> Tensor:
    """Cells (N,h,w) and their neighbours."""
    cells_out = cells.clone()
    for dim in (1, 2):
        n = cells.shape[dim] - 1
        cells_out.narrow(dim, 0, n).bitwise_or_(cells.narrow(dim, 1, n))
        cells_out.narrow(dim, 1, n).bitwise_or_(cells.narrow(dim, 0, n))
    return cells_out


def _step(backward: Tensor, forward: Tensor) -> Tensor:
    """How far the places move from one pixel to the next (2,...), from the differences to both neighbours: their
    mean, or the one within `FOLD`."""
    b, f = (value.detach().abs().sum(0) for value in (backward, forward))
    first, second = (b > 0) & ((b <= FOLD * f) | (f == 0)), (f > 0) & ((f <= FOLD * b) | (b == 0))
    first, second = first.to(b), second.to(b)
    return (backward * first + forward * second) / (first + second).clamp(min=1)


def square_area(x: Tensor, y: Tensor) -> Tensor:
    """The area (K,) that simple polygons with the corners x, y (n,K) have in common with the unit square."""
    dx, dy = x.roll(-1, 0) - x, y.roll(-1, 0) - y
    low, high = y.clamp(0, 1), (y + dy).clamp(0, 1)
    slope = dx / torch.where(dy == 0, 1.0, dy)
    left, right = x + (low - y) * slope, x + (high - y) * slope
    low_end, high_end = torch.minimum(left, right), torch.maximum(left, right)
    # The mean of x, clamped to the square, along a side: the part that is within, and the part that is beyond.
    p, q, span = low_end.clamp(0, 1), high_end.clamp(0, 1), high_end - low_end
    total = (q - p) * (p + q) / 2 + (high_end - 1).clamp(min=0) - (low_end - 1).clamp(min=0)
    mean = torch.where(span > 0, total / torch.where(span > 0, span, 1.0), p)
    return ((high - low) * mean).sum(0).abs().clamp(max=1)

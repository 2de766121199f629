"""Where in its views a layer can be seen, decided on the host from the map alone: nothing is read outside its box."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from transforms.devices import HOST
from transforms.sampling.fusion import Chain
from transforms.sampling.homography import HORIZON, invert, transform

#: Cells along each axis of the lattice whose cells are kept or left out.
CELLS = 32
#: Pixels of the view that are kept round the source: an edge has neighbours, and a map may bend within a cell.
MARGIN = 2.0
#: The smallest side of a box: an edge needs a neighbour.
MIN_SIDE = 2
#: Views that share the size of a box, at least.
GROUP = 4


class Boxes(NamedTuple):
    """Boxes of one size in some views: `rows` (k,) are their numbers, `top` and `left` (k,) the first row and column
    of each box; `level` are the nodes (1|k,m,n) of their views (see `transforms.sampling.pyramid.levels`). All are on
    the host."""

    rows: Tensor
    top: Tensor
    left: Tensor
    size: tuple[int, int]
    level: Tensor | None = None

    def slices(self) -> list[tuple[Any, ...]]:
        """The part of the views (N,C,H,W) that each box is."""
        (height, width), places = self.size, zip(*(values.tolist() for values in self[:3]), strict=True)
        return [(n, slice(None), slice(i, i + height), slice(j, j + width)) for n, i, j in places]


def boxes(
    pull: Chain, views: int, size: tuple[int, int], source: tuple[int, int], level: Tensor | None, by_size: bool
) -> list[Boxes]:
    """Boxes outside which `pull` leads to places that see nothing of a source of `source` (height, width), read at
    `level`, in each of `views` views of `size`; `by_size`: views with boxes of like size together, otherwise all."""
    tap = torch.ones(1) if level is None else level.detach().amax((1, 2)).ceil().exp2()
    first, stop = (ends.expand(views, 2) for ends in _extent(pull, size, source, tap))
    order = (stop - first).prod(1).argsort(stable=True) if by_size else torch.arange(views)
    groups = []
    for rows in order.tensor_split(max(1, views // GROUP)) if by_size else (order,):
        sides = torch.minimum((stop - first)[rows].amax(0).clamp(min=MIN_SIDE), torch.tensor(size))
        top, left = torch.minimum(first[rows], torch.tensor(size) - sides).unbind(1)
        levels_of_group = level if level is None or len(level) == 1 else level[rows]
        groups.append(Boxes(rows, top, left, (int(sides[0]), int(sides[1])), levels_of_group))
    return groups


@torch.no_grad()
def _extent(pull: Chain, size: tuple[int, int], source: tuple[int, int], tap: Tensor) -> tuple[Tensor, Tensor]:
    """The first (row, column) that may see the source, and the one after the last, (N,2) each; both 0 if none does. A
    read reaches `tap` (1|N,) half pixels of the source."""
    nodes = [torch.linspace(1, 2 * n - 1, min(n, CELLS + 1)) for n in size]
    points, w = pull(nodes[1], nodes[0], HOST)
    if w is None and not pull.links:  # a homography maps corners to corners
        ends = torch.tensor([[0, 0], [2, 0], [2, 2], [0, 2]]) * torch.tensor(source).flip(0)
        corners, ahead = transform(invert(pull.first), ends + (ends.sign() * 2 - 1) * tap[:, None, None])
        if bool((ahead > HORIZON).all()):
            first, stop = ((corner.flip(-1) - 1) / 2 for corner in (corners.amin(1), corners.amax(1)))
            largest = torch.tensor(size)
            first = (first - MARGIN).clamp(min=0).floor().long()
            return first.minimum(largest), (stop + MARGIN).ceil().long().add(1).clamp(min=0).minimum(largest)
    pixels = max(1.0, min((n - 1) / max(len(axis) - 1, 1) for n, axis in zip(size, nodes, strict=True)))
    smallest, largest = _corners(points, torch.minimum), _corners(points, torch.maximum)
    margin = tap[:, None, None, None] + MARGIN / pixels * (largest - smallest)
    ends = points.new_tensor([2 * source[1], 2 * source[0]])
    cells = ~((smallest > ends + margin) | (largest < -margin)).any(-1)  # so that a NaN is kept
    if w is not None:  # a cell on the horizon is kept, for its corners are no bound
        ahead = w > HORIZON
        any_ahead, all_ahead = _corners(ahead, torch.logical_or), _corners(ahead, torch.logical_and)
        cells = any_ahead & (cells | ~all_ahead)
    low, high = zip(*(_ends(cells.any(3 - dim), nodes[dim - 1]) for dim in (1, 2)), strict=True)
    return torch.stack(low, dim=1), torch.stack(high, dim=1)


def _corners(nodes: Tensor, merge: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Nodes (N,k,l,...) merged over the corners of each cell, (N,k-1,l-1,...); of a single row, over its ends."""
    for dim in (1, 2):
        n = max(nodes.shape[dim] - 1, 1)
        nodes = merge(nodes.narrow(dim, 0, n), nodes.narrow(dim, nodes.shape[dim] - n, n))
    return nodes


def _ends(cells: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The first pixel of the first cell (N,k) and the one after the last cell, (N,) each; 0 where no cell is."""
    count = cells.shape[1]
    first, stop = cells.int().argmax(1), count - 1 - cells.flip(1).int().argmax(1)
    low = ((nodes[first] - 1) / 2).floor().long()
    high = ((nodes[(stop + 1).clamp(max=len(nodes) - 1)] - 1) / 2).ceil().long() + 1
    has_cell = cells.any(1)
    return torch.where(has_cell, low, 0), torch.where(has_cell, high, 0)


class _Overlay(torch.autograd.Function):
    """See `overlay`. In one piece for all boxes, so that the gradient of the views is copied once."""

    @staticmethod
    def forward(ctx: Any, views: Tensor, at: Sequence[Boxes], solid: bool, *overs: Tensor) -> Tensor:
        ctx.at, ctx.solid, tensors = [box.slices() for box in at], solid, []
        for slices, layer in zip(ctx.at, overs, strict=True):
            clear = 1 - layer[:, -1:]
            tensors += [clear, layer.new_empty(0) if solid else torch.stack([views[place] for place in slices])]
            for place, ink, rest in zip(slices, layer[:, :-1], clear, strict=True):
                views[place].mul_(rest).add_(ink)
        ctx.save_for_backward(*tensors)
        ctx.mark_dirty(views)
        return views

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        below = grad.clone() if ctx.needs_input_grad[0] else None
        tensors, overs = ctx.saved_tensors, []
        for slices, clear, background in zip(ctx.at, tensors[::2], tensors[1::2], strict=True):
            layer = grad.new_zeros(len(slices), grad.shape[1] + 1, *clear.shape[2:])
            for place, part in zip(slices, layer, strict=True):
                part[:-1] = grad[place]
            if not ctx.solid:
                torch.sum(layer[:, :-1] * background, 1, out=layer[:, -1]).neg_()
            overs.append(layer)
            if below is not None:
                for place, rest in zip(slices, clear, strict=True):
                    below[place].mul_(rest)
        return below, None, None, *overs


def overlay(views: Tensor, overs: Sequence[Tensor], at: Sequence[Boxes], solid: bool = False) -> Tensor:
    """Views (N,C,H,W), which are changed in place, with premultiplied colours and coverage (k,C+1,h,w) over boxes, at
    most one in each view; `solid`: the coverage needs no gradient, and its gradient is 0."""
    return _Overlay.apply(views, at, solid, *overs)  # type: ignore[no-any-return]


def interpolate_levels(level: Tensor, size: tuple[int, int], x: Tensor, y: Tensor) -> Tensor:
    """The nodes (N,k,l) of a lattice over views of `size`, interpolated at x (N,w) and y (N,h), half pixels of them:
    (N,1,h,w), or (N,1,1,1) where a level is the same throughout each view."""
    low, high = level.detach().amin((1, 2)), level.detach().amax((1, 2))
    if torch.equal(low, high):
        return level[:, None, :1, :1]
    x_grid, y_grid = (x - 1) / max(size[1] - 1, 1) - 1, (y - 1) / max(size[0] - 1, 1) - 1
    grid = torch.stack(torch.broadcast_tensors(x_grid[:, None, :], y_grid[:, :, None]), dim=-1)
    nodes = level[:, None].expand(len(grid), -1, -1, -1)
    level_map = F.grid_sample(nodes, grid, padding_mode="border", align_corners=True)
    # By rounding, a view at a whole level would have a small share of the next one, which would then be read too.
    exact = level_map.detach()
    return level_map + (exact.clamp(low[:, None, None, None], high[:, None, None, None]) - exact)

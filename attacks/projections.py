"""The numerics of sparse sets: nearest points, and the best way to spend a budget. Rows never mix."""

from __future__ import annotations

import torch
from torch import Tensor

from transforms.sampling.homography import wide_dtype

#: Steps of a search that ends when nothing moves: halvings alone would need as many.
MOST = 60


def onto_l1(values: Tensor, radius: float, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point of {||y||_1 <= radius} and {low <= y <= high}, row by row: (N,D) -> (N,D).

    `low` <= 0 <= `high`, which may be infinite: then it is the projection of Duchi et al. 2008 (Efficient Projections
    onto the L1-Ball, fig. 1). With bounds (Croce & Hein 2021, Mind the Box) the solution is y = sign(v) *
    clamp(|v| - t, 0, room), and the norm falls as t grows: t is found by Newton's method, kept within a bracket.
    """
    wide = wide_dtype(values)
    size = values.abs().to(wide)
    room = torch.where(values > 0, high, -low).to(wide).expand_as(size)
    far = torch.minimum(size, room).sum(1) > radius
    if not bool(far.any()):
        return values.clamp(low, high)
    t = left = torch.zeros_like(size[:, :1])
    right = size.amax(1, keepdim=True)
    for _ in range(MOST):
        near = (size - t).clamp(min=0).minimum(room)
        over = (near.sum(1, keepdim=True) - radius) * far[:, None]
        # The norm falls in straight pieces, each as steep as there are values that t still moves.
        free = (near > 0) & (near < room)
        count = free.sum(1, keepdim=True)
        newton = torch.where(count > 0, t + over / count.clamp(min=1), torch.where(over == 0, t, torch.inf))
        if bool((newton == t).all()):
            break
        left, right = torch.where(over > 0, t, left), torch.where(over < 0, t, right)
        outside = (newton <= left) | (newton >= right)
        t = torch.where(outside & (newton != t), (left + right) / 2, newton)
    # Where |v| is large, so is the rounding of t; here all is small.
    near = (near - over / count.clamp(min=1) * free).clamp(min=0).minimum(room)
    return (values.sign() * near).to(values.dtype)


def onto_l0(values: Tensor, count: int, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point with at most `count` pixels other than zero and low <= y <= high: (N,C,H,W) -> (N,C,H,W).

    `low` <= 0 <= `high`. A kept pixel is clamped, another is zero; so those are kept for which clamping instead of
    dropping saves most of the squared distance.
    """
    near = values.clamp(low, high)
    wide = wide_dtype(values)
    lost, moved = values.to(wide), (values - near).to(wide)
    saved = (lost.square() - moved.square()).sum(1)
    return near * best_pixels(saved, count)


def best_pixels(worth: Tensor, count: int) -> Tensor:
    """The `count` pixels of the highest worth (N,H,W), of those above 0, as a mask (N,1,H,W)."""
    flat = worth.flatten(1)
    best = flat.topk(min(count, flat.shape[1]), 1).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter(1, best, True) & (flat > 0)
    return mask.view_as(worth)[:, None]


def knapsack(worth: Tensor, room: Tensor, budget: Tensor) -> Tensor:
    """How much of each item to take, at most its room, so that the sum of amount * worth is largest and that of the
    amounts at most `budget`: (N,D) >= 0, (N,D) >= 0, (N,) -> (N,D). The fractional knapsack: dearest first."""
    wide = wide_dtype(worth)
    order = worth.argsort(dim=1, descending=True, stable=True)
    sorted_room = room.gather(1, order).to(wide)
    before = sorted_room.cumsum(1) - sorted_room
    taken = (budget.to(wide)[:, None] - before).clamp(min=0).minimum(sorted_room)
    return torch.zeros_like(room).scatter(1, order, taken.to(room))

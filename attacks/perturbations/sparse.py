"""The L1 and L0 balls: few values change, by much, so the box [0,1] is active nearly everywhere."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from attacks.perturbations.ball import (
    Ball,
    check_number,
    from_levels,
    headroom,
    into_box,
    per_picture,
    rounded,
    to_levels,
)
from transforms.devices import wide_dtype

#: Most steps of the root search: as many as bisection alone would need.
MAX_STEPS = 60


def onto_l1(values: Tensor, radius: float, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point of {||y||_1 <= radius} and {low <= y <= high}, row by row: (N,D) -> (N,D).

    `low` <= 0 <= `high`, which may be infinite: then it is the projection of Duchi et al. 2008 (Efficient Projections
    onto the L1-Ball, fig. 1). With bounds (Croce & Hein 2021, Mind the Box) the solution is y = sign(v) * clamp(|v| -
    t, 0, room), room the bound on that side, and the norm falls as t grows: t is found by Newton's method, kept
    within a bracket.
    """
    wide = wide_dtype(values)
    size = values.abs().to(wide)
    headroom = torch.where(values > 0, high, -low).to(wide).expand_as(size)
    far = torch.minimum(size, headroom).sum(1) > radius
    if not bool(far.any()):
        return values.clamp(low, high)
    t = left = torch.zeros_like(size[:, :1])
    right = size.amax(1, keepdim=True)
    for _ in range(MAX_STEPS):
        near = (size - t).clamp(min=0).minimum(headroom)
        excess = (near.sum(1, keepdim=True) - radius) * far[:, None]
        # The norm is piecewise linear in t; its slope is minus the number of free values.
        free = (near > 0) & (near < headroom)
        count = free.sum(1, keepdim=True)
        newton = torch.where(count > 0, t + excess / count.clamp(min=1), torch.where(excess == 0, t, torch.inf))
        if bool((newton == t).all()):
            break
        left, right = torch.where(excess > 0, t, left), torch.where(excess < 0, t, right)
        outside = (newton <= left) | (newton >= right)
        t = torch.where(outside & (newton != t), (left + right) / 2, newton)
    # Large |v| means a large rounding error of t; this correction removes it.
    near = (near - excess / count.clamp(min=1) * free).clamp(min=0).minimum(headroom)
    return (values.sign() * near).to(values.dtype)


def onto_l0(values: Tensor, count: int, low: Tensor, high: Tensor) -> Tensor:
    """The nearest point with at most `count` pixels other than zero and low <= y <= high: (N,C,H,W) -> (N,C,H,W).

    `low` <= 0 <= `high`. Selected pixels are clamped, others are zero; those are selected that reduce the squared
    distance most.
    """
    near = values.clamp(low, high)
    wide = wide_dtype(values)
    gain = (values.to(wide).square() - (values - near).to(wide).square()).sum(1)
    return near * best_pixels(gain, count)


def best_pixels(worth: Tensor, count: int) -> Tensor:
    """A mask (N,1,H,W) of the `count` pixels with the largest positive worth (N,H,W)."""
    flat = worth.flatten(1)
    best = flat.topk(min(count, flat.shape[1]), 1).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter(1, best, True) & (flat > 0)
    return mask.view_as(worth)[:, None]


def knapsack(worth: Tensor, headroom: Tensor, budget: Tensor) -> Tensor:
    """The fractional knapsack: amounts (N,D), each at most its `headroom` (N,D) >= 0, with a sum of at most `budget`
    (N,) and the largest sum of amount * `worth` (N,D) >= 0. Greedy by worth."""
    wide = wide_dtype(worth)
    order = worth.argsort(dim=1, descending=True, stable=True)
    sorted_room = headroom.gather(1, order).to(wide)
    previous = sorted_room.cumsum(1) - sorted_room
    amounts = (budget.to(wide)[:, None] - previous).clamp(min=0).minimum(sorted_room)
    return torch.zeros_like(headroom).scatter(1, order, amounts.to(headroom))


#: The move of a value of average gradient in an L0 step, in units of `length`. Measured on photographs (10, 40 and
#: 160 pixels of 96 x 96, with and without camera views): stronger than 1, 3 and 10 everywhere; the published step is
#: about 1.
STRIDE = 100


@dataclass(frozen=True)
class L1(Ball):
    """The sum of all changes of each picture's values, in [0,1] units, is at most `eps`.

    Use: few values that change much, by a total that is bounded.
    Not: a number of pixels: `L0`.
    Source: the projection of Duchi et al. 2008, within the box.
    Cost: a sort of the values.
    Oracle: Duchi's projection, the dual and a linear program, tests/perturbations/test_ball.py.

    Examples:
        >>> from attacks.perturbations import L1
        >>> images, delta = torch.full((1, 1, 1, 3), 0.5), torch.tensor([[[[0.5, 0.25, -0.125]]]])
        >>> L1(eps=0.5).project(delta, images).flatten().tolist()
        [0.375, 0.125, 0.0]
    """

    eps: float = 100.0
    random_start: bool = True

    def __post_init__(self) -> None:
        check_number(self.eps, "100")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(f"`eps` must be a positive number, got {self.eps:g} (it is as many values, from 0 to 1)")

    def steepest(self, grad: Tensor) -> Tensor:
        flat = grad.flatten(1)
        best = flat.abs().argmax(1, keepdim=True)
        return torch.zeros_like(flat).scatter(1, best, flat.gather(1, best).sign()).view_as(grad)

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """The values with the largest gain along `direction`, each to the end of its range, until `eps` is used
        up."""
        return into_box(self.descend(-direction, self.eps, torch.zeros_like(direction), images), images)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor | None) -> Tensor:
        """The move of norm `length` or less that lowers the loss most, to first order, and keeps the picture in
        [0,1]: the values of the largest gradient, each as far as it has room."""
        down, up = headroom(delta, images)
        worth, free = grad.abs().flatten(1), torch.where(grad > 0, down, up).flatten(1)
        budget = torch.as_tensor(length, dtype=grad.dtype, device=grad.device).expand(len(grad))
        return -grad.sign() * knapsack(worth, free, budget).view_as(grad)

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        down, up = headroom(torch.zeros_like(delta), images)
        nearest = onto_l1(delta.flatten(1), self.eps, -down.flatten(1), up.flatten(1))
        return into_box(nearest.view_as(delta), images)

    def norm(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).abs().sum(1)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        return rounded(delta, images, self.eps, 1)


@dataclass(frozen=True)
class L0(Ball):
    """At most `eps` pixels of each picture change, in as many channels and as far as [0,1] allows.

    Use: a bound on how many pixels are touched.
    Not: changes that nobody should see: each pixel may change as far as it can.
    Source: this project's own: the nearest point keeps the pixels that change most.
    Cost: a sort of the pixels.
    Oracle: the best of all subsets, tests/perturbations/test_ball.py.
    With: perturbation.eps=200

    Examples:
        >>> from attacks import L0
        >>> images, delta = torch.full((1, 3, 1, 3), 0.5), torch.tensor([0.25, 0.375, 0.125]).expand(1, 3, 1, 3)
        >>> L0(eps=2).norm(delta).item(), L0(eps=2).project(delta, images)[0, 0].tolist()
        (3.0, [[0.25, 0.375, 0.0]])
    """

    reach: ClassVar[float] = 1.0  # the range of a value: eps counts pixels
    eps: float = 200.0
    random_start: bool = True

    def __post_init__(self) -> None:
        check_number(self.eps, "200")
        if not (self.eps >= 1 and math.isfinite(self.eps) and self.eps == int(self.eps)):
            raise ValueError(f"`eps` must be a whole number of pixels, at least 1; got {self.eps:g}")
        object.__setattr__(self, "eps", int(self.eps))

    def sized(self, eps: float) -> Self:
        return replace(self, eps=max(1, int(eps)))

    def in_files(self, eps: Tensor) -> Tensor:
        """Whole pixels, at least one."""
        return eps.floor().clamp(min=1)

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """The pixels with the largest gain along `direction`, to the end of their range."""
        down, up = headroom(torch.zeros_like(direction), images)
        ends = torch.where(direction > 0, up, down) * direction.sign()
        return into_box(ends * best_pixels((direction * ends).sum(1), int(self.eps)), images)

    def steepest(self, grad: Tensor) -> Tensor:
        return grad.sign() * best_pixels(grad.abs().sum(1), 1)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor | None) -> Tensor:  # noqa: ARG002
        """A move of all pixels along the gradient, of which the projection then selects the best, as in PGD0 (Croce &
        Hein 2019, Sparse and Imperceivable Adversarial Attacks, section 4); else no new pixel could enter. A value of
        average gradient moves by `STRIDE` times `length`.

        With the projection it maximises `-<grad, v> - |v - delta|^2 / 2t`, t proportional to `length`: the smaller it
        is, the larger the gain that a new pixel needs to replace one that has already moved.
        """
        mean = grad.abs().flatten(1).mean(1).clamp(min=torch.finfo(grad.dtype).tiny)
        return -STRIDE * per_picture(length) * (grad / per_picture(mean))

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        down, up = headroom(torch.zeros_like(delta), images)
        return into_box(onto_l0(delta, int(self.eps), -down, up), images)

    def norm(self, delta: Tensor) -> Tensor:
        return (delta != 0).any(1).flatten(1).sum(1).to(delta.dtype)

    def length(self, delta: Tensor) -> Tensor:
        """The largest value: `reach` is the range of one."""
        return delta.flatten(1).abs().amax(1)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, within its own pixels."""
        return torch.where(delta != 0, from_levels(to_levels(delta, images), images), 0)

"""What sets that wrap another one share."""

from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.perturbations.ball import Ball, check_inner
from transforms.sampling.straight_through import Map


class Wrapper(Ball):
    """The set `inner`, restricted to a subspace by the projection `only`, which directions, gradients and moves
    pass."""

    inner: Ball

    def __post_init__(self) -> None:
        check_inner(self.inner, type(self).__name__)

    @property
    def innermost(self) -> Ball:
        return self.inner.innermost if isinstance(self.inner, Wrapper) else self.inner

    eps = property(lambda self: self.inner.eps)
    reach = property(lambda self: self.inner.reach)
    random_start = property(lambda self: self.inner.random_start)

    def sized(self, eps: float) -> Self:
        return replace(self, inner=self.inner.sized(eps))  # type: ignore[type-var]

    def in_files(self, eps: Tensor) -> Tensor:
        return self.inner.in_files(eps)

    def only(self, delta: Tensor) -> Tensor:
        """The orthogonal projection onto the subspace."""
        return delta

    def take(self, rows: Tensor) -> Self:
        inner = self.inner.take(rows)
        return self if inner is self.inner else replace(self, inner=inner)  # type: ignore[type-var]

    def restrict(self, delta: Tensor) -> Tensor:
        return self.only(self.inner.restrict(delta))

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        return self.only(self.inner.draw(like, generator))

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self.inner.farthest(self.only(direction), images)

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self.inner.inside(self.only(direction), images)

    def shown(self, delta: Tensor) -> Tensor:
        """The delta itself, whose gradient is restricted, and so are its noise and an optimiser's momentum."""
        return filter_gradient(self.inner.shown(delta), self.only)

    def steepest(self, grad: Tensor) -> Tensor:
        return self.only(self.inner.steepest(self.only(grad)))

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor | None) -> Tensor:
        return self.only(self.inner.descend(self.only(grad), length, delta, images))

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        return self.project(self.restrict(((images + delta) + by) - images), images)

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self.inner.project(self.only(delta), images)

    def norm(self, delta: Tensor) -> Tensor:
        return self.inner.norm(delta)

    def length(self, delta: Tensor) -> Tensor:
        return self.inner.length(delta)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        return self.inner.in_levels(self.only(delta), images)


def filter_gradient(delta: Tensor, by: Map) -> Tensor:
    """Returns `delta`; its gradient passes through `by`, which must be linear and self-adjoint."""
    return _GradientFilter.apply(delta, by)  # type: ignore[no-any-return]


class _GradientFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, by: Map) -> Tensor:
        ctx.by = by
        return delta.view_as(delta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.by(grads[0]), None

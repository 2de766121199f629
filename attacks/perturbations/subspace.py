"""Perturbation sets restricted to a linear subspace: some pixels, or grey. Each wraps another set; they nest."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.perturbations.ball import Ball, check_inner, from_levels, to_levels
from attacks.perturbations.sparse import L1
from transforms.devices import uploaded

Map = Callable[[Tensor], Tensor]


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


@dataclass(frozen=True, eq=False)
class Masked(Wrapper):
    """Only where `mask` is 1 may the delta differ from zero; the delta is masked, never the picture.

    `mask` holds zeros and ones, (1,1,H,W) for all pictures or (N,1,H,W), one for each. The norm, its dual and the
    random points are those of `inner` on the masked pixels.

    Examples:
        >>> import torch
        >>> from attacks import Linf
        >>> from attacks.perturbations import Masked
        >>> mask = torch.tensor([[[[1.0, 0.0]]]])
        >>> Masked(Linf(0.25), mask).project(torch.ones(1, 3, 1, 2), torch.zeros(1, 3, 1, 2))[0, 0].tolist()
        [[0.25, 0.0]]
    """

    inner: Ball
    mask: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        shape, mask = tuple(self.mask.shape), self.mask
        if len(shape) != 4 or shape[1] != 1:
            raise ValueError(f"`mask` must be (1,1,H,W), or (N,1,H,W) with one row for each picture; got {shape}")
        if not bool(((mask == 0) | (mask == 1)).all()):
            low, high = float(mask.min()), float(mask.max())
            raise ValueError(f"`mask` must hold zeros and ones only; got values from {low:g} to {high:g} (try > 0.5)")
        if not bool(mask.flatten(1).any(1).all()):
            row = int((~mask.flatten(1).any(1)).nonzero()[0, 0])
            raise ValueError(f"`mask` must leave every picture a pixel; got row {row} with none")

    def only(self, delta: Tensor) -> Tensor:
        """The delta within the mask. Raises ValueError if the mask does not fit."""
        rows, size = len(self.mask), self.mask.shape[2:]
        if rows not in (1, len(delta)) or size != delta.shape[2:]:
            raise ValueError(
                f"`mask` must be (1,1,H,W) or a row for each picture; got {(*self.mask.shape,)} for {(*delta.shape,)}"
            )
        return delta * self.mask.to(delta)

    def length(self, delta: Tensor) -> Tensor:
        """That of the part within the mask."""
        return self.inner.length(self.only(delta.expand(max(len(delta), len(self.mask)), -1, -1, -1)))

    def restrict(self, delta: Tensor) -> Tensor:
        """The delta within the mask. `inner` is not applied again: it would smooth a band at the mask's edge."""
        return self.only(delta)

    def take(self, rows: Tensor) -> Self:
        if len(self.mask) == 1:
            return super().take(rows)
        part = copy(self)  # to check the mask again in every pass would wait for its device
        object.__setattr__(part, "inner", self.inner.take(rows))
        object.__setattr__(part, "mask", self.mask[uploaded(rows, self.mask.device)])
        return part


@dataclass(frozen=True)
class Grey(Wrapper):
    """The same delta in all channels: changes lightness and not chroma. Not for L1, whose `eps` it would not fill.

    Examples:
        >>> import torch
        >>> from attacks import Linf
        >>> from attacks.perturbations import Grey
        >>> grad = torch.tensor([3.0, -1.0, -1.0]).view(1, 3, 1, 1)
        >>> Linf().steepest(grad).flatten().tolist(), Grey(Linf()).steepest(grad).flatten().tolist()
        ([1.0, -1.0, -1.0], [1.0, 1.0, 1.0])
    """

    inner: Ball

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.innermost, L1):
            raise ValueError("`grey` cannot be combined with an L1 ball, which it would not fill; use L2, Linf or L0")

    def only(self, delta: Tensor) -> Tensor:
        return delta.mean(1, keepdim=True).expand_as(delta)

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().farthest(direction, images))

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().inside(direction, images))

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().project(delta, images))

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, still grey to rounding and within `eps`."""
        return from_levels(self._smallest_channel(to_levels(super().in_levels(delta, images), images)), images)

    def _smallest_channel(self, delta: Tensor) -> Tensor:
        """The channel of least magnitude, in all channels: shrinking a value never leaves a ball or the box."""
        return delta.gather(1, delta.abs().argmin(1, keepdim=True)).expand_as(delta)


def filter_gradient(delta: Tensor, by: Map) -> Tensor:
    """Returns `delta`; its gradient passes through `by`, which must be linear and self-adjoint."""
    result: Tensor = _GradientFilter.apply(delta, by)
    return result


class _GradientFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, by: Map) -> Tensor:
        ctx.by = by
        return delta.view_as(delta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.by(grads[0]), None

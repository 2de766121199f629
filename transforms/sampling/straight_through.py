"""Forward one map, backward another: for maps whose own derivative is zero or unknown (rounding, file formats)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Map = Callable[[Tensor], Tensor]

#: How many units of rounding beyond [0,1] a sum of weights that add up to 1 may leave (2e-6 in float32).
ROUNDING = 16


def straight_through(real: Tensor, surrogate: Tensor) -> Tensor:
    """`real`, bit for bit; its gradient goes to `surrogate` as if that had been returned (Bengio et al. 2013).
    ValueError where the two differ in shape or dtype."""
    if real.shape != surrogate.shape or real.dtype != surrogate.dtype:
        raise ValueError(
            "`surrogate` must have the shape and dtype of `real`; got "
            f"{tuple(surrogate.shape)} {surrogate.dtype} for {tuple(real.shape)} {real.dtype}"
        )
    return _StraightThrough.apply(real.detach(), surrogate)  # type: ignore[no-any-return]


def backward_through(images: Tensor, real: Map, surrogate: Map) -> Tensor:
    """`real(images)`; the gradient is the vector-Jacobian product of `surrogate` at the same images (BPDA, Athalye et
    al. 2018).

    `surrogate` runs in the backward pass alone: a forward pass costs `real`, and no graph is kept between the two.
    Both maps must return the same shape. A second derivative is refused.
    """
    return _BackwardThrough.apply(images, real, surrogate)  # type: ignore[no-any-return]


def saturate(values: Tensor) -> Tensor:
    """Clamp to [0,1], with derivative 1 on the ends as well as between them, and where only rounding leaves [0,1].

    On its bounds `torch.clamp` has derivative 1 or 0 by version (0 in torch 2.15), and a picture of 8 bits is full of
    exact zeros and ones. The mean of a white region is 1 but for rounding, so `ROUNDING` units beyond count as 1.
    """
    return _Saturate.apply(values)  # type: ignore[no-any-return]


def tolerance(dtype: torch.dtype) -> float:
    """The distance from a bound that counts as rounding in this dtype (which half precision shares with single)."""
    return ROUNDING * torch.finfo(torch.promote_types(dtype, torch.float32)).eps


class _Saturate(torch.autograd.Function):
    """The backward pass is one kernel, itself differentiable."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.clamp(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        # The kernel's bounds are outside: the next numbers beyond the tolerance.
        far = tolerance(values.dtype)
        eps = far / ROUNDING
        low, high = -far * (1 + eps), 1 + far + eps
        return torch.ops.aten.hardtanh_backward(grad, values, low, high)  # type: ignore[no-any-return]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, real: Tensor, _surrogate: Tensor) -> Tensor:
        return real.view_as(real)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


class _BackwardThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, real: Map, surrogate: Map) -> Tensor:
        ctx.save_for_backward(images)
        ctx.surrogate = surrogate
        return real(images)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (images,) = ctx.saved_tensors
        with torch.enable_grad():
            source = images.detach().requires_grad_()
            (product,) = torch.autograd.grad(ctx.surrogate(source), source, grads[0])
        return product, None, None

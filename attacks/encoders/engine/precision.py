"""Half precision after the preprocessing, and the scaled loss that float16 needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd

from attacks.encoders.tree import Tree

SCALE = 2.0**14


class Overflow(ArithmeticError):
    """The gradient of a float16 pass is beyond its range. The scale has been halved: do the same pass again."""


def make_low(module: nn.Module, dtype: torch.dtype) -> int:
    """Hold, in place, the weights of convolutions and linear layers in `dtype`; call the module in `half_pass` then.

    Autocast begins at the first of these layers: it would round the matrices of a resize too, and that doubles the
    error of the whole gradient. Weights are cast once, as autocast casts frozen ones in every pass. Returns
    how many layers there are.
    """

    def begin(layer: _ConvNd | nn.Linear, _: Any) -> None:
        torch.set_autocast_enabled(layer.weight.device.type, True)

    layers = [layer for layer in module.modules() if isinstance(layer, _ConvNd | nn.Linear)]
    for layer in layers:
        layer.to(dtype)
        layer.register_forward_pre_hook(begin)
    return len(layers)


def half_pass(module: nn.Module, images: Tensor, dtype: torch.dtype, **which: Any) -> Tree:
    """`module(images)` in float32 up to the first layer of `make_low`, and under autocast after it."""
    # Entered disabled, for its dtype, and for putting the state back at the end.
    with torch.autocast(images.device.type, dtype, enabled=False, cache_enabled=False):
        answer: Tree = module(images.float(), **which)
    return answer


class LossScale:
    """Multiplies the gradient on its way into an encoder's backward pass, and divides it by the same on its way out.

    float16 holds nothing below 6e-8, and a gradient of a cosine has much that is smaller.
    """

    def __init__(self, value: float = SCALE) -> None:
        self.value = value

    def enter(self, images: Tensor) -> Tensor:
        """The images, bit for bit. In the backward pass: raises `Overflow` and halves the scale if the gradient is
        not finite. At scale 1 it lets the gradient pass: then scaling is not the cause."""
        return _Enter.apply(images, self)  # type: ignore[no-any-return]

    def leave(self, features: Tensor) -> Tensor:
        """The features, bit for bit."""
        return _Leave.apply(features, self)  # type: ignore[no-any-return]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, scale: LossScale) -> Tensor:
        ctx.scale = scale
        return images.view_as(images)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scale = ctx.scale
        if scale.value > 1 and not bool(grads[0].isfinite().all()):
            scale.value /= 2
            raise Overflow(
                f"a float16 gradient is not finite; the loss scale is now {scale.value:g}: repeat the pass"
            )
        return grads[0] / scale.value, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, scale: LossScale) -> Tensor:
        ctx.scale = scale
        return features.view_as(features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale.value, None

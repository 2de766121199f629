"""Half precision after the preprocessing, and the loss scaling that float16 needs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

SCALE = 2.0**14


class Overflow(ArithmeticError):
    """The gradient of a float16 pass overflowed. The loss scale has been halved: repeat the pass."""


def make_low(module: nn.Module, dtype: torch.dtype) -> int:
    """Cast, in place, the weights of convolutions and linear layers to `dtype`; run the module with `half_pass`.

    Autocast begins at the first of these layers: it would round the matrices of a resize too, which doubles the
    error of the whole gradient. Weights are cast once, because autocast casts frozen ones in every pass. Returns the
    number of layers.
    """

    def begin(layer: _ConvNd | nn.Linear, _: Any) -> None:
        torch.set_autocast_enabled(layer.weight.device.type, True)

    layers = [layer for layer in module.modules() if isinstance(layer, _ConvNd | nn.Linear)]
    for layer in layers:
        layer.to(dtype)
        layer.register_forward_pre_hook(begin)
    return len(layers)


class LossScale:
    """Multiplies the gradient where it enters an encoder's backward pass, and divides it where it leaves.

    float16 has nothing below 6e-8, and many entries of a cosine's gradient are smaller.
    """

    def __init__(self, value: float = SCALE) -> None:
        self.value = value

    def enter(self, images: Tensor) -> Tensor:
        """The images, bit for bit. The backward pass halves the scale and raises `Overflow` where the gradient is not
        finite, unless the scale is 1: then scaling is not the cause."""
        return hooked(images, self._divide)

    def leave(self, features: Tensor) -> Tensor:
        """The features, bit for bit."""
        return hooked(features, lambda gradient: gradient * self.value)

    def _divide(self, gradient: Tensor) -> Tensor:
        if self.value > 1 and not bool(gradient.isfinite().all()):
            self.value /= 2
            raise Overflow(f"a float16 gradient is not finite; the loss scale is now {self.value:g}: repeat the pass")
        return gradient / self.value


def hooked(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The same tensor, with `change` applied to its gradient."""
    view = tensor.view_as(tensor)
    if view.requires_grad:
        view.register_hook(change)
    return view

"""bfloat16 after the preprocessing, and the repeated passes of encoders that are in float16 themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from attacks.encoders.tree import Encoder, Tree, map_tree
from transforms.doors import unchecked


class Overflow(ArithmeticError):
    """The gradient of a pass overflowed in an encoder's own float16. Its scale is now smaller: repeat the pass."""


def make_low(module: nn.Module) -> int:
    """Cast, in place, the weights of convolutions and linear layers to bfloat16; run the module with
    `low_pass`.

    Autocast begins at the first of these layers: it would round the matrices of a resize too, which doubles the
    error of the whole gradient. Weights are cast once, because autocast casts frozen ones in every pass. Returns the
    number of layers.
    """

    def begin(layer: _ConvNd | nn.Linear, _: Any) -> None:
        torch.set_autocast_enabled(layer.weight.device.type, True)

    layers = [layer for layer in module.modules() if isinstance(layer, _ConvNd | nn.Linear)]
    for layer in layers:
        layer.to(torch.bfloat16)
        layer.register_forward_pre_hook(begin)
    return len(layers)


def low_pass(run: Encoder, images: Tensor, **draws: Any) -> Tree:
    """A pass under autocast: of a module from the first layer of `make_low` on, of a plain callable as a whole. Its
    features have the dtype of the images."""
    # Of a module it is entered disabled: `make_low` enables it, and the context restores the state.
    whole = not isinstance(run, nn.Module)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=whole, cache_enabled=False):
        features = unchecked(run)(images.float(), **draws)
    return map_tree(features, lambda leaf: leaf.to(images.dtype))


def hook_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A view of a tensor whose gradient goes through `change`."""
    view = tensor.view_as(tensor)
    if view.requires_grad:
        view.register_hook(change)
    return view

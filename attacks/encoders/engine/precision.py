"""Passes in a lower precision: TF32, whose factors are rounded to 11 bits and summed in float32, and bfloat16."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.conv import _ConvNd

from attacks.encoders.tree import Encoder, Tree, leaves, map_tree
from transforms.doors import unchecked

#: The first generation of NVIDIA GPUs with TF32.
CAPABILITY = (8, 0)


class Overflow(ArithmeticError):
    """The gradient of a pass overflowed in an encoder's own float16. Its scale is now smaller: repeat the pass."""


def has_tf32(device: torch.device) -> bool:
    """Whether a device has TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY


def allow_tf32(is_allowed: bool) -> None:
    """Whether float32 may be TF32 in this process. Torch's own default is true for convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_allowed


def tf32_pass(run: Encoder, images: Tensor, **draws: Any) -> Tree:
    """What `run` returns; it and its backward pass are in TF32, and nothing else is.

    The switch is the whole process's, so the backward pass has a graph of its own, around which it is on. It is off
    afterwards, also where memory ran out. The gradient has no gradient of its own.
    """
    if not (torch.is_grad_enabled() and images.requires_grad):
        with _tf32():
            return unchecked(run)(images, **draws)
    tree: Tree = None

    def inner(inside: Tensor) -> list[Tensor]:
        nonlocal tree
        tree = run(inside, **draws)
        return leaves(tree)

    features = iter(_Pass.apply(images, inner))
    return map_tree(tree, lambda _: next(features))


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, inner: Callable[[Tensor], list[Tensor]]) -> tuple[Tensor, ...]:
        with torch.enable_grad(), _tf32():
            ctx.images = images.detach().requires_grad_()
            ctx.features = inner(ctx.images)
        return tuple(feature.detach() for feature in ctx.features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        pairs = [pair for pair in zip(ctx.features, grads, strict=True) if pair[0].requires_grad]
        if not pairs:
            return None, None
        features, pullbacks = zip(*pairs, strict=True)
        with _tf32():
            (gradient,) = torch.autograd.grad(features, ctx.images, pullbacks, allow_unused=True)
        return gradient, None


@contextmanager
def _tf32() -> Iterator[None]:
    allow_tf32(True)
    try:
        yield
    finally:
        allow_tf32(False)


def make_low(module: nn.Module) -> int:
    """Cast, in place, the weights of convolutions and linear layers to bfloat16; run the module with `low_pass`.

    Autocast begins at the first of these layers: it would round the matrices of a resize too, which doubles the error
    of the whole gradient. Weights are cast once, because autocast casts frozen ones in every pass. Returns the number
    of layers.
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
    is_callable = not isinstance(run, nn.Module)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=is_callable, cache_enabled=False):
        features = unchecked(run)(images.float(), **draws)
    return map_tree(features, lambda leaf: leaf.to(images.dtype))

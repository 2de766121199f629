"""TF32: products and convolutions of float32 on a GPU whose factors are rounded to 11 bits, and summed in float32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attacks.encoders.tree import Encoder, Tree, leaves, map_tree
from transforms.doors import unchecked

#: The first generation of NVIDIA GPUs with TF32.
CAPABILITY = (8, 0)


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

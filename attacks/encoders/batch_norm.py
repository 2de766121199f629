"""A workaround: torch computes a wrong batch-norm gradient for a batch of one on a CPU."""

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

Run = TypeVar("Run", bound=Callable[..., Generator[Any, Any, Any]])


def settle_batch_norm(module: nn.Module) -> list[RemovableHandle]:
    """Register a hook on every batch norm of a module that makes its gradient contiguous for a batch of one.

    Where maps become tokens, `flatten(2).transpose(1, 2)`, the gradient of one picture comes back with strides that
    `batch_norm_backward` of torch 2.15 misreads on a CPU. Values are then silently misplaced: the gradient of LeViT,
    EfficientFormer or XCiT has cosine 0 with the true one. Returns the handles of the new hooks.
    """
    return [
        layer.register_forward_hook(norm_hook)
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and norm_hook not in layer._forward_hooks.values()
    ]


def settles(run: Run) -> Run:
    """Decorate a generator whose first argument is a problem: a module's norms are settled while it runs."""

    @wraps(run)
    def whole(problem: Any, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
        handles = settle_batch_norm(problem.encoder) if isinstance(problem.encoder, nn.Module) else []
        try:
            return (yield from run(problem, *args, **options))
        finally:
            for handle in handles:
                handle.remove()

    return cast(Run, whole)


def norm_hook(_layer: nn.Module, _inputs: Any, answer: Any) -> None:
    """The hook. Compiled graphs have another batch norm."""
    if not torch.compiler.is_compiling() and isinstance(answer, Tensor) and answer.requires_grad and len(answer) == 1:
        answer.register_hook(_plain)


def _plain(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clone(memory_format=torch.contiguous_format)

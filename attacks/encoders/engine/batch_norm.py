"""Batch norms: their gradient for one picture, and their folding into the layer before them (Jacob et al. 2018)."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.utils.hooks import RemovableHandle

Run = TypeVar("Run", bound=Callable[..., Generator[Any, Any, Any]])


def settle_batch_norm(module: nn.Module) -> list[RemovableHandle]:
    """Register a hook on every batch norm of a module that makes its gradient contiguous for a batch of one: where
    maps become tokens it has strides that `batch_norm_backward` of torch 2.15 silently misreads on a CPU. Returns the
    handles of the new hooks."""
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
        answer.register_hook(lambda grad: None if grad is None else grad.clone(memory_format=torch.contiguous_format))


# Exact types: a subclass may pad or normalise in a way of its own.
CONVOLUTIONS: dict[type, type] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}

#: Of timm: a convolution that pads its input by its size, and a norm with dropout and an activation behind it.
CONV_SAME, NORM_ACT = "timm.layers.conv2d_same.Conv2dSame", "timm.layers.norm_act.BatchNormAct2d"

Pair = tuple[str, str]  # the names of a layer and of the batch norm after it


def foldable(encoder: Callable[[Tensor], Tensor]) -> int:
    """The number of batch norms that `fold` can fold."""
    return len(_pairs(encoder)) if isinstance(encoder, nn.Module) else 0


def fold(module: nn.Module) -> None:
    """Fold, in place, each batch norm that alone follows a convolution or a linear layer."""
    for first, second in _pairs(module):
        layer: Any = module.get_submodule(first)
        fuse: Any = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        norm: Any = module.get_submodule(second)
        module.set_submodule(first, fuse(layer, norm))
        rest: nn.Module = _NoNorm(layer.weight.dim())
        if _kind(norm) == NORM_ACT:
            rest = nn.Sequential(OrderedDict(drop=norm.drop, act=norm.act))
        module.set_submodule(second, rest)


def _kind(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


class _Tracer(fx.Tracer):
    """Does not look into the layers that can be folded."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _kind(m) in (CONV_SAME, NORM_ACT) or super().is_leaf_module(m, module_qualified_name)


class _NoNorm(nn.Module):
    """A stand-in for a batch norm, which normalises a linear layer's outputs only if there is no axis between."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.dims:
            raise ValueError(f"`fold` cannot fold a batch norm of shape {tuple(x.shape)}; set engine.fold=false")
        return x


def _pairs(module: nn.Module) -> list[Pair]:
    """Every pair, by names within `module`; a layer with two names (shared) is in none."""
    names = Counter(id(child) for _, child in module.named_modules(remove_duplicate=False))
    layers = {pair: (module.get_submodule(pair[0]), module.get_submodule(pair[1])) for pair in _search(module, "")}
    return [
        pair
        for pair, modules in layers.items()
        if _fits(*modules) and all(names[id(layer)] == 1 for layer in modules)
    ]


def _search(module: nn.Module, prefix: str) -> Iterator[Pair]:
    """The pairs in the largest traceable parts."""
    try:
        graph = _Tracer().trace(module)
    except Exception:  # tracing runs the encoder's code on proxies, which may raise anything
        if type(module) is nn.Sequential:
            names = [name for name, _ in module.named_children()]
            yield from ((prefix + f, prefix + s) for f, s in pairwise(names))
        for name, child in module.named_children():
            yield from _search(child, f"{prefix}{name}.")
        return
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    parents = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    for node in graph.nodes:
        source = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
            continue
        pair = str(source.target), str(node.target)
        if all(calls[name] == 1 and name not in parents for name in pair):
            yield prefix + pair[0], prefix + pair[1]


def _fits(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether `norm` after `layer` is an affine map of its channels, and neither has other hooks."""
    convolution = nn.Conv2d if _kind(layer) == CONV_SAME else type(layer)
    if convolution in CONVOLUTIONS:
        fits = type(norm) is CONVOLUTIONS[convolution] or (convolution is nn.Conv2d and _kind(norm) == NORM_ACT)
        matches = fits and layer.out_channels == norm.num_features
    else:
        matches = type(layer) is nn.Linear and type(norm) is nn.BatchNorm1d
        matches = matches and bool(norm.affine) and layer.out_features == norm.num_features
    if not matches or layer.training or norm.training or norm.running_mean is None:
        return False
    norm_hooks = [hook for hook in norm._forward_hooks.values() if hook is not norm_hook]
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, norm_hooks, norm._forward_pre_hooks)
    return not any(hooks) and layer.weight.dtype == norm.running_mean.dtype

"""Trees of features: one tensor, a mapping by layer or a tuple by encoder. Every tensor has a row for each picture or
view."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transforms.devices import uploaded
from transforms.doors import NOISE, door

#: A tensor (N,...), or a tuple or mapping of trees.
Tree = Any


class PictureModule(nn.Module):
    """The base of encoders: a call checks its pictures, and `unchecked` of it does not; hooks run in either."""

    @door(slack=NOISE)
    def __call__(self, images: Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(images, *args, **kwargs)

    __call__.behind = nn.Module.__call__  # type: ignore[attr-defined]  # one frame less in every step


def optional(encoder: object, name: str) -> Any:
    """What an encoder has beyond its call, by name (`signature`, `randomness`, `preprocess`, `texts`, the `encoder`
    that it wraps); None where it has none."""
    return getattr(encoder, name, None)  # any function from images to features is an encoder: no class declares these


def silence(encoder: object, rows: Any) -> Tensor | None:
    """Which rows (...,D) of a black box, which has a ledger, stand for no answer, those of zeros; None for another
    encoder."""
    while encoder is not None and optional(encoder, "ledger") is None:
        encoder = optional(encoder, "encoder")
    return None if encoder is None else ~rows.any(-1)


def adopt(wrapper: nn.Module, encoder: nn.Module) -> None:
    """Give a wrapper the encoder's `signature`, by which features are compared, and the `false_alarms` of its
    detector, where it has them."""
    for name in ("signature", "false_alarms"):
        if (value := optional(encoder, name)) is not None:
            setattr(wrapper, name, value)


def take(tree: Tree, rows: Tensor) -> Tree:
    """The `rows` of every tensor: a tree of the same shape."""
    if isinstance(tree, Tensor):
        return tree[uploaded(rows, tree.device)]
    return map_tree(tree, lambda leaf: leaf[uploaded(rows, leaf.device)])


def map_tree(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """`change` of every tensor: a tree of the same shape."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: map_tree(part, change) for name, part in tree.items()}
    return tuple(map_tree(part, change) for part in tree)


def join_trees(trees: Sequence[Tree], stack: Callable[[list[Tensor]], Tensor]) -> Tree:
    """One tree from several of the same shape, tensor by tensor, `stack` as `torch.cat` does."""
    if isinstance(trees[0], Tensor):
        return stack(list(trees))
    if isinstance(trees[0], Mapping):
        return {name: join_trees([tree[name] for tree in trees], stack) for name in trees[0]}
    return tuple(join_trees(parts, stack) for parts in zip(*trees, strict=True))


def length(tree: Tree) -> int:
    """The number of rows, the same in every tensor. Raises ValueError where they differ, or where there is none."""
    counts = {len(leaf) for leaf in leaves(tree)}
    if len(counts) != 1:
        raise ValueError(f"every part must have the same number of rows; got {sorted(counts) or 'no part'}")
    return counts.pop()


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, Mapping) else tree
    return [leaf for part in parts for leaf in leaves(part)]


def refuse_unready(encoder: object) -> None:
    """Raise ValueError for a module with weights on the meta device, which are not brought in by hooks (accelerate),
    or without an evaluation mode."""
    modules = list(encoder.modules()) if isinstance(encoder, nn.Module) else []
    title, is_filled = type(encoder).__name__, any(hasattr(module, "_hf_hook") for module in modules)
    if any("eval" in vars(module) and module.training for module in modules):  # torch.export's raises an error
        raise ValueError(
            f"encoder {title}: a program of torch.export has no evaluation mode: pass torch.export.unflatten(program)"
            ".eval(), exported in evaluation mode for any number of pictures, dynamic_shapes=({0: Dim('n')},)"
        )
    for module in [] if is_filled else modules:
        for name, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if weight.is_meta:
                raise ValueError(
                    f"encoder {title}: `{name}` of {type(module).__name__} is on the meta device, where there are no "
                    "numbers: load its weights, load_state_dict(state, assign=True)"
                )


def check_mode(encoder: object) -> None:
    """Raise ValueError for a module in training mode."""
    if isinstance(encoder, nn.Module) and encoder.training:
        refuse_unready(encoder)
        raise ValueError("`encoder` is in training mode, so its answers change from call to call; call .eval()")


Encoder = Callable[..., Tree]  # see attacks.eot.protocols
Texts = Callable[[Sequence[str]], Tensor]  # texts -> (T,D), in the space of the pictures


def embedding(value: Any, label: str, rows: int | None = None, *, tokens: bool = True) -> Tensor:
    """`value`, if it is an embedding: one floating-point tensor (N,D), or (N,T,D) where `tokens` may be. `rows` is N,
    `label` names it in errors. Raises ValueError with the change that makes it one."""
    fix, got = "", ""
    if not isinstance(value, Tensor):
        got, fix = _other(value)
    elif value.is_nested or value.layout != torch.strided:
        got, fix = "a sparse or nested one", "return answer.to_dense(), or answer.to_padded_tensor(0)"
    elif value.is_complex():
        got, fix = f"{value.dtype}", "return both of its parts, torch.view_as_real(answer).flatten(1)"
    elif value.is_floating_point() and value.itemsize == 1:
        got, fix = f"{value.dtype}", "widen it, answer.float()"
    elif not value.is_floating_point():
        got, fix = f"{value.dtype}", "return its numbers before they are rounded or compared, as floats"
    elif value.dim() == 4:
        fix = "it is a map: pool it, answer.mean((2, 3)), or flatten it, answer.flatten(1)"
    elif value.dim() < 2:
        fix = "keep one row a picture: no .squeeze(); answer[:, None] where a picture has one number"
    elif value.dim() > 3 or (value.dim() == 3 and not tokens):
        fix = "pool its tokens, answer.mean(1) or answer[:, 0], or flatten it, answer.flatten(1)"
    elif rows is not None and len(value) != rows:
        fix = "keep one row a picture, on the first axis"
    elif not value.shape[-1]:
        fix = "it is empty"
    if not fix:
        tensor: Tensor = value
        return tensor
    shapes = "(N,D) or (N,T,D)" if tokens else "(N,D)"
    count = "a row for each picture" if rows is None else f"a row for each of {rows} pictures"
    got = got or f"shape {tuple(value.shape)}"
    raise ValueError(f"{label} must be one floating-point tensor {shapes}, {count}; got {got}: {fix}")


def embeddings(answer: Any, label: str, rows: int) -> Tree:
    """`embedding` of every part of a dict (`Layers`) or a tuple (`Ensemble`)."""
    if type(answer) is dict and answer:
        return {name: embeddings(part, f"{label}, {name!r}", rows) for name, part in answer.items()}
    if type(answer) is tuple and answer:
        return tuple(embeddings(part, f"{label}, part {i}", rows) for i, part in enumerate(answer))
    return embedding(answer, label, rows)


def _other(value: Any) -> tuple[str, str]:
    """(description, fix) of an answer that is no tensor."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        first = next((name for name, part in value.items() if isinstance(part, Tensor)), "embedding")
        fix = f"return its embedding alone, such as answer[{first!r}]; `Each` compares layers"
        return f"a {kind} of {', '.join(map(str, value))}", fix
    if isinstance(value, tuple | list):
        fix = "return its embedding alone, such as answer[0]; `Members` compares encoders"
        return f"a {kind} of {len(value)}", fix
    if hasattr(value, "__array__"):
        return f"a NumPy {kind}", "compute in torch, for a gradient, or ask it as a black box (docs/black_box.md)"
    tensors = [name for name, part in getattr(value, "__dict__", {}).items() if torch.is_tensor(part)]
    return f"a {kind}", f"return its embedding alone{f', such as answer.{tensors[0]}' if tensors else ''}"

"""Trees of features: one tensor, a mapping by layer or a tuple by encoder. Every tensor has a row for each picture or
view."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def adopt(wrapper: nn.Module, encoder: nn.Module) -> None:
    """Give a wrapper the encoder's `signature`, by which features are compared, where it has one."""
    signature = optional(encoder, "signature")
    if signature is not None:
        wrapper.signature = signature


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
    """One tree from several of the same shape, tensor by tensor, `how` as `torch.cat` does."""
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


Encoder = Callable[..., Tree]  # see attacks.eot.protocols
Texts = Callable[[Sequence[str]], Tensor]  # texts -> (T,D), in the space of the pictures

"""Elementwise arithmetic of large pictures, some rows at a time, so that intermediate results stay in the cache."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

#: Values of a block: half a MiB in float32.
VALUES = 1 << 17


def blocks(*pictures: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same rows of some pictures (N,C,H,W) of one shape, block by block from the top; all at once where the
    pictures are small or not on the host."""
    first = pictures[0]
    rows = max(1, VALUES * first.shape[2] // max(1, first.numel()))
    if first.device.type != "cpu" or rows >= first.shape[2]:
        return [pictures]
    return zip(*[each.split(rows, 2) for each in pictures], strict=True)


def in_blocks(rule: Callable[..., Tensor], *pictures: Tensor) -> Tensor:
    """`rule(*pictures)`, to the bit, of a rule that is elementwise and keeps the type of the first picture."""
    result = torch.empty(pictures[0].shape, dtype=pictures[0].dtype, device=pictures[0].device)
    for part, *parts in blocks(result, *pictures):
        part.copy_(rule(*parts))
    return result

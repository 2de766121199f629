"""Arithmetic of large pictures, some values at a time, so that intermediate results stay in the cache."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

#: Values of a block: half a MiB in float32.
VALUES = 1 << 17


def value_blocks(*pictures: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same rows of some pictures (N,C,H,W) of one shape, block by block from the top, at most `VALUES` of a
    batch; all at once where the pictures are small or not on the host."""
    first = pictures[0]
    rows = max(1, VALUES * first.shape[2] // max(1, first.numel()))
    if first.device.type != "cpu" or rows >= first.shape[2]:
        return [pictures]
    return zip(*[row.split(rows, 2) for row in pictures], strict=True)


def columns(*batches: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The same columns of some batches (N,D), block by block, at most `VALUES` of a row, so that sums over a row do
    not depend on the other rows; all at once where they are not on the host."""
    first = batches[0]
    size = VALUES if first.device.type == "cpu" else max(1, first.shape[1])
    return zip(*[row.split(size, 1) for row in batches], strict=True)


def in_blocks(rule: Callable[..., Tensor], *pictures: Tensor) -> Tensor:
    """`rule(*pictures)` to the bit, for an elementwise rule; the result has the type of the first picture."""
    first, parts = pictures[0], [*value_blocks(*pictures)]
    if len(parts) == 1:
        return rule(*pictures).to(first.dtype)
    result = torch.empty(first.shape, dtype=first.dtype)
    for (block,), part in zip(value_blocks(result), parts, strict=True):
        block.copy_(rule(*part))
    return result

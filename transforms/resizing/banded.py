"""Products with banded matrices: resizing a large picture costs a few operations a pixel, whatever the target."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transforms.devices import HOST, uploaded

#: Rows of a block. Fewer touch fewer zeros, more make larger products.
ROWS = 16


class Block(NamedTuple):
    """Rows `start` to `stop` of a matrix: `weights` (stop - start, k) of the k columns that they use."""

    start: int
    stop: int
    columns: slice | Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Bands:
    """A matrix (out, length) with few weights in a row, near each other, and its transpose, as dense blocks.
    `used` are the columns that have a weight; if less than half (`is_sparse`), `transpose` has only theirs."""

    length: int
    used: Tensor
    is_sparse: bool
    blocks: tuple[Block, ...]
    transpose: tuple[Block, ...]

    @classmethod
    def of(cls, matrix: Tensor, device: torch.device = HOST) -> "Bands":
        """The blocks of a dense matrix (out, length) of the host, on `device`."""
        out, length = matrix.shape
        used = matrix.any(0).nonzero()[:, 0]
        is_sparse = 0 < 2 * len(used) < length
        rows = matrix.T[used] if is_sparse else matrix.T
        transpose = _blocks(rows, max(1, ROWS * len(rows) // out), device)
        return cls(length, uploaded(used, device), is_sparse, _blocks(matrix, ROWS, device), transpose)

    def down(self, images: Tensor) -> Tensor:
        """matrix @ images: (...,length,W) -> (...,out,W)."""
        product: Tensor = _BandedProduct.apply(images, self, -2, False)
        return product

    def across(self, images: Tensor) -> Tensor:
        """images @ matrix.mT: (...,H,length) -> (...,H,out)."""
        product: Tensor = _BandedProduct.apply(images, self, -1, False)
        return product

    def lines(self, images: Tensor, axis: int) -> Tensor:
        """The adjoint of `down` (axis -2) or `across` (axis -1); if `is_sparse`, only the lines used."""
        product: Tensor = _BandedProduct.apply(images, self, axis, True)
        return product

    def spread(self, lines: Tensor, axis: int) -> Tensor:
        """A picture from its `lines`: where they are few, zeros between them."""
        if not self.is_sparse:
            return lines
        shape = list(lines.shape)
        shape[axis] = self.length
        return lines.new_zeros(shape).index_copy_(axis, self.used, lines)


def _blocks(matrix: Tensor, rows: int, device: torch.device) -> tuple[Block, ...]:
    return tuple(_block(matrix[i : i + rows], i, device) for i in range(0, len(matrix), rows))


def _block(part: Tensor, start: int, device: torch.device) -> Block:
    used = part.any(0).nonzero()[:, 0]
    first, stop = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    dense = 2 * len(used) > stop - first
    columns = slice(first, stop) if dense else used
    weights = uploaded(part[:, columns].contiguous(), device)
    return Block(start, start + len(part), columns if dense else uploaded(used, device), weights)


def _product(images: Tensor, blocks: tuple[Block, ...], axis: int) -> Tensor:
    shape = list(images.shape)
    shape[axis] = blocks[-1].stop
    result = images.new_empty(shape)
    for start, stop, columns, weights in blocks:
        if axis == -2:
            result[..., start:stop, :] = weights @ images[..., columns, :]
        else:
            result[..., start:stop] = images[..., columns] @ weights.mT
    return result


class _BandedProduct(torch.autograd.Function):
    """The backward pass is one more product, of the transpose: autograd would add up a picture for each block."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, bands: Bands, axis: int, transpose: bool) -> Tensor:
        ctx.bands, ctx.axis, ctx.transpose = bands, axis, transpose
        return _product(images, bands.transpose if transpose else bands.blocks, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        bands, axis = ctx.bands, ctx.axis
        if ctx.transpose:
            return _BandedProduct.apply(bands.spread(grads[0], axis), bands, axis, False), None, None, None
        return bands.spread(bands.lines(grads[0], axis), axis), None, None, None

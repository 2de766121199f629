"""Deletion and insertion tests of a map: blocks of the picture are blurred, or restored, in the map's order (after
Petsiuk et al. 2018, who blacken single pixels and measure the probability of a class).

If the encoder depends on the map's first blocks, blurring them lowers the likeness early (a small area under the
deletion curve), and restoring them raises it early (a large area under the insertion curve). The baseline is a random
order.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from attacks.eot.batching import in_parts
from attacks.evaluation.explain.saliency import CountedEncoder
from transforms import GaussianBlur

#: Blocks along an axis, and the number of steps of a curve.
BLOCKS, STEPS = 16, 10
#: The blur's sigma, as a share of the shorter side. The authors' 5 pixels at 224 delete hardly anything: the pocket
#: encoder's cosine to the picture stays 0.93.
BLUR = 0.1


def curves(
    encoder: CountedEncoder, picture: Tensor, anchor: Tensor, orders: Mapping[str, Tensor], chunk: int
) -> dict[str, Tensor]:
    """Order -> (2,STEPS + 1): the likeness after deletion, and after insertion, of the first 0, 1/STEPS, ... all of
    the blocks. `picture` (3,H,W), `anchor` (D,), each order's `ranks` (H,W)."""
    blurred = blur(picture[None])[0]
    mixtures = []
    for ranks in orders.values():
        for first in masks(ranks.to(picture.device))[1:-1]:
            mixtures += [torch.where(first, blurred, picture), torch.where(first, picture, blurred)]
    pictures = torch.stack([picture, blurred, *mixtures])
    parts = in_parts(lambda part: encoder.judged(part, anchor[None]), pictures, chunk)
    likeness = torch.cat([part for _, part in parts]).cpu()
    ends, rest = likeness[:2], likeness[2:].view(len(orders), STEPS - 1, 2)
    return {
        order: torch.cat([ends[:, None], inner.mT, ends.flip(0)[:, None]], 1)
        for order, inner in zip(orders, rest, strict=True)
    }


def area(curve: Tensor) -> Tensor:
    """(...,STEPS + 1) over equal steps from 0 to 1 -> (...): the area under the curve, by trapezoids."""
    values = curve.double()
    return (values[..., 1:] + values[..., :-1]).mean(-1) / 2


def ranks(weights: Tensor, seed: int) -> Tensor:
    """(H,W) -> the rank (H,W) of each pixel's block, 0 for the largest mean weight. Blocks of equal weight are in
    random order, and so are all blocks of an empty map."""
    index = blocks(weights.shape[0], weights.shape[1])
    flat = index.flatten()
    means = torch.bincount(flat, weights.detach().cpu().double().flatten()) / torch.bincount(flat)
    shuffled = torch.randperm(len(means), generator=torch.Generator().manual_seed(seed))
    order = shuffled[means[shuffled].argsort(descending=True, stable=True)]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places[index]


def masks(ranks: Tensor) -> list[Tensor]:
    """Ranks (H,W) -> the first 0, 1/STEPS, ... all of the blocks, STEPS + 1 times (H,W) bool."""
    count = int(ranks.max()) + 1
    return [ranks < round(step * count / STEPS) for step in range(STEPS + 1)]


def blocks(height: int, width: int) -> Tensor:
    """(height,width): the index of each pixel's block."""
    rows, columns = min(BLOCKS, height), min(BLOCKS, width)
    y, x = torch.arange(height) * rows // height, torch.arange(width) * columns // width
    return y[:, None] * columns + x


def blur(pictures: Tensor) -> Tensor:
    """The replacement of deleted blocks; unlike grey it adds few edges."""
    sigma = BLUR * min(pictures.shape[2:])
    return GaussianBlur((sigma, sigma))(pictures, pictures.new_zeros(len(pictures), 1))

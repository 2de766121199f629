"""Where the true match stands among a gallery's rows, and what the nearest rows vote for.

The order is that of argmax: the more similar row first, of equal ones the first row. So rank 1 is `nearest`'s answer.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(similarity: Tensor, same: Tensor) -> Tensor:
    """The rank of the true match in each view: 1 + the rows of other identities that come before the best own row.

    Args:
        similarity: (V,G) of each view to each row of the gallery.
        same: (G,) bool, the rows that show the same as the picture; one at least.

    Returns:
        (V,) long, 1 where an own row comes first.
    """
    if not bool(same.any()):
        raise ValueError("`same` must hold the row of the true match; got none (is the picture in the gallery?)")
    if bool(similarity.isnan().any()):
        raise ValueError("`similarity` must hold numbers; got NaN, which has no rank (does the encoder overflow?)")
    row = similarity.masked_fill(~same, -torch.inf).argmax(1, keepdim=True)
    best = similarity.gather(1, row)
    earlier = torch.arange(len(same), device=same.device) < row
    before = (similarity > best) | ((similarity == best) & earlier)
    return 1 + before.sum(1)  # no own row is before the best one


def votes(similarity: Tensor, identity: Tensor, own: int, exclude: Tensor, k: int) -> Tensor:
    """Whether the k nearest rows vote for the right identity, view by view. Of identities with equally many votes
    the one whose nearest row is nearer wins.

    Args:
        similarity: (V,G) of each view to each row of the gallery.
        identity: (G,) whole numbers, equal for rows that show the same.
        own: the identity of the picture.
        exclude: (G,) bool, rows without a vote: the picture's own, for it would vote for itself.
        k: how many rows vote, at least 1; all there are where they are fewer.

    Returns:
        (V,) bool.
    """
    left = int((~exclude).sum())
    if k < 1 or left == 0:
        raise ValueError(f"`k` must be at least 1 with a row left to vote; got {k} of {left} rows")
    free, nearest = similarity.masked_fill(exclude, -torch.inf), []
    for _ in range(min(k, left)):  # k is small: quicker than to sort the gallery, and ties are argmax's
        row = free.argmax(1, keepdim=True)
        nearest.append(row)
        free = free.scatter(1, row, -torch.inf)
    said = identity[torch.cat(nearest, 1)]
    support = (said[:, :, None] == said[:, None]).sum(2)
    return said.gather(1, support.argmax(1, keepdim=True))[:, 0] == own


def recall_at(rank: Tensor, k: int) -> Tensor:
    """Whether the true match is among the first k: bool, of the shape of `rank`."""
    return rank <= k


def mrr(rank: Tensor) -> Tensor:
    """Reciprocal ranks, in float64; their mean is the MRR."""
    return rank.double().reciprocal()

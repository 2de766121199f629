"""Thresholds of verification: two pictures are accepted as the same where their cosine reaches a threshold, which is
set on pairs of untouched pictures of different things."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.evaluation.ranking import Rows

#: The most pairs of a gallery that are compared; of more, a sample spread evenly over all.
PAIRS = 1_000_000
#: Usual false accept rates, and the least number of false accepts for a threshold.
FARS = (1e-2, 1e-3, 1e-4)
ACCEPTS = 10
#: Pairs compared at once.
BLOCK = 2**14


@torch.no_grad()
def impostors(
    embeddings: Tensor | Rows, identity: Tensor | None = None, cluster: Tensor | None = None, limit: int = PAIRS
) -> Tensor:
    """The cosines (P,) of the `pairs` of impostors, float64 on the CPU, from `embeddings` (G,D), none of length 0."""
    unit = embeddings if isinstance(embeddings, Rows) else F.normalize(embeddings, dim=1)

    def pick(rows: Tensor) -> Tensor:
        return unit.pick(rows) if isinstance(unit, Rows) else unit[rows.to(unit.device)]

    halves = zip(*(half.split(BLOCK) for half in pairs(len(embeddings), identity, cluster, limit)), strict=True)
    return torch.cat([(pick(left) * pick(right)).sum(1).double().cpu() for left, right in halves])


def pairs(
    rows: int, identity: Tensor | None = None, cluster: Tensor | None = None, limit: int = PAIRS
) -> tuple[Tensor, Tensor]:
    """The pairs of rows of two identities and two clusters, each once; of more than `limit`, a sample is spread
    evenly over all. `identity` (G,) is equal for rows that show the same (None: all differ), `cluster` (G,) for rows
    that are not independent, such as tiles of one photograph."""
    labels = torch.arange(rows) if identity is None else identity.cpu()
    order = labels.argsort(stable=True)
    # With rows sorted by identity, the impostors of a row, each pair once, are all rows after its identity.
    ends = torch.searchsorted(labels[order].contiguous(), labels[order].contiguous(), right=True)
    totals = (rows - ends).cumsum(0)
    numbers = _spread(int(totals[-1]) if rows else 0, limit)
    first = torch.searchsorted(totals, numbers, right=True)
    left, right = order[first], order[rows - (totals[first] - numbers)]
    if cluster is None:
        return left, right
    mask = cluster[left] != cluster[right]
    return left[mask], right[mask]


def rates(rows: int, identity: Tensor | None, cluster: Tensor | None) -> list[float]:
    """The false accept rates that `thresholds` has for the impostors of so many rows."""
    return [*thresholds(torch.zeros(len(pairs(rows, identity, cluster)[0])))]


def _spread(count: int, limit: int) -> Tensor:
    """All of 0..count - 1, or `limit` of them, a random one from each of as many equal intervals."""
    if count <= limit:
        return torch.arange(count)
    edges = torch.arange(limit + 1) * count // limit
    draws = torch.rand(limit, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return edges[:-1] + torch.minimum((draws * edges.diff()).long(), edges.diff() - 1)


def thresholds(cosines: Tensor, fars: Sequence[float] = FARS) -> dict[float, float]:
    """For each false accept rate the smallest threshold that at most that share of the impostors (P,) reaches. Rates
    with fewer than ten false accepts are left out."""
    falling = cosines.double().sort(descending=True).values
    limits = {}
    for far in fars:
        if not 0 < far < 1:
            raise ValueError(f"`fars` must hold rates between 0 and 1; got {far}")
        if len(falling) < ACCEPTS / far:
            continue
        accepts = int(far * len(falling))
        accepts += (accepts + 1) / len(falling) <= far  # the product was rounded down
        limits[far] = math.nextafter(float(falling[accepts]), math.inf)  # excludes the first one too many
    return limits

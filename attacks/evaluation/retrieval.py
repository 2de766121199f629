"""Nearest rows and ranks of a gallery, block by block, in float64, and thresholds of verification."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.devices import uploaded

#: Cosines that differ by less are equal, and keep the order of the gallery: the last bits of a product depend on the
#: shape of a block, and no rank may.
TIE = 1e-12
#: Most rows of a block, and most cosines of one.
ROWS, CELLS = 2**13, 2**22


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a gallery (G,D), in one or more `parts`, each (g,D); a part may be mapped from a file. `signature`
    maps rows to what is compared (see `attacks.evaluation.scores.signature_method`)."""

    parts: tuple[Tensor, ...]
    signature: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def device(self) -> torch.device:
        """Where rows are compared."""
        return self.parts[0].device

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The embeddings of rows (n,), numbers on the host, as they are: (n,D) on the device of the first part."""
        return self._gather(rows, lambda part: part.to(self.parts[0]))

    def unit(self, rows: Tensor) -> Tensor:
        """What is compared of some embeddings (n,D): float64 of length 1 on the device of the first part."""
        rows = rows.to(self.device)
        rows = rows if self.signature is None else self.signature(rows)
        return F.normalize(rows.double(), dim=1, eps=torch.finfo(torch.float64).tiny)

    def pick(self, rows: Tensor) -> Tensor:
        """What is compared of rows (n,): float64 of length 1, with the bits of `blocks`."""
        return self._gather(rows, self.unit)

    def _gather(self, rows: Tensor, form: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows of any part, each in this form."""
        if len(self.parts) == 1:
            return form(self.parts[0][uploaded(rows, self.device)])
        start, places, pieces = 0, [], []
        for part in self.parts:
            matches = ((rows >= start) & (rows < start + len(part))).nonzero()[:, 0]
            places.append(matches)
            pieces.append(form(part[(rows[matches] - start).to(part.device)]))
            start += len(part)
        return torch.cat(pieces)[uploaded(torch.cat(places).argsort(), self.device)]

    def blocks(self, views: int) -> Iterator[tuple[int, Tensor]]:
        """The first row of each block and what is compared of it, for a product with `views` rows."""
        size, first = max(1, min(ROWS, CELLS // max(views, 1))), 0
        for part in self.parts:
            for start in range(0, len(part), size):
                yield first + start, self.unit(part[start : start + size])
            first += len(part)


class Mark(NamedTuple):
    """A cosine to count from, view by view: its value (V,) float64, and its row of the gallery (V,)."""

    value: Tensor
    row: Tensor


def best(unit: Tensor, gallery: Rows, truth: Tensor) -> Mark:
    """The nearest of the rows `truth` (n,), ascending, to each view (V,D) float64; the first of equal ones."""
    value, row = _empty(unit, 1)
    for rows in truth.split(ROWS):
        value, row = _merge((value, row), unit @ gallery.pick(rows).T, uploaded(rows, unit.device))
    return Mark(value[:, 0], row[:, 0])


def search(unit: Tensor, gallery: Rows, k: int, marks: Sequence[Mark] = ()) -> tuple[Tensor, list[Tensor]]:
    """The `k` nearest rows of each view (V,D) float64 of length 1: (V,k) from the nearest on, all rows if there are
    fewer; equal ones in the gallery's order. And the rank of each mark, (V,): 1 + the number of rows before it.

    Raises ValueError if a row of the gallery is not finite."""
    value, row = _empty(unit, min(k, len(gallery)))
    ranks = [torch.ones_like(mark.row) for mark in marks]
    for start, block in gallery.blocks(len(unit)):
        alike = unit @ block.T
        rows = torch.arange(start, start + len(block), device=unit.device)
        for rank, mark in zip(ranks, marks, strict=True):
            limit = torch.where(rows < mark.row[:, None], mark.value[:, None] - TIE, mark.value[:, None] + TIE)
            rank += (alike > limit).sum(1)
        largest = alike.amax(1)  # NaN where any is
        hot = (~(largest <= value[:, -1] + TIE)).nonzero()[:, 0]
        if len(hot):
            if bool(largest[hot].isnan().any()):
                raise ValueError("the gallery must hold numbers; got NaN: no rank (does the encoder overflow?)")
            value[hot], row[hot] = _merge((value[hot], row[hot]), alike[hot], rows)
    return row, ranks


def votes(nearest: Tensor, truth: Tensor, identity: Tensor) -> Tensor:
    """Whether the rows (V,k+1) nearest to each view, but for the picture's own `truth` (V,), vote for its identity:
    (V,) bool. `identity` (G,) are integers, equal for rows that show the same. Ties go to that of the nearest row."""
    truth_mask = nearest == truth[:, None]
    truth_mask[:, -1] |= ~truth_mask.any(1)  # the farthest, where the own row is not among them
    labels = identity[nearest.gather(1, truth_mask.long().argsort(dim=1, stable=True)[:, :-1])]
    if not labels.shape[1]:
        raise ValueError("a row must be left to vote: the gallery has one row")
    support = (labels[:, :, None] == labels[:, None]).sum(2)
    return labels.gather(1, support.argmax(1, keepdim=True))[:, 0] == identity[truth]


def _empty(unit: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return unit.new_full((len(unit), k), -torch.inf), torch.zeros(len(unit), k, dtype=torch.long, device=unit.device)


def _merge(nearest: tuple[Tensor, Tensor], alike: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of the rows so far (V,k) and of `rows` (n,), whose cosines are `alike` (V,n)."""
    values = torch.cat([nearest[0], alike], 1)
    numbers = torch.cat([nearest[1], rows.expand_as(alike)], 1)
    order = torch.arange(values.shape[1], 0, -1, device=values.device)
    cosines, picks = [], []
    for _ in range(nearest[0].shape[1]):
        pick = ((values >= values.amax(1, keepdim=True) - TIE) * order).argmax(1, keepdim=True)  # the first
        picks.append(pick)
        cosines.append(values.gather(1, pick))
        values = values.scatter(1, pick, -torch.inf)
    return torch.cat(cosines, 1), numbers.gather(1, torch.cat(picks, 1))


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
    """The cosines (P,) of all `pairs` of rows that show different things, or of `limit` of them, float64 on the CPU.
    `embeddings` (G,D) are those of untouched pictures, none of length 0; `identity` and `cluster` as of `pairs`."""
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
        if len(falling) < ACCEPTS / far:
            continue
        accepts = int(far * len(falling))
        accepts += (accepts + 1) / len(falling) <= far  # the product was rounded down
        limits[far] = math.nextafter(float(falling[accepts]), math.inf)  # excludes the first one too many
    return limits

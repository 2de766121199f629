"""Clusters: the pictures that count as one, such as the tiles of one photograph or near duplicates."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

#: A row of a table, as it was made or read back from its file.
Row = Mapping[str, object]
R = TypeVar("R", bound=Row)


class Sample(NamedTuple):
    """Some pictures of a run: their `rows` (N,) among the queries, names, and clusters."""

    rows: Tensor
    names: tuple[str, ...]
    clusters: tuple[str, ...]

    def only(self, at: Sequence[int]) -> "Sample":
        """Some of the pictures."""
        names, clusters = (tuple(column[i] for i in at) for column in (self.names, self.clusters))
        return Sample(self.rows[list(at)], names, clusters)


def numbers(clusters: Sequence[str]) -> Tensor:
    """The number of each picture's cluster (N,), in the order of first appearance."""
    order = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    return torch.tensor([order[name] for name in clusters], dtype=torch.long)


def by_cluster(values: Tensor, clusters: Sequence[str]) -> Tensor:
    """The mean over each cluster's pictures, in float64 and in the order of first appearance: (N,...) -> (C,...)."""
    return totals(values, clusters) / totals(torch.ones(len(values)), clusters).view(-1, *[1] * (values.dim() - 1))


def cluster_mean(values: Tensor, clusters: Sequence[str], weights: Sequence[float] = ()) -> float:
    """The mean over clusters of their pictures' means, of (N,) values; with `weights`, of which a cluster has one."""
    units = by_cluster(values, clusters)
    if not weights:
        return float(units.mean())
    scales = by_cluster(torch.tensor(weights, dtype=torch.float64), clusters)
    return float(units @ scales / scales.sum())


def medians(values: Tensor, clusters: Sequence[str]) -> Tensor:
    """The lower median of each cluster's values, (N,) -> (C,), in the order in which clusters first appear."""
    index = numbers(clusters)
    return torch.stack([values[index == i].median() for i in range(int(index.max()) + 1)])


def totals(values: Tensor, clusters: Sequence[str]) -> Tensor:
    """The sum over each cluster's pictures in float64: (N,...) -> (C,...)."""
    index = numbers(clusters)
    values = values.double().cpu()
    return values.new_zeros(int(index.max()) + 1, *values.shape[1:]).index_add_(0, index, values)


def grouped(rows: Sequence[R], *columns: str) -> dict[tuple[str, ...], list[R]]:
    """The rows by the text of some columns ("" for None), in order of first appearance."""
    groups: dict[tuple[str, ...], list[R]] = {}
    for row in rows:
        groups.setdefault(tuple("" if row[name] is None else str(row[name]) for name in columns), []).append(row)
    return groups


def by_arm(rows: Sequence[R]) -> dict[str, list[R]]:
    """The rows of each arm."""
    return {arm: group for (arm,), group in grouped(rows, "arm").items()}


def column_of(rows: Sequence[Row], name: str) -> Tensor:
    """A column of numbers in float64, as they were made or read back from their file."""
    return torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)  # type: ignore[arg-type]

"""The pictures that a perturbation shared by pictures is made from, and those that it is judged on."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from transforms.draws import stream

FIT, JUDGE = WORDS = "fit", "judge"
#: The fewest clusters that are held out without a column `split`.
MIN_CLUSTERS = 5
Item = TypeVar("Item")


def assign_split(
    names: Sequence[str], clusters: Sequence[str], seed: int, words: Sequence[str] = (), limit: int | None = None
) -> tuple[str, ...]:
    """`fit` or `judge` of each picture: the perturbation is made from the first, and judged on the others, which are
    held out. Clusters stay whole: half of them, drawn by the seed, are held out, and none where half are fewer than
    `MIN_CLUSTERS`. `words` overrules. Of the clusters that are fit the first `limit` of an order drawn by the seed
    stay; those left out have the word "". Raises ValueError where `words` has one of the two words only, or both in a
    cluster, and for a `limit` above the number of clusters that are fit, or where none is held out."""
    first: dict[str, int] = {}
    for row, cluster in enumerate(clusters):
        other = first.setdefault(cluster, row)
        if words and words[other] != words[row]:
            clash = f"{names[other]} and {names[row]} count as one, and have {words[other]} and {words[row]}"
            raise ValueError(f"`split` must be the same for all pictures of a cluster; {clash}")
    if words:
        if len({*words}) < 2:
            raise ValueError(f"`split` must be fit for some pictures and judge for others; got {words[0]} only")
    else:
        half = len(first) // 2
        held_out = {*shuffle(list(first), seed, "split")[: half if half >= MIN_CLUSTERS else 0]}
        words = [JUDGE if cluster in held_out else FIT for cluster in clusters]
    if limit is None:
        return tuple(words)
    fit = list(dict.fromkeys(cluster for cluster, word in zip(clusters, words, strict=True) if word == FIT))
    if JUDGE not in words or limit > len(fit):
        reason = f"there are {len(fit)}" if JUDGE in words else "no cluster is held out of fewer than ten"
        raise ValueError(f"`data.fit` must be at most the number of clusters that are fit; got {limit}, and {reason}")
    draw = {*shuffle(fit, seed, "fit")[:limit]}
    return tuple(word if word == JUDGE or c in draw else "" for c, word in zip(clusters, words, strict=True))


def rows_at_once(words: Sequence[str], seed: int) -> list[int]:
    """The pictures in memory where those that are fit are read a few at a time: the held-out ones and as many others,
    drawn by the seed, which stand for all that are fit in the tables. Without held-out ones, all."""
    fit = [row for row, word in enumerate(words) if word == FIT]
    held_out = [row for row, word in enumerate(words) if word == JUDGE]
    return sorted([*held_out, *shuffle(fit, seed, "at once")[: len(held_out) or None]])


def shuffle(items: Sequence[Item], seed: int, purpose: str) -> list[Item]:
    """In an order drawn by the seed; another `purpose`, another order."""
    generator = torch.Generator().manual_seed(stream(seed, purpose))
    return [items[i] for i in torch.randperm(len(items), generator=generator).tolist()]

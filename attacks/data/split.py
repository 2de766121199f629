"""The pictures that a perturbation shared by pictures is made from, and those that it is judged on."""

from collections.abc import Sequence

import torch

from transforms.draws import stream

FIT, JUDGE = WORDS = "fit", "judge"
#: The fewest clusters that are held out without a column `split`.
MIN_CLUSTERS = 5


def assign_split(
    names: Sequence[str], clusters: Sequence[str], seed: int, words: Sequence[str] = ()
) -> tuple[str, ...]:
    """`fit` or `judge` of each picture: the perturbation is made from the first, and judged on the others, which are
    held out. Clusters stay whole: half of them, drawn by the seed, are held out, and none where half are fewer than
    `MIN_CLUSTERS`. `words` overrules.

    Raises ValueError where `words` has one of the two words only, or both in a cluster.
    """
    first: dict[str, int] = {}
    for row, cluster in enumerate(clusters):
        other = first.setdefault(cluster, row)
        if words and words[other] != words[row]:
            raise ValueError(
                f"`split` must be the same for all pictures of a cluster; {names[other]} and {names[row]} count "
                f"as one, and have {words[other]} and {words[row]}"
            )
    if words:
        if len({*words}) < 2:
            raise ValueError(f"`split` must be fit for some pictures and judge for others; got {words[0]} only")
        return tuple(words)
    half, order = len(first) // 2, list(first)
    permutation = torch.randperm(len(order), generator=torch.Generator().manual_seed(stream(seed, "split"))).tolist()
    held_out = {order[i] for i in permutation[: half if half >= MIN_CLUSTERS else 0]}
    return tuple(JUDGE if cluster in held_out else FIT for cluster in clusters)

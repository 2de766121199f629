"""What each measure is of an encoder that answers at random, and which of its values a run can have at all."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.per_image import TAR
from attacks.evaluation.ranking import votes

#: Random rankings from which the chance of a vote is estimated, and the most rows that are permuted for it.
DRAWS, PERMUTED = 4096, 512


class Level(NamedTuple):
    """The mean of a measure where views are embedded at random, and its `least` and `most` under any ranking."""

    chance: float
    least: float
    most: float


def written(level: Mapping[str, float]) -> str:
    """A level in words, from its values by name, such as "chance 0.995 (0 to 1)", with the ends of the reach."""
    return f"chance {level['chance']:.3g} ({level['least']:.3g} to {level['most']:.3g})"


class Setting(NamedTuple):
    """What a level depends on: each picture's row of the gallery `truth` (N,), its cluster, the target's row (N,) or
    None, each row's identity (G,), the number of `neighbours` that vote (0: none does), the pictures `alone` (N,) of
    no measure of retrieval, and the number of views."""

    truth: Tensor
    clusters: Sequence[str]
    goal: Tensor | None
    identity: Tensor
    neighbours: int
    alone: Tensor
    views: int


def levels(setting: Setting, impostors: Tensor, rates: Sequence[float]) -> dict[str, Level]:
    """The level of every measure, by its name in a policy. A view is embedded at random where it has the embedding of
    another picture of the gallery: so the chance of a cosine is the `impostors`' (P,), and that of a shift is 0.

    Args:
        rates: the false accept rates of the run.
    """
    rows, counts = len(setting.identity), setting.identity.bincount().double()
    members = counts[setting.identity[setting.truth]]
    hits = 1 - members / rows if setting.goal is None else counts[setting.identity[setting.goal]] / rows
    success = Level(float(by_cluster(hits, setting.clusters).mean()), 0, 1)
    pairs = impostors if len(impostors) else torch.zeros(1)
    mean = float(pairs.mean())
    highest = float(pairs.quantile(setting.views / (setting.views + 1))) if setting.goal is None else mean
    cosines = {"cosine": mean, "cosine_p10": float(pairs.quantile(0.1)), "worst_cosine": highest, "goal_cosine": mean}
    result = {name: Level(chance, -1, 1) for name, chance in cosines.items()}
    result |= {f"{TAR}{rate:g}": Level(rate, 0, 1) for rate in rates}
    result |= {"success": success, "success_survived": success, "shift": Level(0, -2, 2)}
    kept = (~setting.alone).nonzero()[:, 0].tolist()
    by_size = {int(members[i]): _retrieved(setting, int(setting.truth[i])) for i in kept}
    for name in next(iter(by_size.values()), {}):
        table = torch.tensor([by_size[int(members[i])][name] for i in kept], dtype=torch.float64)
        chance = float(by_cluster(table[:, 0], [setting.clusters[i] for i in kept]).mean())
        result[name] = Level(chance, float(table[:, 1].min()), float(table[:, 2].max()))
    return result


def _retrieved(setting: Setting, row: int) -> Mapping[str, Level]:
    """The levels of the rank of the first row with the identity of `row`, and of the vote, in a random order."""
    members = int((setting.identity == setting.identity[row]).sum())
    others = len(setting.identity) - members
    later = torch.arange(others, dtype=torch.float64)
    beyond = torch.cat([torch.ones(1), (1 - members / (members + others - later)).cumprod(0), torch.zeros(1)])
    ranks = torch.arange(1, others + 2)  # the share of orders beyond each: `beyond[rank]`
    within = 1 - beyond
    result = {f"recall_at_{k}": Level(float(within[: k + 1][-1]), float(k > others), 1) for k in (1, 5, 10)}
    result["mrr"] = Level(float((beyond.diff().neg() / ranks).sum()), 1 / (others + 1), 1)
    return result | ({"knn": _vote(setting, row)} if setting.neighbours else {})


def _vote(setting: Setting, row: int) -> Level:
    identity, generator = setting.identity, torch.Generator().manual_seed(0)
    others = (torch.arange(len(identity)) != row).nonzero()[:, 0]
    k = min(setting.neighbours, len(others))
    if len(others) <= PERMUTED:
        picks = torch.rand(DRAWS, len(others), generator=generator).argsort(1)[:, :k]
    else:  # hardly ever one twice
        picks = torch.randint(len(others), (DRAWS, k), generator=generator)
    sizes, foreign = identity.bincount(), identity[others] != identity[row]
    worst = (foreign * (1 + sizes[identity[others]])).argsort(descending=True, stable=True)[:k]
    nearest = others[torch.cat([picks, worst[None]])]
    own = torch.full((len(nearest),), row)
    right = votes(torch.cat([own[:, None], nearest], 1), own, identity).double()
    same = int((~foreign).sum())
    sizes[identity[row]] = 0
    possible = same > 0 and int(sizes.clamp(max=same).sum()) >= k - same
    return Level(float(right[:-1].mean()), float(right[-1]), float(possible))

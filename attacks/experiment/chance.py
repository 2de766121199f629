"""What each measure of a run is of an encoder that answers at random, and which of its values are possible at all."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.data.pictures import select
from attacks.encoders.tree import optional
from attacks.evaluation.clusters import cluster_mean
from attacks.evaluation.per_image import TAR
from attacks.evaluation.retrieval import votes
from attacks.study.study import Study

#: Random orders from which the chance of a vote is estimated, and the most rows that are permuted for them.
DRAWS, PERMUTATION_ROWS = 4096, 512


class Level(NamedTuple):
    """The mean of a measure where views are embedded at random, and its `least` and `most` in any order."""

    chance: float
    least: float
    most: float


def chance_levels(
    study: Study, neighbours: int, views: int, impostors: Tensor | None, rates: Sequence[float]
) -> dict[str, Level]:
    """The level of every measure, by its name in a policy, for votes of the nearest `neighbours`, so many `views` of
    each picture, and false accept `rates`. A view is embedded at random where it has the embedding of another picture
    of the gallery: so the chance of a cosine is the `impostors`' (P,), and that of a shift is 0."""
    gallery, clusters, weights = study.gallery, study.queries.clusters, study.queries.weights
    identity = torch.arange(len(gallery)) if gallery.label_numbers is None else gallery.label_numbers
    members = identity.bincount()[identity[study.truth if study.goal is None else study.goal]].double()
    hits = (members / len(gallery) - float(study.goal is None)).abs()  # without a target, of all others
    success = Level(cluster_mean(hits, clusters, weights), 0, 1)
    pairs = torch.zeros(1) if impostors is None or not len(impostors) else impostors
    if study.acceptance is not None and study.acceptance.metric == "cosine":  # of the clean pairs of different things
        share = float((pairs >= study.acceptance.threshold).double().mean())
        success = Level(share if study.goal is not None else 1 - share, 0, 1)
    mean = float(pairs.mean())
    highest = float(pairs.quantile(views / (views + 1))) if study.goal is None else mean
    cosines = {"cosine": mean, "cosine_p10": float(pairs.quantile(0.1)), "worst_cosine": highest, "goal_cosine": mean}
    result = {name: Level(chance, -1, 1) for name, chance in cosines.items()}
    result |= {f"{TAR}{rate:g}": Level(rate, 0, 1) for rate in rates}
    result |= {"success": success, "success_survived": success, "shift": Level(0, -2, 2)}
    if (alarms := optional(study.encoder, "false_alarms")) is not None:  # the detector takes the views for clean ones
        result |= {"flagged": Level(alarms, 0, 1), "fooled_accepted": Level((1 - alarms) * success.chance, 0, 1)}
    is_single = gallery.alone(study.truth)
    grouped_rows = [i for i in range(len(study.truth)) if is_single is None or not is_single[i]]
    sizes = identity.bincount()[identity[study.truth]].tolist()
    by_size = {sizes[i]: _rank_levels(len(gallery), sizes[i]) for i in grouped_rows}
    if is_single is not None and neighbours:
        rows = {sizes[i]: int(study.truth[i]) for i in grouped_rows}
        by_size = {size: by_size[size] | {"knn": _vote(identity, row, neighbours)} for size, row in rows.items()}
    for name in next(iter(by_size.values()), {}):
        levels, names = [by_size[sizes[i]][name] for i in grouped_rows], [clusters[i] for i in grouped_rows]
        result[name] = _mean(levels, names, select(weights, grouped_rows))
    if study.acceptance is not None and study.acceptance.metric == "l2":  # no pair's distance is measured
        del result["success"], result["success_survived"]
        result.pop("fooled_accepted", None)
    if study.goal is not None:
        goals = [_rank_levels(len(gallery), count)["median_rank"] for count in members.int().tolist()]
        result["goal_rank"] = _mean(goals, clusters)
    return result


def _mean(rows: Sequence[Level], clusters: Sequence[str], weights: Sequence[float] = ()) -> Level:
    """The level of a mean over clusters."""
    table = torch.tensor(rows, dtype=torch.float64)
    return Level(cluster_mean(table[:, 0], clusters, weights), float(table[:, 1].min()), float(table[:, 2].max()))


def _rank_levels(rows: int, members: int) -> dict[str, Level]:
    """The levels of the rank of the first of `members` rows, in random orders of all."""
    rest = rows - members
    positions = torch.arange(rest, dtype=torch.float64)
    # P(rank > k)
    survival = torch.cat([torch.ones(1), (1 - members / (rows - positions)).cumprod(0), torch.zeros(1)])
    result = {f"recall_at_{k}": Level(float(1 - survival[: k + 1][-1]), float(k > rest), 1) for k in (1, 5, 10)}
    result["mrr"] = Level(float((survival.diff().neg() / torch.arange(1, rest + 2)).sum()), 1 / (rest + 1), 1)
    return result | {"median_rank": Level(float((survival > 0.5).sum()), 1, rest + 1)}


def _vote(identity: Tensor, row: int, neighbours: int) -> Level:
    """The level of a vote on the identity of a row, by the nearest others in random orders."""
    candidates, generator = (torch.arange(len(identity)) != row).nonzero()[:, 0], torch.Generator().manual_seed(0)
    k = min(neighbours, len(candidates))
    if len(candidates) <= PERMUTATION_ROWS:
        picks = torch.rand(DRAWS, len(candidates), generator=generator).argsort(1)[:, :k]
    else:  # hardly ever one twice
        picks = torch.randint(len(candidates), (DRAWS, k), generator=generator)
    sizes, foreign = identity.bincount(), identity[candidates] != identity[row]
    worst = (foreign * (1 + sizes[identity[candidates]])).argsort(descending=True, stable=True)[:k]
    query = torch.full((DRAWS + 1, 1), row)
    right = votes(torch.cat([query, candidates[torch.cat([picks, worst[None]])]], 1), query[:, 0], identity).double()
    matches = int((~foreign).sum())
    sizes[identity[row]] = 0
    possible = int(sizes.clamp(max=matches).sum()) >= k - matches
    return Level(float(right[:-1].mean()), float(right[-1]), float(possible))

"""From a configuration's `objective` to an objective, and what it compares each picture with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attacks.encoders.layers import Layers, Pool, key_in_errors, layer_pools
from attacks.encoders.tree import Encoder
from attacks.eot.bank import bank
from attacks.eot.protocols import Objective
from attacks.evaluation.scores import embed, mean_embedding
from attacks.experiment.build.make import make
from attacks.objectives.aim import Aim, Known
from attacks.objectives.bits import Bits
from attacks.objectives.composite import Each, Sum, Term
from attacks.objectives.embedding import Away, Paired, Toward
from attacks.objectives.retrieval import InfoNCE, Retrieval, Triplet, Verification
from attacks.schema import groups
from transforms import Compose

Node = (
    groups.AwayConfig
    | groups.TowardConfig
    | groups.RetrievalConfig
    | groups.TripletConfig
    | groups.InfoNCEConfig
    | groups.VerificationConfig
    | groups.LayersConfig
    | groups.MixedConfig
    | groups.BitsConfig
)
#: Views over which an anchor is averaged, of a stream that neither attack nor judgement has.
VIEWS = 64


def wants_gallery(node: Node) -> bool:
    """Whether the objective compares with the pictures that a view could be taken for."""
    return isinstance(
        node,
        groups.RetrievalConfig
        | groups.InfoNCEConfig
        | groups.MixedConfig
        | groups.TowardConfig
        | groups.TripletConfig,
    )


def shown_sign(node: Node) -> int:
    """-1 where what is shown is minus the loss: the cosine to a target, which the attacker raises."""
    return -1 if isinstance(node, groups.TowardConfig) and node.metric == "cosine" else 1


@contextmanager
def watched(encoder: nn.Module, node: Node) -> Iterator[nn.Module]:
    """The encoder as the objective wants it: giving the features of some layers, until the end of the `with`, or as
    it is. Raises ValueError for layers that cannot be had."""
    if not isinstance(node, groups.LayersConfig):
        yield encoder
        return
    pools = {name: pool for name, (pool, _) in make(weighted, node, "objective").items()}
    with key_in_errors("objective.layers"):
        layers = Layers(encoder, pools)
    with layers:
        yield layers


def weighted(layers: list[str], weights: list[float]) -> dict[str, tuple[Pool, float]]:
    """Each layer's pool and weight, from two lists of a configuration."""
    pools = layer_pools(layers, "objective.layers")
    weights = list(weights) or [1.0] * len(pools)
    if len(weights) != len(pools):
        raise ValueError(f"`weights` must be one number for each of {len(pools)} layers, or none; got {len(weights)}")
    if weights and not (all(0 <= weight < math.inf for weight in weights) and any(weights)):
        raise ValueError(f"`weights` must be numbers from 0 up, not all of them 0; got {weights}")
    return {name: (pool, weight) for (name, pool), weight in zip(pools.items(), weights, strict=True)}


def mixed(known: Known, away: float, retrieval: float) -> Aim:
    """Away from the own picture and below the best impostor, with a weight for each."""
    terms = (Term(away, Away(), "own"), Term(retrieval, Retrieval(known.gallery, identity=known.identity), "row"))
    return Aim(Sum(terms), {"own": known.own, "row": known.truth})


def aim(node: Node, known: Known, encoder: Encoder, transforms: Compose, seed: int) -> Aim:
    """The objective that a configuration names, and its anchor.

    Args:
        encoder: as `watched` gives it, in full precision; it makes the anchors that `known` does not hold.
        transforms: the views, for an anchor that is averaged over them.

    Raises ValueError for a value that an objective does not take.
    """
    if isinstance(node, groups.MixedConfig):
        return make(mixed, node, "objective", known=known)
    gallery = {"gallery": known.gallery, "identity": known.identity}
    goal = None if known.goal is None else known.gallery[known.goal]
    if isinstance(node, groups.TowardConfig):
        assert goal is not None
        return Aim(make(Toward, node, "objective"), goal)
    if isinstance(node, groups.TripletConfig):
        assert goal is not None
        return Aim(make(Triplet, node, "objective"), {"positive": goal, "negative": known.own})
    if isinstance(node, groups.RetrievalConfig):
        return Aim(make(Retrieval, node, "objective", **gallery), known.truth)
    if isinstance(node, groups.InfoNCEConfig):
        targeted = node.target is not None
        row = known.goal if targeted else known.truth
        assert row is not None
        return Aim(make(InfoNCE, node, "objective", targeted=targeted, **gallery), row)
    if isinstance(node, groups.VerificationConfig | groups.BitsConfig):
        kind: type[Objective] = Verification if isinstance(node, groups.VerificationConfig) else Bits
        return Aim(make(kind, node, "objective"), known.own)
    objective: Objective = make(Away, node, "objective")
    if isinstance(node, groups.LayersConfig):
        layers = make(weighted, node, "objective")
        objective = Each({name: weight for name, (_, weight) in layers.items()}, objective)
        if node.anchor != "views":  # features of layers may be large
            known = known._replace(own=embed(known.images, encoder, known.images.device, 1))
    given = {"objective": objective, "known": known, "encoder": encoder, "transforms": transforms, "seed": seed}
    return make(anchored, node, "objective", **given)


def anchored(
    objective: Objective, known: Known, encoder: Encoder, transforms: Compose, seed: int, metric: str, anchor: str
) -> Aim:
    """An objective that leads away from the picture itself, with the picture's own features: those of the picture as
    it is, their mean over views, or those of each view."""
    if anchor == "views":
        if metric != "cosine":
            raise ValueError("`anchor` is a mean direction where it is views, and needs `metric` cosine; got l2")
        views = bank(transforms, VIEWS, seed=seed, purpose="anchor")
        return Aim(objective, mean_embedding(known.images, encoder, views))
    if anchor not in ("own", "paired"):
        raise ValueError(f"`anchor` must be one of own, views, paired; got {anchor!r}")
    return Aim(Paired(objective) if anchor == "paired" else objective, known.own)

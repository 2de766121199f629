"""What the attacker wants: from a name in a configuration to an objective, and what it compares each picture with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from torch import Tensor, nn
from attacks.schema import groups as choices
from attacks.evaluation.scores import mean_embedding
from attacks.objectives.composite import Each, Sum, Term
from attacks.objectives.bits import Bits
from attacks.evaluation.scores import embed
from attacks.eot.bank import bank
from attacks.encoders.layers import Layers, Pool, asked, called
from attacks.objectives.embedding import Away, Paired, Toward
from attacks.eot.protocols import Objective
from attacks.encoders.tree import Encoder
from attacks.objectives.retrieval import InfoNCE, Retrieval, Triplet, Verification
from attacks.encoders.tree import Tree
from transforms import Compose
from attacks.objectives.aim import Aim, Known

Node = (
    choices.Away
    | choices.Toward
    | choices.Retrieval
    | choices.Triplet
    | choices.InfoNCE
    | choices.Verification
    | choices.Layers
    | choices.Mixed
    | choices.Bits
)
#: Views over which an anchor is averaged, of a stream that neither attack nor judgement has.
VIEWS = 64


def wants_gallery(node: Node) -> bool:
    """Whether the objective compares with the pictures that a view could be taken for."""
    return isinstance(node, choices.Retrieval | choices.InfoNCE | choices.Mixed | choices.Toward | choices.Triplet)


def shown_sign(node: Node) -> int:
    """-1 where what is shown is minus the loss: the cosine to a target, which the attacker raises."""
    return -1 if isinstance(node, choices.Toward) and node.metric == "cosine" else 1


@contextmanager
def watched(encoder: nn.Module, node: Node) -> Iterator[nn.Module]:
    """The encoder as the objective wants it: giving the features of some layers, until the end of the `with`, or as
    it is. Raises ValueError for layers that cannot be had."""
    if not isinstance(node, choices.Layers):
        yield encoder
        return
    pools = {name: pool for name, (pool, _) in _asked(node).items()}
    with called("objective.layers"):
        layers = Layers(encoder, pools)
    with layers:
        yield layers


def _asked(node: choices.Layers) -> dict[str, tuple[Pool, float]]:
    """Each layer's pool and weight, from two lists of a configuration."""
    pools = asked(node.layers, "objective.layers")
    weights = list(node.weights) or [1.0] * len(pools)
    if len(weights) != len(pools):
        raise ValueError(
            f"`objective.weights` must be one number for each of {len(pools)} layers, or none; got {len(weights)}"
        )
    if weights and not (all(0 <= weight < math.inf for weight in weights) and any(weights)):
        raise ValueError(f"`objective.weights` must be numbers from 0 up, not all of them 0; got {weights}")
    return {name: (pool, weight) for (name, pool), weight in zip(pools.items(), weights, strict=True)}


def aim(node: Node, known: Known, encoder: Encoder, transforms: Compose, seed: int) -> Aim:
    """The objective that a configuration names, and its anchor.

    Args:
        encoder: as `watched` gives it, in full precision; it makes the anchors that `known` does not hold.
        transforms: the views, for an anchor that is averaged over them.

    Raises ValueError for a value that an objective does not take.
    """
    if isinstance(node, choices.Toward):
        assert known.goal is not None
        return Aim(Toward(node.metric), known.gallery[known.goal])  # type: ignore[arg-type]
    if isinstance(node, choices.Triplet):
        assert known.goal is not None
        return Aim(Triplet(node.margin), {"positive": known.gallery[known.goal], "negative": known.own})
    if isinstance(node, choices.Retrieval):
        return Aim(Retrieval(known.gallery, node.margin, known.identity), known.truth)
    if isinstance(node, choices.InfoNCE):
        targeted = node.target is not None
        assert not targeted or known.goal is not None
        row = known.goal if targeted else known.truth
        return Aim(InfoNCE(known.gallery, node.temperature, targeted, known.identity), row)
    if isinstance(node, choices.Verification):
        return Aim(Verification(node.threshold), known.own)
    if isinstance(node, choices.Mixed):
        terms = (
            Term(node.away, Away(), "own"),
            Term(node.retrieval, Retrieval(known.gallery, identity=known.identity), "row"),
        )
        return Aim(Sum(terms), {"own": known.own, "row": known.truth})
    if isinstance(node, choices.Bits):
        return Aim(Bits(node.margin), known.own)
    objective: Objective = Away(node.metric)  # type: ignore[arg-type]
    if isinstance(node, choices.Layers):
        objective = Each({name: weight for name, (_, weight) in _asked(node).items()}, objective)
    return _anchored(node, objective, known, encoder, transforms, seed)


def _anchored(
    node: choices.Away | choices.Layers,
    objective: Objective,
    known: Known,
    encoder: Encoder,
    transforms: Compose,
    seed: int,
) -> Aim:
    """An objective that leads away from the picture itself, with the picture's own features, as asked for."""
    if node.anchor == "views":
        if node.metric != "cosine":
            raise ValueError("`objective.anchor=views` is a mean direction, for objective.metric=cosine")
        return Aim(
            objective, mean_embedding(known.images, encoder, bank(transforms, VIEWS, seed=seed, purpose="anchor"))
        )
    if node.anchor not in ("own", "paired"):
        raise ValueError(f"`objective.anchor` must be one of own, views, paired; got {node.anchor!r}")
    anchor = known.own
    if isinstance(node, choices.Layers):
        anchor = embed(known.images, encoder, known.images.device, 1)  # features of layers may be large
    return Aim(Paired(objective) if node.anchor == "paired" else objective, anchor)

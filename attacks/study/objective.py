"""The configured objective, and the anchor that it compares each picture with."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from attacks.encoders.layers import Layers, Pool, key_in_errors, layer_pools
from attacks.encoders.tree import Encoder, Tree
from attacks.eot.bank import bank
from attacks.eot.protocols import Objective
from attacks.evaluation.scores import embed, mean_embedding
from attacks.objectives.aim import Aim, Knowledge
from attacks.objectives.classification import DLR, CrossEntropy, Margin
from attacks.objectives.composite import Each, Ensemble, Members, Sum, Term
from attacks.objectives.embedding import Away, Paired, Toward
from attacks.objectives.retrieval import ByText, InfoNCE, Retrieval, Triplet
from attacks.runtime.plugins import plugin
from attacks.schema import groups
from attacks.schema.objective import InfoNCEConfig, LayersConfig, MixedConfig, TowardConfig, TripletConfig
from attacks.study.make import declared_class, make
from attacks.study.plugin_parts import plugin_part
from transforms import Compose

#: Views over which an anchor is averaged, from a stream that neither the attack nor the evaluation uses.
VIEWS = 64


def wants_gallery(node: Any) -> bool:
    """Whether the objective compares with the gallery's embeddings."""
    if node.name in ("plugin", *groups.DECLARED["objective"]):
        return _takes(node, "gallery")
    return node.name in ("infonce", "mixed", "toward", "triplet")


def _takes(node: Any, argument: str) -> bool:
    """Whether an objective that declares its keys itself, or a plugin, is made with this argument."""
    if node.name == "plugin":
        return plugin("objective", node.model).takes(argument)
    return argument in inspect.signature(declared_class("objective", node.name)).parameters


def shown_sign(node: Any) -> int:
    """-1 where minus the loss is shown: the cosine to a target, which the attack maximises."""
    return -1 if isinstance(node, TowardConfig) and node.metric == "cosine" else 1


@contextmanager
def watching_layers(encoder: nn.Module, node: Any, encoders: Sequence[nn.Module] = ()) -> Iterator[nn.Module]:
    """The encoder as the objective needs it: with others, the `encoders` of the objective, it returns the features of
    all; for objective=layers those of its layers, until the `with` ends. Raises ValueError for unknown layers."""
    if not isinstance(node, LayersConfig):
        yield Ensemble([encoder, *encoders]) if encoders else encoder
        return
    pools = {name: pool for name, (pool, _) in make(weighted, node, "objective").items()}
    with key_in_errors("objective.layers"):
        layers = Layers(encoder, pools)
    with layers:
        yield layers


def weighted(layers: list[str], weights: list[float]) -> dict[str, tuple[Pool, float]]:
    """The pool and the weight of each layer, from the two lists of a configuration."""
    pools = layer_pools(layers, "objective.layers")
    weights = list(weights) or [1.0] * len(pools)
    if len(weights) != len(pools):
        raise ValueError(f"`weights` must be one number for each of {len(pools)} layers, or none; got {len(weights)}")
    if weights and not (all(0 <= weight < math.inf for weight in weights) and any(weights)):
        raise ValueError(f"`weights` must be numbers from 0 up, not all of them 0; got {weights}")
    return {name: (pool, weight) for (name, pool), weight in zip(pools.items(), weights, strict=True)}


def mixed_aim(knowledge: Knowledge, away: float, retrieval: float) -> Aim:
    """The weighted sum of `Away` and `Retrieval`."""
    ranks = Retrieval(knowledge.gallery, identity=knowledge.identity)
    terms = (Term(away, Away(), "own"), Term(retrieval, ranks, "row"))
    return Aim(Sum(terms), {"own": knowledge.embeddings, "row": knowledge.truth})


#: Name -> the loss on logits.
LOGITS: dict[str, Callable[[bool], Objective]] = {"margin": Margin, "cross_entropy": CrossEntropy, "dlr": DLR}


def logits_aim(name: str, knowledge: Knowledge) -> Aim:
    """A loss on logits, or on the cosines with texts, and its labels. With a target that is the label."""
    goal = knowledge.goal
    loss = LOGITS[name](goal is not None)
    anchor: Tree = knowledge.truth if goal is None else goal
    if goal is not None and isinstance(loss, DLR):
        anchor = {"label": knowledge.truth, "target": goal}
    return Aim(ByText(loss, knowledge.gallery) if knowledge.texts else loss, anchor)


def aim_of(node: Any, knowledge: Knowledge, encoder: Encoder, transforms: Compose, seed: int) -> Aim:
    """The configured objective and its anchor. A plugin, or one of `groups.DECLARED`, with an argument `gallery` gets
    the gallery's embeddings, and its anchor is each picture's row in them; that of any other is each picture's own
    embedding. `encoder`: as `watching_layers` returns it, in full precision, for anchors that `knowledge` does not
    hold; `transforms`: the views over which an anchor is averaged. Raises ValueError for what it refuses."""
    gallery = {"gallery": knowledge.gallery, "identity": knowledge.identity}
    goal = None if knowledge.goal is None else knowledge.gallery[knowledge.goal]
    if node.name in ("plugin", *groups.DECLARED["objective"]):
        arguments: dict[str, Any] = {key: value for key, value in gallery.items() if _takes(node, key)}
        anchor = knowledge.truth if "gallery" in arguments else knowledge.embeddings
        if node.name == "plugin":
            return Aim(plugin_part("objective", node.model, node.arguments | arguments), anchor)
        return Aim(make(declared_class("objective", node.name), node, "objective", **arguments), anchor)
    if node.name in LOGITS:
        return logits_aim(node.name, knowledge)
    if isinstance(node, MixedConfig):
        return make(mixed_aim, node, "objective", knowledge=knowledge)
    if isinstance(node, TowardConfig | TripletConfig):
        assert goal is not None
        if isinstance(node, TowardConfig):
            return Aim(make(Toward, node, "objective"), goal)
        return Aim(make(Triplet, node, "objective"), {"positive": goal, "negative": knowledge.embeddings})
    if isinstance(node, InfoNCEConfig):
        row = knowledge.truth if knowledge.goal is None else knowledge.goal
        return Aim(make(InfoNCE, node, "objective", targeted=knowledge.goal is not None, **gallery), row)
    objective: Objective = make(Away, node, "objective")
    if isinstance(node, LayersConfig):
        layers = make(weighted, node, "objective")
        objective = Each({name: weight for name, (_, weight) in layers.items()}, objective)
    if getattr(node, "encoders", ()):
        objective = Members(objective)
    if isinstance(objective, Each | Members) and node.anchor != "views":
        # features of layers may be large: one picture at a time
        knowledge = knowledge._replace(embeddings=embed(knowledge.images, encoder, knowledge.images.device, 1))
    shared: Any = {"knowledge": knowledge, "encoder": encoder, "transforms": transforms, "seed": seed}
    return make(anchored_aim, node, "objective", objective=objective, **shared)


def anchored_aim(
    objective: Objective,
    knowledge: Knowledge,
    encoder: Encoder,
    transforms: Compose,
    seed: int,
    metric: str,
    anchor: str,
) -> Aim:
    """Away from a picture's own features: those of the untouched one, their mean over views, or of the same view."""
    if anchor == "views":
        if metric != "cosine":
            raise ValueError("`anchor` is a mean direction where it is views, and needs `metric` cosine; got l2")
        views = bank(transforms, VIEWS, seed=seed, purpose="anchor")
        return Aim(objective, mean_embedding(knowledge.images, encoder, views))
    if anchor not in ("own", "paired"):
        raise ValueError(f"`anchor` must be one of own, views, paired; got {anchor!r}")
    return Aim(Paired(objective) if anchor == "paired" else objective, knowledge.embeddings)

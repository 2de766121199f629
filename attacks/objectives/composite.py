"""Objectives made of objectives: a sum of several, and one for each of several layers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.protocols import Objective
from attacks.objectives.embedding import check_part


class Term(NamedTuple):
    """One term of a sum: `weight` times `objective`, whose anchor is the whole anchor, or the `part` of this name.

    Examples:
        >>> import torch
        >>> from attacks import Away
        >>> from attacks.objectives import Sum, Term
        >>> features, anchor = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0]])
        >>> Sum((Term(2, Away("l2")), Term(1, Away("l2"))))(features, anchor).tolist()  # 2 * -5 + 1 * -5
        [-15.0]
    """

    weight: float
    objective: Objective
    part: str | None = None


@dataclass(frozen=True)
class Sum(Objective):
    """The weighted sum of objectives of the same features. Terms without a name share one anchor.

    Examples:
        >>> import torch
        >>> from attacks import Away, Toward
        >>> from attacks.objectives import Sum, Term
        >>> both = Sum((Term(1, Away(), "own"), Term(0.5, Toward(), "goal")))
        >>> anchor = {"own": torch.tensor([[1.0, 0.0]]), "goal": torch.tensor([[0.0, 1.0]])}
        >>> both(anchor["own"], anchor).tolist(), both(anchor["goal"], anchor).tolist()
        ([1.0], [-0.5])
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        _check({f"terms[{i}]": term.weight for i, term in enumerate(self.terms)}, "terms")
        for i, term in enumerate(self.terms):
            check_part(term.objective, f"terms[{i}]")

    @property
    def stationary_at_anchor(self) -> bool:
        return all(term.objective.stationary_at_anchor for term in self.terms if term.weight)

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        terms = [term for term in self.terms if term.weight]
        losses = [term.weight * term.objective(features, _part_of(anchor, term.part, "anchor")) for term in terms]
        return torch.stack(losses).sum(0)


@dataclass(frozen=True)
class Each(Objective):
    """The weighted mean of one `objective` over layers by name (see `attacks.encoders.layers.Layers`), whose features
    and anchor are mappings; of the `weights`, at least 0, only ratios matter.

    Features and anchor are divided by the anchor's length, as layers differ in scale: a cosine does not change, and a
    Euclidean distance becomes relative. An anchor of labels is not scaled.

    Examples:
        >>> import torch
        >>> from attacks import Away
        >>> from attacks.objectives import Each
        >>> features = {"stem": torch.tensor([[1.0, 0.0]]), "head": torch.tensor([[0.0, 5.0]])}
        >>> anchor = {"stem": torch.tensor([[2.0, 0.0]]), "head": torch.tensor([[3.0, 0.0]])}
        >>> Each({"stem": 1, "head": 3}, Away())(features, anchor).tolist()  # (1 * 1 + 3 * 0) / 4
        [0.25]
    """

    weights: Mapping[str, float]
    objective: Objective

    def __post_init__(self) -> None:
        _check(self.weights, "weights")
        check_part(self.objective, "objective")

    @property
    def stationary_at_anchor(self) -> bool:
        return self.objective.stationary_at_anchor

    def __call__(self, features: Mapping[str, Tensor], anchor: Mapping[str, Tree]) -> Tensor:
        """{layer: (N,...)}, {layer: (N,...)} -> (N,)."""
        total, losses = sum(self.weights.values()), []
        for layer, weight in self.weights.items():
            if weight:
                pair = _relative(_part_of(features, layer, "features"), _part_of(anchor, layer, "anchor"))
                losses.append(weight / total * self.objective(*pair))
        return torch.stack(losses).sum(0)


def _relative(features: Tensor, anchor: Tree) -> tuple[Tensor, Tree]:
    """Both divided by the anchor's length, vector by vector, unless it is 0 (a dead layer)."""
    if not isinstance(anchor, Tensor) or not anchor.is_floating_point():
        return features, anchor
    length = torch.linalg.vector_norm(anchor, dim=-1, keepdim=True)
    length = torch.where(length > 0, length, 1.0)
    return features / length, anchor / length


def _part_of(tree: Tree, name: str | None, argument: str) -> Tree:
    if name is None:
        return tree
    if not isinstance(tree, Mapping) or name not in tree:
        content = ", ".join(tree) if isinstance(tree, Mapping) else f"a {type(tree).__name__}"
        raise ValueError(f"`{argument}` must be a mapping with {name!r} in it; got {content}")
    return tree[name]


def _check(weights: Mapping[str, float], name: str) -> None:
    for part, weight in weights.items():
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"`{name}`: the weight of {part} must be at least 0; got {weight}")
    if not sum(weights.values()) > 0:
        raise ValueError(f"`{name}` must hold at least one weight above 0; got {list(weights.values())}")

"""Objectives made of objectives: a sum of several, one for each of several layers, or of several encoders."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.randomness import EncoderDraws, encoder_randomness, join_draws, split_draws
from attacks.encoders.tree import Encoder, Tree, leaves
from attacks.eot.protocols import Objective
from attacks.objectives.embedding import check_part
from transforms.doors import check_choice

#: What is averaged over the members.
Combine = Literal["losses", "gradients"]


class Term(NamedTuple):
    """One term of a sum: `weight` times `objective`, whose anchor is the whole anchor, or the `part` of this name.

    Examples:
        >>> from attacks.objectives import Away, Sum, Term
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
        >>> from attacks.objectives import Away, Sum, Term, Toward
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
        >>> from attacks.objectives import Away, Each
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
        total, losses = sum(self.weights.values()), []
        for layer, weight in self.weights.items():
            if weight:
                pair = _relative(_part_of(features, layer, "features"), _part_of(anchor, layer, "anchor"))
                losses.append(weight / total * self.objective(*pair))
        return torch.stack(losses).sum(0)


@dataclass(frozen=True)
class Evasion(Objective):
    """An objective of an encoder with a detector, plus a price on how far its score is below its limit and a margin.

    The features are what a `Panel` answers with `with_score=True`; the anchor is {"features": that of the objective,
    "limit": (N,)}. A loss l below 0, where most losses say that a view is fooled, counts as l / (1 - l), above -1: so
    no loss, however low, outweighs the `price`, at least 0. From the limit and the `margin` on nothing is paid.

    Examples:
        >>> from attacks.objectives import Away, Evasion
        >>> features = {"features": torch.tensor([[3.0, 4.0]]), "score": torch.tensor([[0.5]])}
        >>> anchor = {"features": torch.tensor([[0.0, 0.0]]), "limit": torch.tensor([0.75])}
        >>> round(Evasion(Away("l2"), price=20, margin=0.25)(features, anchor).item(), 4)  # 20 * 0.5 - 5 / 6
        9.1667
    """

    objective: Objective
    price: float
    margin: float = 0.02

    def __post_init__(self) -> None:
        check_part(self.objective, "objective")
        if not 0 <= self.price < math.inf:
            raise ValueError(f"`price` must be at least 0 and finite; got {self.price:g}: 0 ignores the detector")

    @property
    def stationary_at_anchor(self) -> bool:
        return self.objective.stationary_at_anchor

    def __call__(self, features: Mapping[str, Tensor], anchor: Mapping[str, Tree]) -> Tensor:
        losses = self.objective(features["features"], anchor["features"])
        short = F.relu(anchor["limit"] + self.margin - features["score"][:, 0])
        return losses.clamp(min=0) + F.softsign(losses.clamp(max=0)) + self.price * short


class Ensemble(nn.Module):
    """Several encoders as one: (N,3,H,W) in [0,1] -> a tuple with the features of each.

    All get the same views in full resolution; each has its own preprocessing in the graph. A view costs a pass of
    every member.

    Args:
        encoders: modules in evaluation mode.

    Examples:
        >>> from attacks import Ensemble
        >>> pooled = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten()).eval()
        >>> encoder = Ensemble([torch.nn.Flatten().eval(), pooled])
        >>> [tuple(features.shape) for features in encoder(torch.zeros(2, 3, 8, 8))]
        [(2, 192), (2, 48)]
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("`encoders` must hold at least one encoder")
        for i, encoder in enumerate(encoders):
            if encoder.training:
                raise ValueError(f"`encoders[{i}]` is in training mode, so its answers change; call .eval()")
        self.members = nn.ModuleList(map(in_native_precision, encoders))
        self.training = False
        self.members.training = False

    @property
    def randomness(self) -> EncoderDraws | None:
        """The draws of its members, one after the other."""
        return join_draws(map(encoder_randomness, self.members))

    def forward(self, images: Tensor, only: int | None = None, draws: Tensor | None = None) -> Tree:
        """Images -> a tuple of features, or those of member `only`. `draws` are those of all members."""
        draws_by_member = split_draws(draws, [*map(encoder_randomness, self.members)], len(images))
        if only is not None:
            return self.members[only](images, **draws_by_member[only])
        # A member may switch autocast on (attacks.encoders.engine.precision); the next one's preprocessing needs it
        # off.
        kind, enabled = images.device.type, torch.is_autocast_enabled(images.device.type)
        features = []
        for i, member in enumerate(self.members):
            torch.set_autocast_enabled(kind, enabled)
            features.append(member(images, **draws_by_member[i]))
            # Among the other members a missing gradient would not be noticed.
            if images.requires_grad and not any(leaf.requires_grad for leaf in leaves(features[-1])):
                raise ValueError(f"encoder {i} of the ensemble cuts the graph (uint8, .numpy(), no_grad)")
        return tuple(features)


@dataclass(frozen=True)
class Members(Objective):
    """The mean loss of the members of an `Ensemble`. Features and anchor are tuples with a part for each.

    Args:
        objective: of each member; or a tuple of objectives, one for each (where a gallery belongs to an encoder).
        combine: "losses" follows the gradient of the mean loss (Dong et al. 2018), which members with steep gradients
            dominate; "gradients" first scales each member's mean gradient to the same L1 norm. The mean loss is
            reported and compared in either case.

    Examples:
        >>> from attacks.objectives import Members, Toward
        >>> features = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0, 0.0]])
        >>> anchor = torch.zeros(1, 2), torch.zeros(1, 3)
        >>> Members(Toward("l2"))(features, anchor).tolist()  # the mean of 5 and 1
        [3.0]
    """

    objective: Objective | tuple[Objective, ...]
    combine: Combine = "losses"

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, get_args(Combine))
        if self.objective == ():
            raise ValueError("`objective` must be one objective, or one for each member; got none")
        for objective in self.objective if isinstance(self.objective, tuple) else (self.objective,):
            check_part(objective, "objective")

    @property
    def stationary_at_anchor(self) -> bool:
        several = self.objective if isinstance(self.objective, tuple) else (self.objective,)
        return all(objective.stationary_at_anchor for objective in several)

    def __call__(self, features: tuple[Tree, ...], anchor: tuple[Tree, ...]) -> Tensor:
        parts = zip(self.member_objectives(features, anchor), features, anchor, strict=True)
        return torch.stack([objective(*pair) for objective, *pair in parts]).mean(0)

    def member_objectives(self, *trees: tuple[Tree, ...]) -> tuple[Objective, ...]:
        """The objective of each member. Raises ValueError unless the trees are tuples with a part for each."""
        several = self.objective
        count = len(several) if isinstance(several, tuple) else len(trees[0])
        for tree in trees:
            if not isinstance(tree, tuple) or len(tree) != count:
                size = len(tree) if isinstance(tree, tuple) else f"a {type(tree).__name__}"
                raise ValueError(
                    f"features and anchor of Members must be tuples, a part for each of {count}; got {size}"
                )
        return several if isinstance(several, tuple) else (several,) * count

    def members(self, encoder: Encoder, anchor: tuple[Tree, ...]) -> list[tuple[Encoder, Objective, Tree]]:
        """The encoder (which takes `only`, as an `Ensemble`), objective and anchor of all; none for "losses"."""
        if self.combine == "losses":
            return []
        parts = zip(self.member_objectives(anchor), anchor, strict=True)
        return [(partial(encoder, only=i), objective, part) for i, (objective, part) in enumerate(parts)]


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

"""Objectives on embeddings. Losses have shape (N,); lower is better for the attacker.

An embedding is (N,D), or (N,T,D) with a vector for each token: losses are averaged over tokens. A text target is
`Toward` with the text's embedding (CLIP, Radford et al. 2021) as anchor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree, embedding
from attacks.eot.protocols import Objective
from transforms.doors import check_choice

#: The similarity of two embeddings: their cosine, or minus the length of their difference.
Metric = Literal["cosine", "l2"]


@dataclass(frozen=True)
class Away(Objective):
    """The similarity to the anchor, the picture's own embedding.

    It is at its maximum at delta = 0 and the identity view, where its gradient is exactly zero, so an attack must
    start at random.

    Use: a picture that should no longer be found, whatever it is taken for.
    Not: a picture that is to be taken for a certain other one: `Toward`.
    Source: the cosine of embeddings.
    Oracle: the plain cosine, tests/objectives/test_embedding.py and tests/objectives/test_aim.py.

    Args:
        metric: "cosine", in [-1,1]; or "l2", minus the Euclidean distance. Where embeddings are compared by cosine,
            an attack on "l2" wastes effort on their length.

    Examples:
        >>> from attacks import Away
        >>> features, anchor = torch.tensor([[3.0, 4.0], [0.0, 5.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> [round(loss, 4) for loss in Away()(features, anchor).tolist()]
        [0.8, 0.0]
    """

    metric: Metric = "cosine"
    stationary_at_anchor: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, get_args(Metric))

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        return similarity(features, anchor, self.metric)


@dataclass(frozen=True)
class Toward(Objective):
    """Minus the similarity to the anchor, the embedding of the target (a picture or a text).

    Use: a picture that should be taken for a certain other one, or for a text.
    Not: a target that has to come first in a gallery: `InfoNCE` with a target.
    Source: the cosine of embeddings.
    Oracle: the plain cosine, tests/objectives/test_embedding.py and tests/objectives/test_aim.py.

    `metric` is "cosine", in [-1,1]; or "l2", the Euclidean distance.

    Examples:
        >>> from attacks import Toward
        >>> features, anchor = torch.tensor([[3.0, 4.0], [0.0, 5.0]]), torch.tensor([[0.0, 0.0], [0.0, 5.0]])
        >>> Toward("l2")(features, anchor).tolist()
        [5.0, 0.0]
    """

    metric: Metric = "cosine"
    attracts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, get_args(Metric))

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        return -similarity(features, anchor, self.metric)


@dataclass(frozen=True)
class Paired(Objective):
    """The anchor of each view is the untouched picture in the same view, which removes the effect of the view alone.
    It costs a second forward pass of every view. `inner`, the objective of each pair, must lead away from the anchor.

    Examples:
        >>> from attacks.objectives import Away, Paired
        >>> attacked, untouched = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 0.0]])  # features of one view
        >>> Paired(Away("l2"))(attacked, untouched).item(), Paired(Away("l2")).paired
        (-4.0, True)
    """

    inner: Objective
    paired: ClassVar[bool] = True

    @property
    def stationary_at_anchor(self) -> bool:
        return self.inner.stationary_at_anchor

    def __post_init__(self) -> None:
        if any(part.attracts for part in _parts(self.inner)):
            raise ValueError("`inner` of Paired must lead away from the picture itself; got one that leads back")
        if self.inner.paired:
            check_part(self.inner, "inner")

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        return self.inner(features, anchor)

    @property
    def combine(self) -> str:
        return self.inner.combine

    def members(self, encoder: Encoder, anchor: Tree) -> list[tuple[Encoder, Objective, Tree]]:
        return [(member, Paired(objective), part) for member, objective, part in self.inner.members(encoder, anchor)]


def similarity(features: Tensor, anchor: Tensor, metric: Metric) -> Tensor:
    """Cosine, or minus the Euclidean distance, along the last axis, averaged over tokens: (N,D) or (N,T,D), twice ->
    (N,). Raises ValueError where the two are no embeddings of one shape."""
    features, anchor = comparable(features, anchor)
    if metric == "cosine":
        values = F.cosine_similarity(features, anchor, dim=-1)
    else:
        values = -torch.linalg.vector_norm(features - anchor, dim=-1)
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def comparable(features: Any, anchor: Any) -> tuple[Tensor, Tensor]:
    """Both, if they are embeddings of one shape. Raises ValueError in one line otherwise."""
    if not (isinstance(features, Tensor) and features.dim() in (2, 3) and features.is_floating_point()):
        embedding(features, "`features`")
    if not isinstance(anchor, Tensor) or not anchor.is_floating_point() or anchor.shape != features.shape:
        embedding(anchor, "`anchor`")
        raise ValueError(f"`anchor` must be shaped like features; got {(*anchor.shape,)} for {(*features.shape,)}")
    return features, anchor


def _parts(objective: Objective) -> Iterator[Objective]:
    yield objective
    for value in vars(objective).values():
        for part in value if isinstance(value, tuple) else (value,):
            inner: Any = getattr(part, "objective", part)  # a `Term`, whose module imports this one
            if isinstance(inner, Objective):
                yield from _parts(inner)


def check_part(objective: Objective, name: str) -> None:
    """Refuse a part that is paired or combines gradients: the loop reads both from the outermost objective."""
    if objective.paired:
        raise ValueError(f"`{name}` must not be Paired; put Paired outside, round the whole: Paired(...)")
    if objective.combine == "gradients":
        raise ValueError(f"`{name}` must not combine gradients; put Members(..., combine='gradients') outside")

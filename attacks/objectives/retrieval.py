"""Objectives of retrieval and verification: what matters is the picture that a view is taken for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.tree import embedding
from attacks.eot.protocols import Objective
from attacks.objectives.classification import CrossEntropy, label_columns, label_scores, other_scores
from attacks.objectives.embedding import similarity
from attacks.schema.options import option

#: The share of its gradient that a view keeps once its margin is reached.
LEAK = 0.01


@dataclass(frozen=True, eq=False)
class Retrieval(Objective):
    r"""The true match should fall below the best impostor of the gallery.

    The loss is cos(e, g_true) - max_j cos(e, g_j): below 0 the view is taken for another picture. The anchor holds
    the row of the true match, (N,) whole numbers. With identities the true match is the nearest picture of its
    identity, and no picture of this identity is an impostor.

    With a `margin` the loss is the hinge of Carlini & Wagner 2017 (their f_6, kappa = margin), but leaky: a view that
    is lost by the margin keeps 1 % of its gradient, so the attack works on the other views. The margin is reached
    where loss <= -margin.

    Formula: \cos(f, g_y) - \max_{j \ne y} \cos(f, g_j)
    Use: a search in a known gallery, where success is that another picture comes first.
    Not: a gallery that the attacker does not know: `Away`.
    Cost: a product of each view's embedding with the gallery.
    Oracle: the formula, tests/objectives/test_embedding.py.

    Args:
        gallery: (G,D) embeddings, G at least 2, on the encoder's device.
        margin: cosine by which the best impostor should win, at least 0; None for no hinge.
        identity: (G,) whole numbers, equal for pictures of the same identity; None if every picture is its own.

    Examples:
        >>> from attacks import Retrieval
        >>> gallery, features = torch.eye(3), torch.tensor([[3.0, 4.0, 0.0], [4.0, 3.0, 0.0]])
        >>> losses = Retrieval(gallery)(features, torch.tensor([0, 0]))
        >>> [round(loss, 2) for loss in losses.tolist()]  # 0.6 - 0.8: the first is taken for row 1
        [-0.2, 0.2]
    """

    gallery: Tensor
    margin: float | None = option(
        None, "a view lost by so much hardly counts any more (a hinge)", range="[0, 2)", paper="Carlini & Wagner 2017"
    )
    identity: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gallery", _unit(self.gallery))
        _check_identity(self.identity, self.gallery)
        _check_margin(self.margin)

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D), (N,) -> (N,) in [-2,2]."""
        cosines = _cosines(features, self.gallery)
        if self.identity is None:
            return _hinge(label_scores(cosines, anchor) - other_scores(cosines, anchor).amax(1), self.margin)
        matches = alike(self.identity, label_columns(anchor, cosines))
        true, false = (cosines.masked_fill(mask, -math.inf).amax(1) for mask in (~matches, matches))
        return _hinge(true - false, self.margin)


@dataclass(frozen=True, eq=False)
class InfoNCE(Objective):
    r"""Minus the contrastive loss (van den Oord et al. 2018, eq. 4) of the true match against a whole gallery: the
    logarithm of the true match's share of softmax(cosines / temperature). The anchor holds its row, (N,) whole
    numbers. If `targeted`, it is the contrastive loss of the target, whose row the anchor holds. With identities it
    is the share of all pictures of the identity together (as in Goldberger et al. 2004).

    Formula: \log \frac{e^{\cos(f, g_y) / \tau}}{\sum_j e^{\cos(f, g_j) / \tau}}
    Use: a target that has to come first in the gallery, or an encoder that was trained with this loss.
    Not: a gallery that the attacker does not know: `Away`, `Toward`.
    Cost: a product of each view's embedding with the gallery.
    Oracle: the cross-entropy of the gallery, tests/objectives/test_aim.py.

    `gallery` and `identity` are those of `Retrieval`; `temperature` is above 0, that of the encoder's training, if it
    is known.

    Examples:
        >>> from attacks.objectives import InfoNCE
        >>> features, rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
        >>> losses = InfoNCE(torch.eye(2), temperature=1.0)(features, rows)
        >>> [round(share, 3) for share in losses.exp().tolist()]  # e / (e + 1) and 1 / (e + 1)
        [0.731, 0.269]
    """

    gallery: Tensor
    temperature: float = 0.07
    targeted: bool = False
    identity: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gallery", _unit(self.gallery))
        _check_identity(self.identity, self.gallery)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"`temperature` must be a positive number; got {self.temperature} (0.07 is common)")

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        logits = _cosines(features, self.gallery) / self.temperature
        if self.identity is None:
            return CrossEntropy(self.targeted)(logits, anchor)
        matches = alike(self.identity, label_columns(anchor, logits))
        share = logits.masked_fill(~matches, -math.inf).logsumexp(1) - logits.logsumexp(1)
        return -share if self.targeted else share


@dataclass(frozen=True)
class Triplet(Objective):
    r"""The triplet loss (Schroff et al. 2015) for an attacker: the view should be nearer to the `positive`, its
    target, than to the `negative`, its own picture. The loss is cos(e, negative) - cos(e, positive), with the leaky
    hinge and the `margin` of `Retrieval`; the anchor holds both, (N,D) each.

    Formula: \cos(f, a^-) - \cos(f, a^+)
    Use: a view that only has to be nearer to the target than to its own picture.
    Not: a target that has to be nearer than everything else: `InfoNCE` with a target.
    Oracle: torch's triplet loss, tests/objectives/test_embedding.py.

    Examples:
        >>> from attacks.objectives import Triplet
        >>> anchor = {"positive": torch.tensor([[1.0, 0.0]]), "negative": torch.tensor([[0.0, 1.0]])}
        >>> round(float(Triplet()(torch.tensor([[3.0, 4.0]]), anchor)), 2)  # 0.8 - 0.6
        0.2
    """

    margin: float | None = None

    def __post_init__(self) -> None:
        _check_margin(self.margin)

    def __call__(self, features: Tensor, anchor: Mapping[str, Tensor]) -> Tensor:
        """(N,D), {"positive": (N,D), "negative": (N,D)} -> (N,) in [-2,2]."""
        if not isinstance(anchor, Mapping) or set(anchor) != {"positive", "negative"}:
            kind = sorted(anchor) if isinstance(anchor, Mapping) else type(anchor).__name__
            raise ValueError(f"`anchor` of Triplet must be a mapping of positive and negative; got {kind}")
        far, near = (similarity(features, anchor[name], "cosine") for name in ("negative", "positive"))
        return _hinge(far - near, self.margin)


@dataclass(frozen=True)
class Verification(Objective):
    """The view and its own picture should no longer be accepted as the same.

    The loss is the distance of the cosine from the threshold of a wrong decision; at 0 and below the decision is
    wrong, so `stop=0` ends the attack there. The anchor (N,D) is the embedding that the view is verified against.

    Use: a system that accepts or rejects a pair at a threshold.
    Not: a search in a gallery: `Retrieval`.
    Source: the distance to a decision threshold, as of any verification.
    Oracle: the formula, tests/objectives/test_embedding.py.

    A pair with at least the cosine `threshold`, between -1 and 1, is accepted as the `same`: a genuine pair that
    should be rejected, or else an impostor that should be accepted.

    Examples:
        >>> from attacks.objectives import Verification
        >>> features, anchor = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> losses = Verification(threshold=0.5)(features, anchor)
        >>> [round(loss, 2) for loss in losses.tolist()]  # cosines of 0.6 and 0: the second pair is rejected
        [0.1, -0.5]
    """

    threshold: float = option(0.5, "the cosine from which the deployed system accepts a pair", range="(-1, 1)")
    same: bool = True

    def __post_init__(self) -> None:
        if not -1 < self.threshold < 1:
            raise ValueError(f"`threshold` is a cosine, between -1 and 1; got {self.threshold}")

    @property
    def stationary_at_anchor(self) -> bool:
        return self.same

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        above = similarity(features, anchor, "cosine") - self.threshold
        return above if self.same else -above

    @property
    def attracts(self) -> bool:
        return not self.same


@dataclass(frozen=True, eq=False)
class ByText(Objective):
    """A `loss` on logits where classes are texts: the logits are `scale` times the cosines with the texts' embeddings
    `rows` (K,D), as in CLIP (Radford et al. 2021), whose trained scale is 100. The anchor is that of the loss.

    Examples:
        >>> from attacks.objectives import ByText, Margin
        >>> features, label = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
        >>> round(float(ByText(Margin(), torch.eye(2), scale=1.0)(features, label)), 2)  # 0.8 - 0.6
        0.2
    """

    loss: Objective
    rows: Tensor
    scale: float = 100.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _unit(self.rows))

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        return self.loss(self.scale * _cosines(features, self.rows), anchor)


def alike(identity: Tensor, rows: Tensor) -> Tensor:
    """Which pictures of the gallery have the identity of each row: (G,), (N,) -> (N,G), on the device of `rows`."""
    identity = identity.to(rows.device)
    return identity[rows][:, None] == identity


def _hinge(gap: Tensor, margin: float | None) -> Tensor:
    return gap if margin is None else F.leaky_relu(gap + margin, LEAK) - margin


def _cosines(features: Tensor, gallery: Tensor) -> Tensor:
    """(N,D), (G,D) of unit length -> (N,G)."""
    width = gallery.shape[1]
    if embedding(features, "`features`", tokens=False).shape[1] != width:
        raise ValueError(f"`features` must be as wide as the gallery's, {width}; got {features.shape[1]}")
    return F.normalize(features, dim=1) @ gallery.to(features).T


def _unit(gallery: Tensor) -> Tensor:
    if gallery.dim() != 2 or len(gallery) < 2:
        raise ValueError(f"`gallery` must hold embeddings (G,D) of two or more; got shape {tuple(gallery.shape)}")
    return F.normalize(gallery.detach(), dim=1)


def _check_identity(identity: Tensor | None, gallery: Tensor) -> None:
    if identity is None:
        return
    if identity.shape != gallery.shape[:1] or identity.is_floating_point():
        raise ValueError(
            f"`identity` must hold {len(gallery)} whole numbers; got {identity.dtype} of shape {(*identity.shape,)}"
        )
    if len(identity.unique()) < 2:
        raise ValueError("`gallery` shows one identity only, so there is nothing else to be taken for; add pictures")


def _check_margin(margin: float | None) -> None:
    if margin is not None and not 0 <= margin < 2:
        raise ValueError(f"`margin` is a difference of cosines and must lie in [0, 2); got {margin}")

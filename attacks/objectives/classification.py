"""Objectives where the encoder has a classifier head: features are logits (N,K), and the anchor holds labels."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.tree import embedding
from attacks.eot.protocols import Objective

#: Keeps equal logits from dividing by zero, as in AutoAttack.
TINY = 1e-12


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Minus the cross-entropy of the true label; if `targeted`, the cross-entropy of the target. The anchor is that
    label, (N,) whole numbers. Of a very confident classifier its gradient is lost in rounding; that of `DLR` is not.

    Examples:
        >>> from attacks import CrossEntropy
        >>> logits, label = torch.zeros(1, 10), torch.tensor([0])
        >>> losses = CrossEntropy()(logits, label), CrossEntropy(targeted=True)(logits, label)
        >>> [round(float(loss), 4) for loss in losses]  # the logarithm of 10
        [-2.3026, 2.3026]
    """

    targeted: bool = False

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        # `F.cross_entropy` would leave a label of -100 out
        log_share = label_scores(embedding(features, "the logits", tokens=False).log_softmax(1), anchor)
        return -log_share if self.targeted else log_share


@dataclass(frozen=True)
class Margin(Objective):
    r"""The true label's logit minus the highest other one (Carlini & Wagner 2017, their f_6); below 0 the label is
    lost. If `targeted`, the highest other logit minus the target's. The anchor is that label, (N,) whole numbers.
    Unlike `CrossEntropy` its gradient does not fade where the classifier is sure.

    Formula: z_y - \max_{j \ne y} z_j

    Examples:
        >>> from attacks.objectives import Margin
        >>> logits, label = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0])
        >>> Margin()(logits, label).tolist(), Margin(targeted=True)(logits, label).tolist()
        ([1.0], [-1.0])
    """

    targeted: bool = False

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        logits = embedding(features, "the logits", tokens=False)
        gap = label_scores(logits, anchor) - other_scores(logits, anchor).amax(1)
        return -gap if self.targeted else gap


@dataclass(frozen=True)
class DLR(Objective):
    r"""The difference of logits ratio (Croce & Hein 2020), which a shift or a scale of all logits does not change.

    Untargeted (their eq. 6): (z_y - max_{i != y} z_i) / (z_1st - z_3rd); below 0 the label is lost. The anchor is y,
    (N,) whole numbers. A view whose true label is third has the loss -1 exactly and, in AutoAttack, no gradient. Here
    the third logit is then a constant, so that the gradient stays: other views may still need it.

    Targeted (eq. 7): (z_y - z_t) / (z_1st - (z_3rd + z_4th) / 2); the anchor is {"label": y, "target": t}, (N,) each.
    It loses the label in the direction of t, but only a targeted `CrossEntropy` requires t to come first.

    Formula: \frac{z_y - \max_{j \ne y} z_j}{z_{\pi_1} - z_{\pi_3}}

    Examples:
        >>> from attacks.objectives import DLR
        >>> logits, label = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([0])
        >>> DLR()(logits, label).tolist(), DLR()(10 * logits + 5, label).tolist()  # (z_y - z_2nd) / (z_1st - z_3rd)
        ([0.5], [0.5])
    """

    targeted: bool = False

    def __call__(self, features: Tensor, anchor: Tensor | Mapping[str, Tensor]) -> Tensor:
        """(N,K), labels -> (N,). Raises ValueError for fewer than 3 classes (targeted: 4)."""
        classes = 4 if self.targeted else 3
        if embedding(features, "the logits", tokens=False).shape[1] < classes:
            raise ValueError(
                f"DLR needs at least {classes} classes; got {tuple(features.shape)}: use CrossEntropy for fewer"
            )
        top = features.topk(classes, dim=1).values
        if not self.targeted:
            assert isinstance(anchor, Tensor)
            gap = label_scores(features, anchor) - other_scores(features, anchor).amax(1)
            third = torch.where(label_scores(features, anchor) == top[:, 2], top[:, 2].detach(), top[:, 2])
            return gap / (top[:, 0] - third + TINY)
        if not isinstance(anchor, Mapping) or set(anchor) != {"label", "target"}:
            raise ValueError("`anchor` of a targeted DLR must be a mapping of label and target, whole numbers (N,)")
        gap = label_scores(features, anchor["label"]) - label_scores(features, anchor["target"])
        return gap / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def label_scores(scores: Tensor, rows: Tensor) -> Tensor:
    """The score in the column of each row: (N,K), (N,) -> (N,)."""
    return scores.gather(1, label_columns(rows, scores)[:, None])[:, 0]


def other_scores(scores: Tensor, rows: Tensor) -> Tensor:
    """The scores with that column at minus infinity: (N,K), (N,) -> (N,K)."""
    return scores.scatter(1, label_columns(rows, scores)[:, None], -float("inf"))


def label_columns(anchor: Tensor, scores: Tensor) -> Tensor:
    """The anchor as whole numbers on the scores' device. Raises ValueError if it is something else and, on the host,
    for one that is out of range (a device stops at such a label itself)."""
    if not isinstance(anchor, Tensor) or anchor.is_floating_point() or anchor.shape != scores.shape[:1]:
        kind = f"{anchor.dtype} of shape {tuple(anchor.shape)}" if isinstance(anchor, Tensor) else type(anchor)
        raise ValueError(f"`anchor` must hold a whole number for each of {len(scores)} views, (N,); got {kind}")
    if anchor.device.type == "cpu" and bool(((anchor < 0) | (anchor >= scores.shape[1])).any()):
        low, high = int(anchor.min()), int(anchor.max())
        raise ValueError(f"`anchor` must hold columns of the scores, 0..{scores.shape[1] - 1}; got {low} to {high}")
    return anchor.to(scores.device).long()

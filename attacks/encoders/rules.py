"""Rules of a `Panel`: what becomes of the features of a picture and of its views.

Papers state them for unit features. Here directions are combined, and the answer has the length of the picture's own
features, so that views which change nothing leave the encoder's answer as it is. Averages of logits are averages of
features, since logits are linear in them."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.schema.options import option


class Rule(Protocol):
    """The features of pictures and of their views, (N,1+k,D), a picture's own first -> (N,D): a function, or an
    object that holds its settings. Rows do not depend on one another. A detector has `score` too, of the same
    features (N,), lower where it suspects an attack; `false_alarms` is the share of clean views that it may flag,
    0.05 where it does not say."""

    def __call__(self, features: Tensor) -> Tensor: ...


def directions(features: Tensor) -> tuple[Tensor, Tensor]:
    """Unit features (N,1+k,D), and the length (N,1) of the picture's own."""
    return F.normalize(features, dim=-1), features[:, 0].norm(dim=-1, keepdim=True)


def refuse_share(share: float) -> None:
    """Raise ValueError for a `share` outside (0, 1]."""
    if not 0 < share <= 1:
        raise ValueError(f"`share` must be above 0 and at most 1; got {share:g}: 1 takes all")


@dataclass(frozen=True)
class ViewMean:
    """The mean of the picture and its views (TTE, Pérez et al. 2021)."""

    def __call__(self, features: Tensor) -> Tensor:
        units, length = directions(features)
        return length * units.mean(1)


@dataclass(frozen=True)
class SmoothedFeatures:
    """The mean of the views alone: with noise as views, the features smoothed by it (Cohen et al. 2019)."""

    def __call__(self, features: Tensor) -> Tensor:
        units, length = directions(features)
        return length * units[:, 1:].mean(1)


@dataclass(frozen=True)
class ReliabilityVote:
    """The weighted mean of R-TPT (Sheng et al. 2025), without its prompts: a view near to others weighs more."""

    temperature: float = option(0.01, "of the softmax that makes weights of mean cosines", range="above 0")
    share: float = option(0.3, "of the others, the nearest, whose cosines rate a view", range="above 0, at most 1")

    def __post_init__(self) -> None:
        refuse_share(self.share)
        if not self.temperature > 0:
            raise ValueError(f"`temperature` must be above 0; got {self.temperature:g}: 0.01 is the paper's")

    def __call__(self, features: Tensor) -> Tensor:
        units, length = directions(features)
        rest = units.shape[1] - 1
        diagonal = torch.eye(rest + 1, dtype=torch.bool, device=units.device)
        cosines = (units @ units.mT).masked_fill(diagonal, -torch.inf)
        rating = cosines.topk(max(1, round(self.share * rest)), -1).values.mean(-1)
        return length * ((rating / self.temperature).softmax(-1)[..., None] * units).sum(1)


@dataclass(frozen=True)
class DirectionalBias:
    """A step along the mean drift of the views, a long one where all drift alike (DBD, Liu et al. 2026)."""

    gain: float = option(2.5, "the length of the step, in mean drifts, where drifts agree", range="any number")
    threshold: float = option(0.8, "their mean cosine to the mean drift, above which they agree; of CLIP")
    share: float = option(
        1.0, "of the views, those of least entropy; the paper's 0.5 needs logits", range="above 0, at most 1"
    )

    def __post_init__(self) -> None:
        refuse_share(self.share)

    def __call__(self, features: Tensor) -> Tensor:
        units, length = directions(features)
        drifts = units[:, 1:] - units[:, :1]
        if self.share < 1:
            surprise = features[:, 1:].log_softmax(-1)
            entropy = -(surprise.exp() * surprise).sum(-1)
            rows = entropy.topk(max(1, round(self.share * drifts.shape[1])), largest=False).indices
            drifts = drifts.take_along_dim(rows[..., None], 1)
        mean = drifts.mean(1)
        bias = F.cosine_similarity(drifts, mean[:, None], dim=-1).mean(1, keepdim=True)
        return length * (units[:, 0] + torch.where(bias > self.threshold, self.gain, 1.0) * mean)


@dataclass(frozen=True)
class GeodesicStep:
    """A step on the sphere towards the mean of the views, and past it where they are far from the picture and near to
    one another (AGC, Li et al. 2026)."""

    low: float = option(0.45, "the shortest step, in angles between the picture and the mean of its views")
    high: float = option(2.25, "the longest step, in the same unit")

    def __call__(self, features: Tensor) -> Tensor:
        units, length = directions(features)
        origin, views = units[:, 0], units[:, 1:]
        count, total = views.shape[1], views.sum(1)
        distance = (1 - (views * origin[:, None]).sum(-1)).mean(1, keepdim=True).clamp(1e-12, 1)
        pairs = (total.square().sum(-1, keepdim=True) - count) / max(1, count * (count - 1))  # their mean cosine
        trust = ((pairs + 1) / 2).clamp(0, 1) if count > 1 else torch.ones_like(distance)
        anchor = F.normalize(total, dim=-1)
        cosine = (origin * anchor).sum(-1, keepdim=True)
        tangent = anchor - cosine * origin
        angle = torch.atan2(tangent.norm(dim=-1, keepdim=True), cosine)
        step = angle * (self.low + (self.high - self.low) * distance**0.9 * trust)
        return length * (step.cos() * origin + step.sin() * F.normalize(tangent, dim=-1))


@dataclass(frozen=True)
class ViewConsistency:
    """A detector: the picture's own features, with the mean cosine of its views to it as score. With padding as the
    views it is that of padding, with others that of drift."""

    false_alarms: float = option(0.05, "of clean views, the share that it may flag", range="above 0, below 1")

    def __call__(self, features: Tensor) -> Tensor:
        return features[:, 0]

    def score(self, features: Tensor) -> Tensor:
        return F.cosine_similarity(features[:, 1:], features[:, :1], dim=-1).mean(1)

"""The likeness of a picture to its anchor, its gradient, and the pixels that the gradient reaches through views."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.randomness import encoder_draws
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.scores import signature_method
from attacks.objectives.bits import Bits
from attacks.objectives.embedding import similarity
from attacks.runtime.values import stored
from transforms.auditing.coverage import coverage, effective, root_mean_square
from transforms.doors import unchecked
from transforms.scene import scene_of

#: The number of views, the first ones of the bank.
VIEWS = 8


@dataclass
class CountedEncoder:
    """An encoder, and the number of pictures in its forward and backward passes."""

    encoder: nn.Module
    forward: int = 0
    backward: int = 0

    @torch.no_grad()
    def likeness(self, pictures: Tensor, anchors: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) or (1,D) -> (R,): the cosine of the evaluation; of a hash, between bits."""
        features, signature = self._features(pictures), signature_method(self.encoder)
        anchors = anchors.expand_as(features)
        if signature is not None:
            features, anchors = signature(features), signature(anchors)
        return similarity(features, anchors, "cosine")

    def slope_values(self, pictures: Tensor, anchors: Tensor, **draws: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) -> (R,), with a graph: the value whose gradient the maps show.

        The cosine with the length of the embedding held fixed: a picture's cosine to its own embedding is at its
        maximum, where the gradient is zero. Bits have no gradient, so for a hash it is the soft share of equal
        bits."""
        features = self._features(pictures, **draws)
        anchors = anchors.expand_as(features)
        if signature_method(self.encoder) is not None:
            return Bits()(features, anchors)
        length: Tensor = torch.linalg.vector_norm(features.detach(), dim=-1).clamp(min=1e-12)
        return (features * F.normalize(anchors, dim=-1)).sum(-1) / length

    def gradients(self, values: Tensor, at: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient of the sum of `values` (R,) at each tensor; None where the graph does not reach it."""
        if not values.requires_grad:
            return [None] * len(at)
        self.backward += len(values)
        leaves = [tensor for tensor in at if tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values.sum(), leaves, allow_unused=True) if leaves else ())
        return [next(gradients) if tensor.requires_grad else None for tensor in at]

    def _features(self, pictures: Tensor, **draws: Tensor) -> Tensor:
        self.forward += len(pictures)
        features: Tensor = unchecked(self.encoder)(pictures, **draws)
        return features


def saliency(gradient: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,H,W): the absolute values summed over the channels (Simonyan et al. 2014)."""
    return gradient.detach().abs().sum(1)


@stored("explanation.gradients")
class Reach(NamedTuple):
    """The gradient at N pictures over some views: its root mean square length at each pixel, `sensitivity` (N,H,W);
    and (N,) the share of pixels with a gradient in any view (`coverage`) and in one `view` on average, and the
    participation ratio of the sensitivities (`effective`)."""

    sensitivity: Tensor
    coverage: Tensor
    view: Tensor
    effective: Tensor


def reach(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor, bank: Bank, chunk: int) -> Reach | None:
    """The gradient of the similarity in the first views of `bank` at the pictures (N,3,H,W), at most `chunk` views at
    a time; None if the encoder has no gradient."""
    u = bank.u[:VIEWS].to(pictures)
    rows: list[tuple[Tensor, ...]] = []

    def view_gradients(points: Tensor, picture: Tensor, anchor: Tensor) -> list[Tensor | None]:
        # One copy for each view gives one gradient for each.
        leaf = picture.detach().repeat(len(points), 1, 1, 1).requires_grad_()
        with torch.enable_grad():
            views = unchecked(bank.transforms)(scene_of(leaf), points)
            values = encoder.slope_values(views, anchor[None], **encoder_draws(bank.transforms, points))
            return encoder.gradients(values, [leaf])

    for picture, anchor in zip(pictures, anchors, strict=True):
        parts = []
        for _, (gradient,) in in_parts(partial(view_gradients, picture=picture, anchor=anchor), u, chunk):
            if gradient is None:
                return None
            parts.append(gradient.nan_to_num(0, 0, 0))
        maps = torch.cat(parts).double().norm(dim=1).cpu()
        weights = root_mean_square(list(maps))
        numbers = coverage(weights), sum(map(coverage, maps)) / len(maps), effective(weights)
        rows.append((weights, *map(torch.tensor, numbers)))
    return Reach(*(torch.stack(column) for column in zip(*rows, strict=True)))

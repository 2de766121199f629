"""The likeness of a picture to its anchor, its gradient, and the number of passes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.evaluation.scores import signature_of
from attacks.objectives.bits import Bits
from attacks.objectives.embedding import similarity
from transforms.doors import unchecked


@dataclass
class CountedEncoder:
    """An encoder, and the number of pictures in its forward and backward passes."""

    encoder: nn.Module
    forward: int = 0
    backward: int = 0

    @torch.no_grad()
    def judged(self, pictures: Tensor, anchors: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) or (1,D) -> (R,): the cosine of the evaluation; of a hash, between bits."""
        features, signature = self._features(pictures), signature_of(self.encoder)
        anchors = anchors.expand_as(features)
        if signature is not None:
            features, anchors = signature(features), signature(anchors)
        return similarity(features, anchors, "cosine")

    def sloped(self, pictures: Tensor, anchors: Tensor, **draws: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) -> (R,), with a graph: the value whose gradient the maps show.

        The cosine with the length of the embedding held fixed: a picture's cosine to its own embedding is at its
        maximum, where the gradient is zero. Bits have no gradient, so for a hash it is the soft share of equal bits.
        """
        features = self._features(pictures, **draws)
        anchors = anchors.expand_as(features)
        if signature_of(self.encoder) is not None:
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

"""The set of one delta for a clip that changes slowly over its frames."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball
from attacks.perturbations.universal import Universal
from transforms.devices import uploaded


@dataclass(frozen=True, eq=False)
class Keyframes(Universal):
    """K key frames (1,K*C,H,W), each in the ball of `inner`; a picture's delta is their mean by its row of `weights`
    (N,K), at least 0 with the sum 1. So it lies in the ball, where that is convex (all but `L0`)."""

    weights: Tensor

    def take(self, rows: Tensor) -> Self:
        return replace(self, weights=self.weights[rows.to(self.weights.device)])

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return super().start(images, generator).repeat(1, self.weights.shape[1], 1, 1)

    # The same in every key frame: noise between others would be weaker.
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return super().noise(images, generator).repeat(1, self.weights.shape[1], 1, 1)

    def interpolated(self, delta: Tensor) -> Tensor:
        """The delta of each picture, (N,C,H,W), from key frames (1,K*C,H,W), or a row of them for each."""
        weights = uploaded(self.weights.to(delta.dtype), delta.device)
        return torch.einsum("nk,nkchw->nchw", weights, delta.unflatten(1, (weights.shape[1], -1)))

    def _apart(self, delta: Tensor) -> Tensor:
        """Key frames (B,K*C,H,W) as deltas of their own, (B*K,C,H,W)."""
        return delta.reshape(len(delta) * self.weights.shape[1], -1, *delta.shape[2:])


def between(inner: Ball, places: Tensor) -> Universal:
    """The set of pictures that stand at `places` (N,) between numbered key frames: at 2.25 a picture has three
    quarters of key frame 2 and one of 3. Key frames that no picture has are left out."""
    numbers = torch.cat([places.floor(), places.ceil()]).unique()
    weights = (1 - (places[:, None] - numbers).abs()).clamp(min=0)
    return Universal(inner) if len(numbers) == 1 else Keyframes(inner, weights)

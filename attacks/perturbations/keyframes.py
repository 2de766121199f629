"""The set of one delta for a clip that changes slowly over its frames."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball
from attacks.perturbations.universal import Universal
from transforms.devices import uploaded
from transforms.sampling.straight_through import saturate
from transforms.scene import Scene, scene_of


@dataclass(frozen=True, eq=False)
class Keyframes(Universal):
    """K key frames (1,K*C,H,W), each in the ball of `inner`; a picture's delta is their mean by its row of `weights`
    (N,K), at least 0 with the sum 1. So it lies in the ball, where that is convex (all but `L0`).

    Examples:
        >>> import torch
        >>> from attacks import Linf
        >>> clip = Keyframes(Linf(0.25), torch.tensor([[1, 0], [0.5, 0.5], [0, 1]]))  # the second: between two
        >>> clip.interpolated(torch.tensor([0.25, 0]).view(1, 2, 1, 1)).flatten().tolist()
        [0.25, 0.125, 0.0]
    """

    weights: Tensor

    def take(self, rows: Tensor) -> Self:
        return replace(self, weights=self.weights[rows.to(self.weights.device)])

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return super().start(images, generator).repeat(1, self.weights.shape[1], 1, 1)

    # The same in every key frame: noise between others would be weaker.
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return super().noise(images, generator).repeat(1, self.weights.shape[1], 1, 1)

    def interpolated(self, keys: Tensor) -> Tensor:
        """The delta of each picture, (N,C,H,W), from key frames (1,K*C,H,W), or a row of them for each."""
        weights = uploaded(self.weights.to(keys.dtype), keys.device)
        return torch.einsum("nk,nkchw->nchw", weights, keys.unflatten(1, (weights.shape[1], -1)))

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        frames = self.interpolated(self.inner.shown(self._apart(delta)).reshape_as(delta))
        return scene_of(saturate(images + frames))

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        return self.inner.descend(self._apart(grad), length, self._apart(delta), None).reshape_as(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        return self.project(self.inner.restrict(self._apart(delta + by)).reshape_as(delta), images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        return self.inner.project(self._apart(delta), None).reshape_as(delta)

    def norm(self, delta: Tensor) -> Tensor:
        return self.inner.norm(self._apart(delta)).reshape(len(delta), -1).amax(1)

    def length(self, delta: Tensor) -> Tensor:
        return self.inner.length(self._apart(delta)).reshape(len(delta), -1).amax(1)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        return self.inner.quantise(self.interpolated(delta), images)

    def _apart(self, delta: Tensor) -> Tensor:
        """Key frames (B,K*C,H,W) as deltas of their own, (B*K,C,H,W)."""
        return delta.reshape(len(delta) * self.weights.shape[1], -1, *delta.shape[2:])


def between(inner: Ball, places: Tensor) -> Universal:
    """The set of pictures that stand at `places` (N,) between numbered key frames: at 2.25 a picture has three
    quarters of key frame 2 and one of 3. Key frames that no picture has are left out."""
    numbers = torch.cat([places.floor(), places.ceil()]).unique()
    weights = (1 - (places[:, None] - numbers).abs()).clamp(min=0)
    return Universal(inner) if len(numbers) == 1 else Keyframes(inner, weights)

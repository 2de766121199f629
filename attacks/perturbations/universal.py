"""The set of one delta that all pictures share."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball, check_inner
from attacks.perturbations.base import PerturbationSet
from transforms.sampling.straight_through import saturate
from transforms.scene import Scene, scene_of


@dataclass(frozen=True)
class Universal(PerturbationSet):
    """One delta (1,C,H,W) for all images (Moosavi-Dezfooli et al. 2017), in the ball of `inner`.

    No box holds the delta; each attacked picture is clamped to [0,1] instead. What wraps a set (`Masked`,
    `LowFrequency`, ...) goes inside: Universal(Masked(Linf(8 / 255), mask)).

    Examples:
        >>> from attacks import Linf, Universal
        >>> from transforms.scene import base_of
        >>> universal, images = Universal(Linf(0.25)), torch.tensor([0.5, 1.0]).view(2, 1, 1, 1)
        >>> delta = universal.project(torch.ones(1, 1, 1, 1), images)  # one for both pictures
        >>> delta.item(), base_of(universal.scene(images, delta)).flatten().tolist()
        (0.25, [0.75, 1.0])
    """

    shared: ClassVar[bool] = True
    inner: Ball

    def __post_init__(self) -> None:
        check_inner(self.inner, "Universal")

    @property
    def eps(self) -> float:
        return self.inner.eps

    @property
    def random_start(self) -> bool:
        return self.inner.random_start

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first delta (1,C,H,W): that of `inner` without its box, or zero."""
        if not self.random_start:
            return torch.zeros_like(images[:1])
        return self.inner.inside(self.inner.draw(images[:1], generator), None)

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.inner.farthest(self.inner.draw(images[:1], generator), None)

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The attacked pictures; `delta` is (1,C,H,W), or has a row for each of them. A value pushed out of [0,1] has
        no gradient there, one on a bound has."""
        return scene_of(saturate(images + self.interpolated(self.inner.shown(self._apart(delta)).reshape_as(delta))))

    @property
    def reach(self) -> float:
        return self.inner.reach

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
        """The delta (N,C,H,W) that the 8-bit file of each attacked picture will hold, within `eps` and the box: no
        longer one for all, where a picture is clamped, or where rounding had to be kept within `eps`."""
        return self.inner.quantise(self.interpolated(delta).expand_as(images), images)

    def interpolated(self, delta: Tensor) -> Tensor:
        """The delta of each picture, or one that is the same for all."""
        return delta

    def _apart(self, delta: Tensor) -> Tensor:
        """The deltas that must each lie in the ball, (M,C,H,W), M a multiple of the rows of `delta`."""
        return delta

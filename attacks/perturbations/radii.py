"""A set with a radius of its own for each picture."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball
from attacks.perturbations.base import PerturbationSet
from transforms.devices import uploaded
from transforms.scene import Scene


@dataclass(frozen=True, eq=False)
class Radii(PerturbationSet):
    """The set `inner` with a radius for each picture, and the deltas to start from. Lengths are shares of a picture's
    radius, so the radius of all is 1; all else is that of `inner`.

    Args:
        inner: any set of one delta a picture.
        radii: (N,), in the norm of `inner`.
        first: (N,C,H,W), in these sets.
        pace: what an optimiser's whole reach amounts to, as a share of each radius.
    """

    eps: ClassVar[float] = 1.0
    reach: ClassVar[float] = 1.0
    random_start: ClassVar[bool] = True  # `first` is no zero
    inner: Ball
    radii: Tensor
    first: Tensor
    pace: float = 1.0

    def take(self, rows: Tensor) -> Self:
        radii, first = (tensor[uploaded(rows, tensor.device)] for tensor in (self.radii, self.first))
        return type(self)(self.inner.take(rows), radii, first, self.pace)

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        return self.first

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.project(self.inner.noise(images, generator), images)

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        return self.inner.scene(images, delta)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:
        """The move that lowers the loss most, to first order, of `length` times `pace` times each picture's reach."""
        lengths = torch.as_tensor(length, dtype=delta.dtype).expand(len(delta)).tolist()
        rows = zip(self._balls(), lengths, grad.split(1), delta.split(1), images.split(1), strict=True)
        return torch.cat([ball.descend(g, self.pace * ball.reach * share, *row) for ball, share, g, *row in rows])

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        rows = zip(self._balls(), delta.split(1), by.split(1), images.split(1), strict=True)
        return torch.cat([ball.move(*row) for ball, *row in rows])

    def project(self, delta: Tensor, images: Tensor) -> Tensor:
        rows = zip(self._balls(), delta.split(1), images.split(1), strict=True)
        return torch.cat([ball.project(*row) for ball, *row in rows])

    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W), or one direction (1,C,H,W), -> (N,): 1 is on the edge of the picture's set."""
        return self.inner.norm(delta) / self.radii.to(delta)

    def length(self, delta: Tensor) -> Tensor:
        """(N,C,H,W), or one direction (1,C,H,W), -> (N,): in reaches of each picture's set."""
        return self.inner.length(delta) / reaches(self.inner, self.radii).to(delta)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        rows = zip(self._balls(), delta.split(1), images.split(1), strict=True)
        return torch.cat([ball.in_levels(*row) for ball, *row in rows])

    def _balls(self) -> list[Ball]:
        radii = self.radii.tolist()
        return [self.inner.take(torch.tensor([i])).sized(radius) for i, radius in enumerate(radii)]


def reaches(ball: Ball, radii: Tensor) -> Tensor:
    """The reach of the ball with each of these radii, (N,): its unit need not be theirs, see `L0`."""
    return radii.new_tensor([ball.sized(radius).reach for radius in radii.tolist()])

"""Sets with a radius of its own for each picture: of a search for the smallest one, and of a table."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball
from attacks.perturbations.base import PerturbationSet
from attacks.perturbations.wrapper import Wrapper
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
        share = torch.as_tensor(length, dtype=self.radii.dtype, device=self.radii.device)
        lengths = (self.pace * reaches(self.inner, self.radii) * share).to(delta)
        return by_radius("descend", self.inner, self.radii, grad, lengths, delta, images)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        return by_radius("move", self.inner, self.radii, delta, by, images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:
        return by_radius("project", self.inner, self.radii, delta, images)

    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W), or one direction (1,C,H,W), -> (N,): 1 is on the edge of the picture's set."""
        return self.inner.norm(delta) / self.radii.to(delta)

    def length(self, delta: Tensor) -> Tensor:
        """(N,C,H,W), or one direction (1,C,H,W), -> (N,): in reaches of each picture's set."""
        return self.inner.length(delta) / reaches(self.inner, self.radii).to(delta)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        return by_radius("in_levels", self.inner, self.radii, delta, images)


@dataclass(frozen=True, eq=False)
class RadiusByRow(Wrapper):
    """The set `inner` with a radius for each picture, as a table has them. `eps` is that of `inner`, the largest, and
    norms and lengths are in its unit: a delta whose norm is `eps` is on the edge of its picture's set.

    Args:
        inner: any set of one delta a picture.
        shares: (N,), each picture's radius as a share of `eps`, above 0 and at most 1.

    Examples:
        >>> from attacks.perturbations import Linf, RadiusByRow
        >>> sets = RadiusByRow(Linf(0.5), torch.tensor([0.5, 1.0]))
        >>> sets.project(torch.ones(2, 1, 1, 1), torch.zeros(2, 1, 1, 1)).flatten().tolist()
        [0.25, 0.5]
    """

    inner: Ball
    shares: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares.dim() != 1 or not bool(((self.shares > 0) & (self.shares <= 1)).all()):
            raise ValueError(f"`shares` must be (N,), above 0 and at most 1; got {self.shares.tolist()}")

    def take(self, rows: Tensor) -> Self:
        return replace(self, inner=self.inner.take(rows), shares=self.shares[rows.to(self.shares.device)])

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._by_radius("farthest", direction, images)

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._by_radius("inside", direction, images)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor | None) -> Tensor:
        return self.inner.descend(grad, length * self._reaches(grad), delta, images)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        return self._by_radius("move", delta, by, images)

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self._by_radius("project", delta, images)

    def norm(self, delta: Tensor) -> Tensor:
        return self.inner.norm(delta) / self.shares.to(delta)

    def length(self, delta: Tensor) -> Tensor:
        return self.inner.length(delta) / self._reaches(delta)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        return self._by_radius("in_levels", delta, images)

    def _reaches(self, like: Tensor) -> Tensor:
        """(N,): each picture's reach as a share of that of `inner`."""
        reach: float = self.reach
        return reaches(self.inner, self.eps * self.shares).to(like) / reach

    def _by_radius(self, method: str, *tensors: Tensor | None) -> Tensor:
        return by_radius(method, self.inner, self.eps * self.shares, *tensors)


def by_radius(method: str, inner: Ball, radii: Tensor, *tensors: Tensor | None) -> Tensor:
    """A method of `inner` with a radius for each row of its arguments: one call for all rows of one radius."""
    result, rows_of = torch.empty(0), dict[float, list[int]]()
    for row, radius in enumerate(radii.tolist()):
        rows_of.setdefault(radius, []).append(row)
    for radius, rows in rows_of.items():
        index = torch.tensor(rows)
        parts = (x if x is None else x[uploaded(index, x.device)] for x in tensors)
        part: Tensor = getattr(inner.take(index).sized(radius), method)(*parts)
        result = result if len(result) else part.new_empty(len(radii), *part.shape[1:])
        result[uploaded(index, part.device)] = part
    return result


def reaches(ball: Ball, radii: Tensor) -> Tensor:
    """The reach of the ball with each of these radii, (N,): its unit need not be theirs, see `L0`."""
    return radii.new_tensor([ball.sized(radius).reach for radius in radii.tolist()])

"""The base class of perturbations, with the defaults of a delta that is added to each picture."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from transforms.scene import Scene, Shown

#: (x, y) of a texture's upper left, upper right, lower right and lower left corner, in shares of a picture.
Corners = list[list[float]]


class PerturbationSet(ABC):
    """Defaults for the members of a perturbation beyond its start, its steps and its norm.

    They are those of a delta that is part of each picture. A perturbation whose delta is a texture with a file of its
    own (`Patch`) overrides them.
    """

    #: Whether one delta (1,...) serves all pictures, or each has its own (N,...).
    shared: ClassVar[bool] = False

    @property
    def texture_size(self) -> tuple[int, int] | None:
        """(height, width) of the texture, if the delta is one."""
        return None

    @property
    def texture_alpha(self) -> Tensor | None:
        """How opaque each texel is, (1,1,h,w) in [0,1]; None: all are."""
        return None

    def take(self, rows: Tensor) -> Self:  # noqa: ARG002
        """The perturbation for a subset of the pictures (n,), where it has a part for each (a mask, a placement)."""
        return self

    @abstractmethod
    def norm(self, delta: Tensor) -> Tensor:
        """(N,...) -> (N,): at most `eps` in the set."""

    def length(self, delta: Tensor) -> Tensor:
        """(N,...) -> (N,) or (1,...) -> (N,): how far a move goes, in the unit of `reach`; here its norm."""
        return self.norm(delta)

    @abstractmethod
    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:
        """The move of norm `length` that lowers the loss most, to first order."""

    @abstractmethod
    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, projected."""

    def step(self, delta: Tensor, grad: Tensor, length: float | Tensor, images: Tensor) -> Tensor:
        """The point that the steepest move of `length` leads to."""
        return self.move(delta, self.descend(grad, length, delta, images), images)

    def for_arm(self, arm: str) -> Self:  # noqa: ARG002
        """The perturbation of one arm of an experiment, where something round the delta differs (a printed card)."""
        return self

    def written(self, images: Tensor, delta: Tensor) -> Tensor:
        """The attacked pictures (N,C,H,W) as their 8-bit files hold them, from a quantised delta."""
        return images + delta

    def evaluated(self, images: Tensor, delta: Tensor) -> Shown:
        """What the views of an evaluation sample, from a quantised delta: the attacked pictures in 8 bits, or a scene
        with the texture as a layer."""
        return ((images + delta) * 255).round() / 255

    def corners(self) -> list[list[Corners]]:
        """Where the texture lies: for each picture, or once for all, the corners of each of its placements."""
        return []

    def footprint(self, size: tuple[int, int], sheet: bool = False) -> Scene | None:  # noqa: ARG002
        """A white texture without edges of its own on black pictures of `size` (height, width), with `sheet` also
        what is printed round it; None where there is no texture, or no sheet."""
        return None

"""The sets that a perturbation of a whole picture must stay in, and the dense norm balls, each within the box of
pictures, [0,1]. No norm ever spans a batch. A perturbation lives in the picture's own resolution and in [0,1] units,
never in an encoder's normalised space.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.perturbations.base import PerturbationSet
from transforms import Scene, scene_of


class Ball(PerturbationSet, ABC):
    """A set that holds one delta (N,C,H,W) for each picture; the delta is added to it.

    Where a method takes pictures or None, None means no box: the ball alone, for a delta that all pictures share. No
    value can change by more than 1, whatever the picture.
    """

    eps: float
    random_start: bool

    @property
    def reach(self) -> float:
        """The length that an optimiser's steps are shares of: eps."""
        return self.eps

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first delta: a random point inside, or zero."""
        return self.inside(self.draw(images, generator), images) if self.random_start else torch.zeros_like(images)

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The strongest random perturbation of the same budget."""
        return self.farthest(self.draw(images, generator), images)

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random direction, shaped like `like`: the same on every device."""
        return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """The farthest point of the set along `direction`."""
        return self.project(self.eps * self.steepest(direction), images)

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """Half of `farthest`: a start that can still move in any direction."""
        return self.farthest(direction, images) / 2

    def shown(self, delta: Tensor) -> Tensor:
        """The delta that is added to a picture: itself. A subclass may filter the gradient that comes back."""
        return delta

    def restrict(self, delta: Tensor) -> Tensor:
        """The nearest delta of the subspace of all moves; here `delta` itself."""
        return delta

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The attacked pictures as a scene of one layer."""
        return scene_of(images + self.shown(delta))

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor | None) -> Tensor:  # noqa: ARG002
        """The move of norm `length` (one number, or one for each delta) that lowers the loss most, to first order."""
        return -each(length) * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, projected. Added to the picture first, as every published PGD does, so that ours equals theirs
        to the last bit."""
        return self.project(((images + delta) + by) - images, images)

    @abstractmethod
    def steepest(self, grad: Tensor) -> Tensor:
        """The step of norm 1 with the largest inner product with `grad`; zero where `grad` is zero."""

    @abstractmethod
    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        """A point of the set, no farther from any point of the set than `delta` is; `delta` itself if it lies in the
        set."""

    @abstractmethod
    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W) -> (N,)."""

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, still within `eps`.

        images + delta is rounded to multiples of 1/255, and delta is shrunk where that would carry it out. `images`
        must be multiples of 1/255 themselves (they came from 8-bit files).
        """
        rounded = to_levels(delta, images)
        for percent in range(99, -1, -1):
            outside = self.norm(rounded) > self.eps * (1 + 1e-5)  # float32's own rounding is no excess
            if not bool(outside.any()):
                break
            rounded = torch.where(outside[:, None, None, None], to_levels(delta * (percent / 100), images), rounded)
        return rounded


@dataclass(frozen=True)
class Linf(Ball):
    """No value changes by more than `eps` (0..1 scale; write 8/255), and the picture stays in [0,1].

    With `random_start` false the attack starts at zero; an untargeted embedding loss has no gradient there.
    """

    eps: float = 8 / 255
    random_start: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            fix = f"; did you mean {self.eps:g}/255?" if self.eps > 1 else ": write 8/255, say"
            raise ValueError(f"`eps` must lie in (0, 1], got {self.eps:g}{fix}")

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform in -0.5..0.5, on the CPU first, so that every device starts at the same point."""
        return torch.rand(like.shape, generator=generator, dtype=like.dtype).to(like.device) - 0.5

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """For a direction of `draw`, a uniform point (Madry et al. 2018)."""
        return self.project(self.eps * (2 * direction), images)

    def steepest(self, grad: Tensor) -> Tensor:
        return grad.sign()

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        """The nearest delta in the set."""
        return into_box(delta.clamp(-self.eps, self.eps), images)

    def norm(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).abs().amax(1)


@dataclass(frozen=True)
class L2(Ball):
    """The Euclidean norm of each picture's delta, over all its values in [0,1] units, is at most `eps`."""

    eps: float = 4.0
    random_start: bool = True

    def __post_init__(self) -> None:
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(f"`eps` must be a positive number, got {self.eps:g} (4 is common at 128x128)")

    def steepest(self, grad: Tensor) -> Tensor:
        # Measured in its largest value: squares of a very small or very large gradient are 0 or infinite.
        largest = grad.flatten(1).abs().amax(1)
        grad = grad / each(torch.where(largest > 0, largest, 1.0))
        norm = self.norm(grad)
        return grad / each(torch.where(norm > 0, norm, 1.0))

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        """The nearest delta in the ball, clamped to the box, which only shortens it."""
        norm = self.norm(delta)
        return into_box(delta * each(torch.where(norm > self.eps, self.eps / norm, 1.0)), images)  # never enlarges

    def norm(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).square().sum(1).sqrt()


def into_box(delta: Tensor, images: Tensor | None) -> Tensor:
    """The nearest delta with which the picture stays in [0,1]; `delta` itself if `images` is None."""
    return delta if images is None else (images + delta).clamp(0, 1) - images


def each(value: float | Tensor) -> float | Tensor:
    """(N,) or a number, to be multiplied with (N,C,H,W)."""
    return value[:, None, None, None] if isinstance(value, Tensor) and value.dim() else value


def to_levels(delta: Tensor, images: Tensor) -> Tensor:
    """The delta that rounds the picture to 8 bits."""
    return ((images + delta).clamp(0, 1) * 255).round() / 255 - images

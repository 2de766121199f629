"""Perturbations of whole pictures, each with the set that it must stay in: one delta per image, or one for all. No
norm ever spans a batch. A perturbation lives in the picture's own resolution and in [0,1] units, never in an
encoder's normalised space.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms import Scene, scene_of
from transforms.surrogate import saturate


class _Additive:
    """What every perturbation that is added to a picture has in common."""

    shared: ClassVar[bool] = False
    eps: float

    @property
    def reach(self) -> float:
        """The length that an optimiser's steps are shares of: eps."""
        return self.eps

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The attacked pictures as a scene of one layer."""
        return scene_of(images + delta)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The move of norm `length` (one number, or one for each delta) that lowers the loss most, to first order."""
        if isinstance(length, Tensor):
            length = length[:, None, None, None]
        return -length * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, projected. Added to the picture first, as every published PGD does, so that ours equals theirs
        to the last bit."""
        return self.project(((images + delta) + by) - images, images)

    def steepest(self, grad: Tensor) -> Tensor:
        raise NotImplementedError

    def project(self, delta: Tensor, images: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Linf(_Additive):
    """No value changes by more than `eps` (0..1 scale; write 8/255), and the picture stays in [0,1].

    With `random_start` false the attack starts at zero; an untargeted embedding loss has no gradient there.
    """

    eps: float
    random_start: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.eps <= 1:
            raise ValueError(f"`eps` must lie in (0, 1], got {self.eps:g}; did you mean {self.eps:g}/255?")

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first delta: uniform in the box (Madry et al. 2018), or zero."""
        if not self.random_start:
            return torch.zeros_like(images)
        return _into_box(self.within(images, generator), images)

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The strongest random perturbation of the same budget: every value moves by +-eps."""
        return _into_box(self.extreme(images, generator), images)

    def within(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the ball, shaped like `like`: where an attack starts, but for the box."""
        return self.ball(self.eps * (2 * _uniform(like, generator) - 1))

    def extreme(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random corner of the ball, shaped like `like`: the noise, but for the box."""
        return self.ball(self.eps * (_uniform(like, generator) - 0.5).sign())

    def steepest(self, grad: Tensor) -> Tensor:
        """The step of L-inf norm 1 with the largest inner product with `grad`."""
        return grad.sign()

    def project(self, delta: Tensor, images: Tensor) -> Tensor:
        """The nearest delta in the set."""
        return _into_box(self.ball(delta), images)

    def ball(self, delta: Tensor) -> Tensor:
        """The nearest delta in the ball, whatever the picture."""
        return delta.clamp(-self.eps, self.eps)

    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W) -> (N,)."""
        return delta.flatten(1).abs().amax(1)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, still within `eps` (see `_quantise`)."""
        return _quantise(delta, images, self.norm, self.eps)


@dataclass(frozen=True)
class L2(_Additive):
    """The Euclidean norm of each picture's delta, over all its values in [0,1] units, is at most `eps`."""

    eps: float
    random_start: bool = True

    def __post_init__(self) -> None:
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(f"`eps` must be a positive number, got {self.eps:g} (4 is common at 128x128)")

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first delta: a random direction at half the radius, or zero."""
        return self.noise(images, generator) / 2 if self.random_start else torch.zeros_like(images)

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """A random direction at the full radius."""
        return _into_box(self.extreme(images, generator), images)

    def within(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the ball, shaped like `like`: where an attack starts, but for the box."""
        return self.extreme(like, generator) / 2

    def extreme(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random point of the sphere, shaped like `like`: the noise, but for the box."""
        gauss = torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
        return self.ball(self.eps * self.steepest(gauss))

    def steepest(self, grad: Tensor) -> Tensor:
        """The step of L2 norm 1 with the largest inner product with `grad`; zero where `grad` is zero."""
        norm = self.norm(grad)
        return grad / torch.where(norm > 0, norm, 1.0)[:, None, None, None]

    def project(self, delta: Tensor, images: Tensor) -> Tensor:
        """Scale into the ball, then clamp into the box, which only shortens: a point of the set."""
        return _into_box(self.ball(delta), images)

    def ball(self, delta: Tensor) -> Tensor:
        """The nearest delta in the ball, whatever the picture."""
        norm = self.norm(delta)
        factor = torch.where(norm > self.eps, self.eps / norm, 1.0)  # never enlarges
        return delta * factor[:, None, None, None]

    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W) -> (N,)."""
        return delta.flatten(1).square().sum(1).sqrt()

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, still within `eps` (see `_quantise`)."""
        return _quantise(delta, images, self.norm, self.eps)


@dataclass(frozen=True)
class Universal:
    """One delta (1,C,H,W) for all images (Moosavi-Dezfooli et al. 2017), in the ball of `inner`.

    No box holds the delta, because every image has its own; each attacked picture is clamped to [0,1] instead.
    """

    shared: ClassVar[bool] = True
    inner: Linf | L2

    @property
    def eps(self) -> float:
        """The radius of the ball, in the norm of `inner`."""
        return self.inner.eps

    @property
    def random_start(self) -> bool:
        """Whether `start` draws at random, or is zero."""
        return self.inner.random_start

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first delta (1,C,H,W): that of `inner` without its box, or zero."""
        return self.inner.within(images[:1], generator) if self.random_start else torch.zeros_like(images[:1])

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the strongest random perturbation of the same budget, (1,C,H,W)."""
        return self.inner.extreme(images[:1], generator)

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The attacked pictures; `delta` is (1,C,H,W), or has a row for each of them. A value pushed out of [0,1] has
        no gradient there, one that lies on a bound has."""
        return scene_of(saturate(images + delta))

    @property
    def reach(self) -> float:
        """That of `inner`."""
        return self.inner.reach

    def steepest(self, grad: Tensor) -> Tensor:
        """The step of norm 1 with the largest inner product with `grad`."""
        return self.inner.steepest(grad)

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:
        """The move of norm `length` that lowers the loss the most, to first order."""
        return self.inner.descend(grad, length, delta, images)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, projected."""
        return self.project(delta + by, images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The nearest delta in the ball."""
        return self.inner.ball(delta)

    def norm(self, delta: Tensor) -> Tensor:
        """(N,C,H,W) -> (N,)."""
        return self.inner.norm(delta)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta (N,C,H,W) that the 8-bit file of each attacked picture will hold, within `eps` and the box: no
        longer one for all, where a picture is clamped, or where rounding had to be kept within `eps`."""
        return self.inner.quantise(delta.expand_as(images), images)


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    """On the CPU first, so that every device starts at the same point."""
    return torch.rand(images.shape, generator=generator, dtype=images.dtype).to(images.device)


def _into_box(delta: Tensor, images: Tensor) -> Tensor:
    return (images + delta).clamp(0, 1) - images


def _quantise(delta: Tensor, images: Tensor, norm: Callable[[Tensor], Tensor], eps: float) -> Tensor:
    """Round images + delta to multiples of 1/255 and keep the norm within `eps`, shrinking delta where rounding
    would carry it out. `images` must be multiples of 1/255 themselves (they came from 8-bit files)."""
    rounded = _round(delta, images)
    for percent in range(99, -1, -1):
        outside = norm(rounded) > eps * (1 + 1e-5)  # float32's own rounding is no excess
        if not bool(outside.any()):
            break
        shorter = _round(delta * (percent / 100), images)
        rounded = torch.where(outside[:, None, None, None], shorter, rounded)
    return rounded


def _round(delta: Tensor, images: Tensor) -> Tensor:
    return ((images + delta).clamp(0, 1) * 255).round() / 255 - images

"""The sets that a perturbation of a whole picture stays in, in the picture's resolution and in [0,1]; dense balls."""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from attacks.perturbations.base import PerturbationSet
from attacks.runtime.blocks import columns, in_blocks
from transforms.devices import wide_dtype
from transforms.doors import checked, made
from transforms.scene import Scene, scene_of

#: Most steps of the root search of `scaled`; each but the last clamps more values, and photographs need about five.
#: The host does not wait for a device to learn whether they are enough: there it makes a fixed number of them.
MAX_STEPS, FIXED = 100, 12
#: It ends where the squared norm is so many roundings short of the radius.
ROUNDING = 8
#: A share of eps that is float64's own rounding and no excess: 255 * (8 / 255) may be less than 8.
EXACT = 1 + 1e-12


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

    def sized(self, eps: float) -> Self:
        return replace(self, eps=eps)  # type: ignore[type-var]

    def in_files(self, eps: Tensor) -> Tensor:
        """The largest radius up to `eps` that an 8-bit file can use, elementwise."""
        return eps

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
        return -per_picture(length) * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, projected. Added to the picture first, as every published PGD does, so that ours equals theirs
        to the last bit."""
        target = images + delta
        target += by
        target -= images  # in place: each new tensor as large as a photograph takes as long as the arithmetic
        return self.project(target, images)

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
        """The delta that an 8-bit file of images + delta holds, within `eps` exactly, for `images` in whole levels of
        255. A warning where it holds nothing of a picture's."""
        result = self.in_levels(delta, checked(images))
        lost = int((delta.flatten(1).any(1) & ~result.flatten(1).any(1)).sum())
        if lost:
            warnings.warn(
                f"an 8-bit file holds nothing of {lost} of {len(delta)} perturbations: less than half a level of "
                f"255, or `eps` allows no whole one; got eps {self.eps:g}: raise it",
                stacklevel=2,
            )
        return result

    @abstractmethod
    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """What `quantise` returns."""


@dataclass(frozen=True)
class Linf(Ball):
    """No value changes by more than `eps` (0..1 scale; write 8/255), and the picture stays in [0,1].

    With `random_start` false the attack starts at zero; an untargeted embedding loss has no gradient there.

    Use: the usual threat: a change that is small everywhere.
    Not: few pixels that may change much (`L0`, `L1`), or a print (`Patch`).
    Source: Madry et al. 2018.
    Cost: linear in the values.
    Oracle: the nearest point, tests/perturbations/test_ball.py.

    Examples:
        >>> from attacks import Linf
        >>> images, delta = torch.tensor([[[[0.0, 0.5, 1.0]]]]), torch.tensor([[[[-0.5, -0.5, 0.5]]]])
        >>> delta = Linf(8 / 255).project(delta, images)  # within the ball; and the picture stays within [0,1]
        >>> [round(255 * value, 2) for value in delta.flatten().tolist()]
        [0.0, -8.0, 0.0]
    """

    eps: float = 8 / 255
    random_start: bool = True

    def __post_init__(self) -> None:
        check_number(self.eps, "8/255")
        if not 0 < self.eps <= 1:
            fix = f"; did you mean {self.eps:g}/255?" if 1 < self.eps <= 255 else ": write 8/255, say"
            raise ValueError(f"`eps` must lie in (0, 1], got {self.eps:g}{fix}")

    def in_files(self, eps: Tensor) -> Tensor:
        """Whole levels, at least one."""
        return (255 * eps * EXACT).floor().clamp(min=1) / 255

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform in -0.5..0.5, on the CPU first, so that every device starts at the same point."""
        return torch.rand(like.shape, generator=generator, dtype=like.dtype).to(like.device) - 0.5

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """For a direction of `draw`, a uniform point (Madry et al. 2018)."""
        return self.project(self.eps * (2 * direction), images)

    def step(self, delta: Tensor, grad: Tensor, length: float | Tensor, images: Tensor) -> Tensor:
        if type(self) is not Linf:  # methods of a subclass need not be elementwise
            return super().step(delta, grad, length, images)

        def rule(delta: Tensor, grad: Tensor, images: Tensor) -> Tensor:
            return self.move(delta, self.descend(grad, length, delta, images), images)

        return in_blocks(rule, delta, grad, images)

    def steepest(self, grad: Tensor) -> Tensor:
        return grad.sign()

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        near = delta.clamp(-self.eps, self.eps)
        if images is not None:  # `into_box` in place, see `move`
            near += images
            near.clamp_(0, 1)
            near -= images
        return near

    def norm(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).abs().amax(1)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """The nearest such delta."""
        limit = math.floor(255 * self.eps * EXACT)
        return from_levels(to_levels(delta, images).clamp(-limit, limit), images)


@dataclass(frozen=True)
class L2(Ball):
    """The Euclidean norm of each picture's delta, over all its values in [0,1] units, is at most `eps`.

    Use: a bound on the energy of the change, such as a least PSNR.
    Not: a bound on every value: `Linf`.
    Source: Madry et al. 2018.
    Cost: linear in the values, several passes where the box cuts the ball.
    Oracle: the conditions of Karush, Kuhn and Tucker, tests/perturbations/test_ball.py.

    Examples:
        >>> from attacks import L2
        >>> ball, images = L2(eps=0.25), torch.full((1, 1, 1, 2), 0.5)
        >>> delta = ball.project(torch.tensor([[[[0.3, 0.4]]]]), images)
        >>> [round(value, 3) for value in delta.flatten().tolist()], round(ball.norm(delta).item(), 3)
        ([0.15, 0.2], 0.25)
    """

    eps: float = 4.0
    random_start: bool = True

    def __post_init__(self) -> None:
        check_number(self.eps, "4")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ValueError(f"`eps` must be a positive number, got {self.eps:g} (4 is common at 128x128)")

    def steepest(self, grad: Tensor) -> Tensor:
        # Measured in its largest value: squares of a very small or very large gradient are 0 or infinite.
        largest = grad.flatten(1).abs().amax(1)
        grad = grad / per_picture(torch.where(largest > 0, largest, 1.0))
        norm = self.norm(grad)
        return grad / per_picture(torch.where(norm > 0, norm, 1.0))

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        """The farthest point of the set along `direction`: all of `eps`, where the box allows."""
        return self._scaled(self.steepest(direction), images, math.inf)

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self._scaled(delta, images, 1.0)

    def _scaled(self, delta: Tensor, images: Tensor | None, limit: float) -> Tensor:
        pictures = None if images is None else images.flatten(1)
        return scaled(delta.flatten(1), self.eps, pictures, limit).view_as(delta)

    def norm(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).square().sum(1).sqrt()

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """The rounded delta; where that is outside, the nearest inside, but for less than one level of one value."""
        return rounded(delta, images, self.eps, 2)


def scaled(values: Tensor, radius: float, pictures: Tensor | None, limit: float) -> Tensor:
    """s * values, clamped so that `pictures` + it stay in [0,1], with the largest s <= `limit` at which the Euclidean
    norm of a row is at most `radius`: (N,D) -> (N,D). Without pictures (N,D) each value is clamped to [-1,1].

    With `limit` 1 it is the nearest point of ball and box, where s = 1 / (1 + lambda), lambda the multiplier of the
    ball (Karush-Kuhn-Tucker; the box splits by value). With `limit` infinite it is the point with the largest inner
    product with `values`. The squared norm is a concave, piecewise linear function of s^2, so Newton's method from 0
    climbs to the root and never beyond it, in at most as many steps as it meets pieces.
    """
    dtype = values.dtype if values.dtype == torch.float64 else torch.float32
    host, largest = values.device.type == "cpu", min(limit**2, torch.finfo(dtype).max)
    parts = [*columns(values, values if pictures is None else pictures)]

    def clamp_part(part: Tensor, picture: Tensor) -> tuple[Tensor, Tensor]:
        far = part.to(dtype) * square.sqrt()
        return far, far.clamp(-1, 1) if pictures is None else far.clamp(-picture.to(dtype), 1 - picture.to(dtype))

    def energies(part: Tensor, picture: Tensor) -> Tensor:
        """Sums over the clamped values and over the others, which are proportional to s^2: (N,2)."""
        far, near = clamp_part(part, picture)
        energy = near.square()
        return torch.stack([energy.sum(1), torch.where(near == far, energy, 0).sum(1)], 1)

    energy = torch.stack([part.to(dtype).square().sum(1, keepdim=True) for part, _ in parts]).sum(0)
    square = (radius**2 / energy).clamp(max=largest)
    for _ in range(MAX_STEPS if host else FIXED):
        total, free = torch.stack([energies(*part) for part in parts]).sum(0).split(1, 1)
        short = radius**2 - total
        short = torch.where((square < largest) & (short > ROUNDING * torch.finfo(dtype).eps * radius**2), short, 0)
        if host and not bool(short.any()):
            break
        square = torch.where(short > 0, square + short / free * square, square).clamp(max=largest)
    return torch.cat([clamp_part(*part)[1] for part in parts], 1).to(values.dtype)


def into_box(delta: Tensor, images: Tensor | None) -> Tensor:
    """The nearest delta with which the picture stays in [0,1]; `delta` itself if `images` is None."""
    return delta if images is None else (images + delta).clamp(0, 1) - images


def check_number(eps: Any, example: str) -> None:
    """Refuse a radius that is no number. Raises ValueError."""
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise ValueError(f"`eps` must be a number, such as {example}; got {eps!r}")


def per_picture(value: float | Tensor) -> float | Tensor:
    """(N,) or a number, to be multiplied with (N,C,H,W)."""
    return value[:, None, None, None] if isinstance(value, Tensor) and value.dim() else value


def headroom(delta: Tensor, images: Tensor | None) -> tuple[Tensor, Tensor]:
    """How far each value may decrease, and increase; both at least 0."""
    values, low = (delta, -1) if images is None else (images + delta, 0)
    return (values - low).clamp(min=0), (1 - values).clamp(min=0)


def check_inner(inner: Any, wrapper: str) -> None:
    """Raise ValueError unless `inner` is a set of one delta a picture, which `wrapper` may wrap."""
    made("inner", inner)
    if not isinstance(inner, Ball):
        kind = type(inner).__name__
        fix = f"write Universal({wrapper}(...))" if kind == "Universal" != wrapper else "give a norm ball"
        raise ValueError(f"`inner` of {wrapper} must be a set such as Linf(8 / 255); got a {kind}: {fix}")


def to_levels(delta: Tensor, images: Tensor) -> Tensor:
    """The change of each value of an 8-bit picture, in levels of 255."""
    return ((images + delta).clamp(0, 1) * 255).round() - (images * 255).round()


def from_levels(levels: Tensor, images: Tensor) -> Tensor:
    """The delta that changes each value of an 8-bit picture by so many levels."""
    return ((images * 255).round() + levels) / 255 - images


def rounded(delta: Tensor, images: Tensor, eps: float, power: int) -> Tensor:
    """A delta of whole levels within `eps` in the norm of that `power`, 1 or 2.

    Each value is rounded to its nearest level. Where the norm is then too large, values go one level back toward
    zero, first those that this moves away from the delta least for what it takes from the norm.
    """
    levels, wide = to_levels(delta, images).flatten(1), wide_dtype(delta)
    exact = (((images + delta).clamp(0, 1) - images) * 255).flatten(1).to(wide).abs()
    size = levels.abs().to(wide)
    excess = size.pow(power).sum(1, keepdim=True) - (255 * eps) ** power * EXACT
    if bool((excess > 0).any()):
        gain = size.pow(power) - (size - 1).pow(power)
        price = torch.where(size > 0, (1 + 2 * (exact - size)) / gain, torch.inf)
        order = price.argsort(dim=1, stable=True)
        gain = torch.where(size > 0, gain, 0).gather(1, order)
        back = (gain.cumsum(1) - gain < excess) & (gain > 0)  # until the sum of those before it is enough
        levels = levels - levels.sign() * torch.zeros_like(size).scatter(1, order, back.to(wide)).to(levels)
    return from_levels(levels.view_as(delta), images)

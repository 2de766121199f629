"""Perturbation sets restricted to a linear subspace: some pixels, grey, or low frequencies; and smoothed gradients.

Each wraps another set; they nest.
"""

import math
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball, from_levels, per_picture, to_levels
from attacks.perturbations.sparse import L0, L1
from attacks.perturbations.wrapper import Wrapper, filter_gradient
from transforms.devices import uploaded

#: The widest Gaussian in pixels: more than that is one value for a whole picture.
WIDEST = 1024


@dataclass(frozen=True, eq=False)
class Masked(Wrapper):
    """Only where `mask` is 1 may the delta differ from zero; the delta is masked, never the picture.

    `mask` holds zeros and ones, (1,1,H,W) for all pictures or (N,1,H,W), one for each. The norm, its dual and the
    random points are those of `inner` on the masked pixels.

    Examples:
        >>> from attacks.perturbations import Linf, Masked
        >>> mask = torch.tensor([[[[1.0, 0.0]]]])
        >>> Masked(Linf(0.25), mask).project(torch.ones(1, 3, 1, 2), torch.zeros(1, 3, 1, 2))[0, 0].tolist()
        [[0.25, 0.0]]
    """

    inner: Ball
    mask: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        shape, mask = tuple(self.mask.shape), self.mask
        if len(shape) != 4 or shape[1] != 1:
            raise ValueError(f"`mask` must be (1,1,H,W), or (N,1,H,W) with one row for each picture; got {shape}")
        if not bool(((mask == 0) | (mask == 1)).all()):
            low, high = float(mask.min()), float(mask.max())
            raise ValueError(f"`mask` must hold zeros and ones only; got values from {low:g} to {high:g} (try > 0.5)")
        if not bool(mask.flatten(1).any(1).all()):
            row = int((~mask.flatten(1).any(1)).nonzero()[0, 0])
            raise ValueError(f"`mask` must leave every picture a pixel; got row {row} with none")

    def only(self, delta: Tensor) -> Tensor:
        rows, size = len(self.mask), self.mask.shape[2:]
        if rows not in (1, len(delta)) or size != delta.shape[2:]:
            raise ValueError(
                f"`mask` must be (1,1,H,W) or a row for each picture; got {(*self.mask.shape,)} for {(*delta.shape,)}"
            )
        return delta * self.mask.to(delta)

    def length(self, delta: Tensor) -> Tensor:
        return self.inner.length(self.only(delta.expand(max(len(delta), len(self.mask)), -1, -1, -1)))

    def restrict(self, delta: Tensor) -> Tensor:
        """The delta within the mask. `inner` is not applied again: a masked band of frequencies is not in the band,
        and would be smoothed at the mask's edge at every move."""
        return self.only(delta)

    def take(self, rows: Tensor) -> Self:
        if len(self.mask) == 1:
            return super().take(rows)
        part = copy(self)  # to check the mask again in every pass would wait for its device
        object.__setattr__(part, "inner", self.inner.take(rows))
        object.__setattr__(part, "mask", self.mask[uploaded(rows, self.mask.device)])
        return part


@dataclass(frozen=True)
class Grey(Wrapper):
    """The same delta in all channels: changes lightness and not chroma. Not for L1, whose `eps` it would not fill.

    Examples:
        >>> from attacks.perturbations import Grey, Linf
        >>> grad = torch.tensor([3.0, -1.0, -1.0]).view(1, 3, 1, 1)
        >>> Linf().steepest(grad).flatten().tolist(), Grey(Linf()).steepest(grad).flatten().tolist()
        ([1.0, -1.0, -1.0], [1.0, 1.0, 1.0])
    """

    inner: Ball

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.innermost, L1):
            raise ValueError("`grey` cannot be combined with an L1 ball, which it would not fill; use L2, Linf or L0")

    def only(self, delta: Tensor) -> Tensor:
        return delta.mean(1, keepdim=True).expand_as(delta)

    def farthest(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().farthest(direction, images))

    def inside(self, direction: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().inside(direction, images))

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self._smallest_channel(super().project(delta, images))

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        """The delta that an 8-bit file of images + delta will hold, still grey to rounding and within `eps`."""
        return from_levels(self._smallest_channel(to_levels(super().in_levels(delta, images), images)), images)

    def _smallest_channel(self, delta: Tensor) -> Tensor:
        """The channel of least magnitude, in all channels: shrinking a value never leaves a ball or the box."""
        return delta.gather(1, delta.abs().argmin(1, keepdim=True)).expand_as(delta)


@dataclass(frozen=True)
class LowFrequency(Wrapper):
    """Every move lies in the span of the lowest `keep` x `keep` coefficients of each channel's 2-D cosine transform
    (orthonormal DCT-II; Guo et al. 2019, Low Frequency Adversarial Perturbation).

    The delta stays in the ball and the box of `inner` exactly; clipping to these can take it out of the band.

    Args:
        inner: `Linf`, `L2`, or one of them wrapped. A low-frequency delta is never sparse.
        keep: coefficients along each axis; a side of the picture, or more, keeps all of them.

    Examples:
        >>> from attacks.perturbations import L2, LowFrequency
        >>> delta = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> lowest = LowFrequency(L2(4.0), keep=1).only(delta)
        >>> torch.allclose(lowest, delta.mean((2, 3), keepdim=True), atol=1e-5)  # the lowest frequency is the mean
        True
    """

    inner: Ball
    keep: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.keep) is not int or self.keep < 1:
            raise ValueError(f"`keep` must be a whole number of coefficients, at least 1; got {self.keep!r}")
        if isinstance(ball := self.innermost, L0 | L1):
            raise ValueError(f"`inner` must be Linf or L2: a change of low frequencies is not sparse; got {ball}")

    def only(self, delta: Tensor) -> Tensor:
        rows, columns = (lowest(side, self.keep, delta.dtype, delta.device) for side in delta.shape[2:])
        return rows.mT @ (rows @ delta @ columns.mT) @ columns

    # Not those of `inner`: of the steps of the band. So they lie in it, except for clipping to the box.
    farthest, inside, descend = Ball.farthest, Ball.inside, Ball.descend

    def steepest(self, grad: Tensor) -> Tensor:
        """A step of norm 1 in the band: for L2 the best one; for L-inf the low frequencies of the best unrestricted
        one."""
        step = super().steepest(grad)
        norm = self.inner.norm(step)
        return step / per_picture(torch.where(norm > 0, norm, 1.0))

    def project(self, delta: Tensor, images: Tensor | None) -> Tensor:
        return self.inner.project(delta, images)

    def in_levels(self, delta: Tensor, images: Tensor) -> Tensor:
        return self.inner.in_levels(delta, images)


@dataclass(frozen=True)
class Smoothed(Wrapper):
    """The gradient is convolved with a Gaussian before any optimiser sees it: TI (Dong et al. 2019, Evading Defenses
    by Translation-Invariant Attacks, eq. 7). The set is that of `inner`.

    It approximates the mean gradient over shifted copies of the picture. The published code's kernel, 15 x 15 values
    of a normal density from -3 to 3, is `smooth` = 7 / 3.

    Args:
        inner: any set of one delta a picture.
        smooth: standard deviation in pixels; the kernel ends at three of them, and adds up to 1. Beyond the picture
            the gradient is zero.

    Examples:
        >>> from attacks.perturbations import Linf, Smoothed
        >>> grad = torch.nn.functional.pad(torch.ones(1, 1, 1, 1), [4] * 4)
        >>> smooth = Smoothed(Linf(), smooth=1.0).smooth_gradient(grad)
        >>> round(float(smooth.sum()), 3), int((smooth > 0).sum())  # three deviations each way: 7 * 7 pixels
        (1.0, 49)
    """

    inner: Ball
    smooth: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.smooth <= WIDEST:
            raise ValueError(f"`smooth` must be above 0 and at most {WIDEST:,} pixels; got {self.smooth}")

    def shown(self, delta: Tensor) -> Tensor:
        return filter_gradient(self.inner.shown(delta), self.smooth_gradient)

    def smooth_gradient(self, grad: Tensor) -> Tensor:
        rows, columns = (gaussian_band(side, self.smooth, grad.dtype, grad.device) for side in grad.shape[2:])
        return rows @ grad @ columns


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def lowest(side: int, keep: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The lowest `keep` frequencies of `side` values, or all of them, (keep,side): rows of the orthonormal DCT-II,
    computed in float64."""
    at = torch.arange(side, dtype=torch.float64)
    matrix = math.sqrt(2 / side) * torch.cos(math.pi / side * (at + 0.5) * at[:, None])
    matrix[0] /= math.sqrt(2)
    return matrix[:keep].to(device, dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def gaussian_band(side: int, sigma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The convolution of `side` values with a Gaussian that ends at three `sigma`, as a symmetric (side,side)."""
    radius = math.ceil(3 * sigma - 1e-9)
    at = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-at.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    distance = torch.arange(side)[:, None] - torch.arange(side)
    band = weights[distance.clamp(-radius, radius) + radius] * (distance.abs() <= radius)
    return band.to(device, dtype)

"""Perturbations by frequency: restricted to low frequencies, or with a smoothed gradient."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attacks.perturbations.ball import Ball, per_picture
from attacks.perturbations.sparse import L0, L1
from attacks.perturbations.subspace import Wrapper, filter_gradient

#: The widest Gaussian in pixels: more than that is one value for a whole picture.
WIDEST = 1024


@dataclass(frozen=True)
class LowFrequency(Wrapper):
    """Every move lies in the span of the lowest `keep` x `keep` coefficients of each channel's 2-D cosine transform
    (orthonormal DCT-II; Guo et al. 2019, Low Frequency Adversarial Perturbation).

    The delta stays in the ball and the box of `inner` exactly; clipping to these can take it out of the band. `inner`
    is `Linf`, `L2`, or one of them wrapped; `keep` at least a side of the picture keeps all.

    Examples:
        >>> import torch
        >>> from attacks import L2
        >>> from attacks.perturbations import LowFrequency
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
        """A step of norm 1 in the band: of L2 the best; of L-inf the low frequencies of the best in all."""
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

    `smooth` is the standard deviation in pixels, 7 / 3 in the published code; the kernel ends at three of them and
    adds up to 1. Beyond the picture the gradient is zero.

    Examples:
        >>> import torch
        >>> from attacks import Linf
        >>> from attacks.perturbations import Smoothed
        >>> grad = torch.zeros(1, 1, 9, 9)
        >>> grad[0, 0, 4, 4] = 1.0
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
        smooth: Tensor = rows @ grad @ columns
        return smooth


def dct_matrix(side: int) -> Tensor:
    """The orthonormal DCT-II of `side` values as a matrix, a row for each frequency, in float64."""
    at = torch.arange(side, dtype=torch.float64)
    matrix = math.sqrt(2 / side) * torch.cos(math.pi / side * (at + 0.5) * at[:, None])
    matrix[0] /= math.sqrt(2)
    return matrix


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def lowest(side: int, keep: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The lowest `keep` frequencies of `side` values, or all of them, (keep,side): orthonormal rows."""
    return dct_matrix(side)[:keep].to(device, dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def gaussian_band(side: int, sigma: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The convolution of `side` values with a Gaussian that ends at three `sigma`, as a symmetric (side,side)."""
    radius = math.ceil(3 * sigma - 1e-9)
    at = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-(at**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    distance = torch.arange(side)[:, None] - torch.arange(side)
    band = weights[distance.clamp(-radius, radius) + radius] * (distance.abs() <= radius)
    matrix: Tensor = band.to(device, dtype)
    return matrix

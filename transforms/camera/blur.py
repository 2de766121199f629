"""Blur stages: a kernel of weights >= 0 with sum 1 for each view, over stored values, edges repeated."""

import math
from dataclasses import dataclass
from functools import reduce

import scipy  # its parts are loaded when first used
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from transforms.colour.spaces import at_least_float32
from transforms.draws.ranges import Coordinate, Range, Ranged
from transforms.sampling.straight_through import straight_through

#: The widest blur of each kind in pixels. A kernel takes memory with its square or cube: beyond these, gigabytes.
MOST_SIGMA, MOST_RADIUS, MOST_LENGTH = 250, 100, 1000
#: Most values of an array of shares; more points are computed in parts.
MOST_VALUES = 2**21
#: Gaussian kernels end at this many standard deviations, as SciPy's do.
TRUNCATE = 4.0


@dataclass(frozen=True)
class GaussianBlur(Ranged):
    """Convolve with a sampled Gaussian, as `scipy.ndimage.gaussian_filter(mode="nearest")` does.

    Use: a filter that softens, or a defence that does.
    Not: a lens that is out of focus, whose spot is a disc: `Defocus`.
    Source: SciPy's gaussian_filter.
    Cost: along each axis 8 high + 1 products a value, where `high` is the largest sigma in pixels.
    Oracle: SciPy's gaussian_filter, tests/transforms/camera/test_blur.py.

    Args:
        sigma: (low, high) standard deviation in pixels, at most 250. The kernel of every view reaches as far as
            `high` needs, so that a view changes smoothly with its sigma. Below about 0.2 a sampled Gaussian is the
            identity to rounding, and its derivative in sigma is zero to rounding.

    Examples:
        >>> from transforms.camera import GaussianBlur
        >>> point = torch.tensor([[[[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]]])
        >>> GaussianBlur(sigma=(0.5, 0.5))(point, torch.zeros(1, 1))[0, 0, 0, 2:5].round(decimals=3)
        tensor([0.1060, 0.7870, 0.1060])
    """

    sigma: Range = (0.0, 0.0)

    coordinates = (Coordinate("sigma (px)", "sigma", 0, MOST_SIGMA),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        work = at_least_float32(images)
        radius = int(TRUNCATE * self.bounds[0][1] + 0.5)
        weights = gaussian(self.values(u)[:, 0].to(work), radius).repeat_interleave(images.shape[1], 0)
        # One group a channel of a view. Measured beside a matrix an axis and a Fourier transform: the fastest.
        planes = _replicate(work, radius).flatten(0, 1)[None]
        planes = F.conv2d(planes, weights[:, None, None, :], groups=len(weights))
        planes = F.conv2d(planes, weights[:, None, :, None], groups=len(weights))
        return _finish(planes.view_as(work), images)


@dataclass(frozen=True)
class Defocus(Ranged):
    """Convolve with a disc, the image of a point that is out of focus.

    The result is the mean over the disc of the picture read bilinearly. So the disc's edge is antialiased, and a disc
    smaller than a pixel blurs too: the derivative in the radius is alive at every radius above 0. Bilinear reading
    adds up to 1/4 px^2 to the disc's variance of radius^2/4 along each axis.

    Use: a lens that is out of focus.
    Not: an even softening by software: `GaussianBlur`.
    Source: this project's own, the mean over a disc.
    Cost: a Fourier transform of each view, there and back, and the kernels, which grow with the square of the radius.
    Oracle: the mean over a finely sampled disc, tests/transforms/camera/test_blur.py.

    Args:
        radius: (low, high) in pixels, at most 100.

    Examples:
        >>> from transforms.camera import Defocus
        >>> point = torch.nn.functional.pad(torch.ones(1, 1, 1, 1), [4] * 4)
        >>> (Defocus(radius=(2, 2))(point, torch.zeros(1, 1))[0, 0, 4] > 0.02).int().tolist()
        [0, 0, 1, 1, 1, 1, 1, 0, 0]
    """

    radius: Range = (0.0, 0.0)

    coordinates = (Coordinate("radius (px)", "radius", 0, MOST_RADIUS),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        limit = math.ceil(self.bounds[0][1])
        points, weights = _disc(limit, u)
        return _blur(images, self.values(u)[:, 0, None, None] * points, weights, limit)


@dataclass(frozen=True)
class MotionBlur(Ranged):
    """Convolve with a line segment centred on the pixel: the camera moves evenly while the shutter is open.

    The result is the mean along the segment of the picture read bilinearly; see `Defocus`.

    Use: a hand that shakes, or a camera that moves.
    Not: a camera that turns about its axis: the segment is the same for all pixels.
    Source: this project's own, the mean along a segment.
    Cost: a Fourier transform of each view, there and back.
    Oracle: the mean along a finely sampled line, tests/transforms/camera/test_blur.py.

    Args:
        length: (low, high) in pixels, at most 1000, from one end of the segment to the other.
        angle: direction of motion in degrees, clockwise as displayed from the horizontal; a number x means (-x, x),
            and 90 covers every direction.

    Examples:
        >>> from transforms.camera import MotionBlur
        >>> point = torch.tensor([[[[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]]])
        >>> MotionBlur(length=(4, 4))(point, torch.zeros(1, 2)).round(decimals=3).tolist()
        [[[[0.0, 0.125, 0.25, 0.25, 0.25, 0.125, 0.0]]]]
    """

    length: Range = (0.0, 0.0)
    angle: float | Range = (0.0, 0.0)

    coordinates = (Coordinate("length (px)", "length", 0, MOST_LENGTH), Coordinate("angle (deg)", "angle"))

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        length, angle = self.values(u).unbind(-1)
        radians = angle * (math.pi / 180)
        ends = length[:, None] * torch.stack([radians.cos(), radians.sin()], dim=-1)
        longest = self.bounds[0][1]
        n = 8 * max(math.ceil(longest), 1)  # eight points a pixel
        offsets = (torch.arange(n, dtype=u.dtype, device=u.device) + 0.5) / n - 0.5
        return _blur(images, offsets[:, None] * ends[:, None], torch.ones_like(offsets), math.ceil(longest / 2))


def gaussian(sigma: Tensor, radius: int) -> Tensor:
    """The Gaussians of `sigma` (N,) in pixels, sampled at -radius..radius and normalised, (N, 2 radius + 1)."""
    at = torch.arange(-radius, radius + 1, dtype=sigma.dtype, device=sigma.device)
    # The addend keeps sigma = 0 the identity rather than 0/0; at any sigma that blurs it is below rounding.
    return torch.softmax(-at.square() / (2 * sigma.square() + 1e-12)[:, None], dim=-1)


def kernel_of_points(points: Tensor, weights: Tensor, radius: int) -> Tensor:
    """The kernel that averages, by `weights` (K,), the picture read bilinearly at `points` (N,K,2), offsets (x, y) in
    pixels of which none exceeds `radius`: (N, 2 radius + 1, 2 radius + 1), rows are y."""
    limit = max(1, MOST_VALUES // (2 * len(points) * (2 * radius + 1)))
    if points.shape[1] <= limit:
        kernel = _shares(points, weights, radius)
    else:  # the memory for all points of a disc at once would grow with the cube of its radius
        parts = zip(points.split(limit, 1), weights.split(limit), strict=True)
        kernel = reduce(torch.add, (checkpoint(_shares, *part, radius, use_reentrant=False) for part in parts))
    return kernel / kernel.sum((-2, -1), keepdim=True)


def _shares(points: Tensor, weights: Tensor, radius: int) -> Tensor:
    at = torch.arange(-radius, radius + 1, dtype=points.dtype, device=points.device)
    share = 1 - (points[..., None] - at).abs()
    # `maximum` splits the derivative at a kink evenly, so that a line at exactly 0 degrees has the two-sided one.
    x, y = torch.maximum(share, torch.zeros_like(share)).unbind(2)
    return y.mT @ (x * weights[:, None])


def convolve(images: Tensor, kernels: Tensor) -> Tensor:
    """(N,C,H,W) with one kernel (N,k,k) a view, k odd, edges repeated; not clamped.

    By Fourier transform: the cost hardly grows with k, in particular that of the derivative in the kernel.
    """
    (height, width), reach = images.shape[-2:], kernels.shape[-1] - 1
    padded = _replicate(images, reach // 2)
    size = [scipy.fft.next_fast_len(n, real=True) for n in padded.shape[-2:]]
    spectrum = torch.fft.rfft2(padded, s=size) * torch.fft.rfft2(kernels, s=size)[:, None]
    full: Tensor = torch.fft.irfft2(spectrum, s=size)
    return full[..., reach : reach + height, reach : reach + width]


def _blur(images: Tensor, points: Tensor, weights: Tensor, radius: int) -> Tensor:
    work = at_least_float32(images)
    return _finish(convolve(work, kernel_of_points(points.to(work), weights.to(work), radius)), images)


def _disc(limit: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Points (K,2) of the unit disc and the area of each (K,): rings a quarter of a pixel apart at a radius of
    `limit`, spokes half a pixel; symmetric in both axes so that the picture does not move."""
    rings, spokes = 4 * max(limit, 2), 8 * max(math.ceil(limit * math.pi / 2), 1)
    r, turn = (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5 for n in (rings, spokes))
    r, turn = torch.meshgrid(r / rings, turn * (2 * math.pi / spokes), indexing="ij")
    return torch.stack([r * turn.cos(), r * turn.sin()], dim=-1).flatten(0, 1), r.flatten()


def _replicate(images: Tensor, by: int) -> Tensor:
    """Repeat the edge pixels `by` times on each side. (`F.pad` adds up its gradient in no fixed order on a GPU.)"""
    left, right = (images[..., i : i + 1].expand(*images.shape[:-1], by) for i in (0, images.shape[-1] - 1))
    wide = torch.cat([left, images, right], dim=-1)
    top, bottom = (wide[..., i : i + 1, :].expand(*wide.shape[:-2], by, -1) for i in (0, wide.shape[-2] - 1))
    return torch.cat([top, wide, bottom], dim=-2)


def _finish(views: Tensor, images: Tensor) -> Tensor:
    # An average leaves [0,1] by rounding alone, so the clamp must not stop the gradient of a white region.
    return straight_through(views.detach().clamp(0, 1), views).to(images.dtype)

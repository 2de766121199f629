"""A printer's colours: a table of colours, interpolated between its nodes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.draws.ranges import NoCoordinates
from transforms.sampling.straight_through import saturate

#: Nodes along each axis of a sampled table: every fifth of the 8-bit values, so that a profile, which is read in 8
#: bits, is read at its nodes exactly. Through the 33 nodes that profiles use themselves, a printer's black and its
#: purest colours were up to 3.6 levels off in photographs, through these 2.7.
NODES = 52


def apply_lut(images: Tensor, lut: Tensor) -> Tensor:
    """Look up every pixel of RGB images in a table of colours, trilinearly.

    The first and the last node of each axis stand for 0 and 1. The derivative in the images is that of the cell (at a
    node, of the cell above it). It stays alive on 0 and 1 themselves, of which a texture is full (see
    `transforms.sampling.straight_through.saturate`).

    Args:
        images: (N,3,H,W) in [0,1].
        lut: (3,n,n,n), finite: the colour for red, green and blue at the three indices, in this order. What lies
            outside of [0,1] is clamped after the interpolation, so that a table can clip between its nodes.

    Returns:
        (N,3,H,W) in [0,1], in the images' dtype; half precision is computed in float32. Differentiable in both.

    Raises:
        ValueError: `images` are not RGB, or `lut` is not such a table.
    """
    check_lut(lut)
    if images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(f"`images` must be (N,3,H,W) for a map of colours (expand grey to RGB); got {images.shape}")
    wide = saturate(at_least_float32(images))
    table = _extrapolate(lut.to(wide))
    nodes = lut.shape[-1]
    at = 2 * (wide * (nodes - 1) + 1) / (nodes + 1) - 1  # the table has a node more at each end
    grid = at.flip(1).permute(0, 2, 3, 1)[None]  # blue is the last axis, which grid_sample calls x
    colours = F.grid_sample(table[None], grid, mode="bilinear", padding_mode="border", align_corners=True)
    return saturate(colours[0].transpose(0, 1)).to(images.dtype)


@dataclass(frozen=True, eq=False)
class ColourMap(NoCoordinates):
    """Print: map every colour by a table (see `apply_lut`), the same for every view."""

    lut: Tensor = field(repr=False)
    name: str = "colours"

    def __post_init__(self) -> None:
        check_lut(self.lut)
        if not bool(self.lut.isfinite().all()):
            raise ValueError("`lut` must be finite; it holds NaN or infinity")

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return apply_lut(images, self.lut)


def check_lut(lut: Tensor) -> None:
    """Raise ValueError unless `lut` is a table (3,n,n,n) of at least two nodes an axis."""
    if lut.dim() != 4 or lut.shape[0] != 3 or len(set(lut.shape[1:])) != 1 or lut.shape[1] < 2:
        raise ValueError(f"`lut` must be (3,n,n,n) with n of at least 2; got shape {tuple(lut.shape)}")
    if not lut.is_floating_point():
        raise ValueError(f"`lut` must hold floating-point numbers in [0,1]; got {lut.dtype}")


def nodes(n: int = NODES) -> Tensor:
    """The colours that the nodes of a table stand for, (n^3,3) float64, blue fastest."""
    level = torch.linspace(0, 1, n, dtype=torch.float64)
    return torch.cartesian_prod(level, level, level)


def sampled(colours: Callable[[Tensor], Tensor]) -> Tensor:
    """The table of a map of colours, (K,3) in [0,1] -> (K,3): (3,n,n,n) float32, with n of `NODES`."""
    return colours(nodes()).T.reshape(3, NODES, NODES, NODES).float()


def powers(degree: int) -> list[tuple[int, ...]]:
    """The monomials of a polynomial in red, green and blue (0, 1, 2) up to a degree, as the channels to multiply:
    () is the constant, then (0,), (1,), (2,), (0,0), (0,1), (0,2), (1,1), ... There are 4, 10 or 20 of them, for a
    degree of 1, 2 or 3; any other degree raises ValueError."""
    if degree not in (1, 2, 3):
        raise ValueError(f"`degree` must be 1, 2 or 3; got {degree!r}")
    return [monomial for d in range(degree + 1) for monomial in combinations_with_replacement(range(3), d)]


def terms(colours: Tensor, degree: int) -> Tensor:
    """(...,3) -> (...,K), the monomials of `powers`: which the coefficients (3,K) of a fit multiply."""
    unit = torch.ones_like(colours[..., 0])
    return torch.stack([torch.stack([unit, *(colours[..., i] for i in p)]).prod(0) for p in powers(degree)], dim=-1)


def _extrapolate(lut: Tensor) -> Tensor:
    """The table with a node more at both ends of every axis, extrapolated linearly: so 0 and 1 lie
    inside it, and rounding cannot leave it."""
    for axis in (1, 2, 3):
        first, second = lut.narrow(axis, 0, 1), lut.narrow(axis, 1, 1)
        edge, previous = lut.narrow(axis, -1, 1), lut.narrow(axis, -2, 1)
        lut = torch.cat([2 * first - second, lut, 2 * edge - previous], dim=axis)
    return lut

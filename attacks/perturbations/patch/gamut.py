"""Which colours a texture may have: those that can be printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.perturbations.patch.colour_profiles import read_colour_map
from transforms.colour.lut import apply_lut, check_lut

#: Directions from the middle of a set of colours in which its reach is kept: nodes along an edge of a cube.
DIRECTIONS = 97
#: Requests along each axis of a face of the cube of colours, by which a printer's boundary is measured.
REQUESTS = 401


class Gamut(Protocol):
    """A set of colours. Projecting twice is projecting once; what is in the set stays as it is."""

    def project(self, texture: Tensor) -> Tensor:
        """(N,3,h,w) -> (N,3,h,w) in [0,1], every colour in the set."""


@dataclass(frozen=True)
class Box:
    """Every channel between `low` and `high`: a printable black and white."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"`gamut` must be [low, high] with 0 <= low < high <= 1; got [{self.low}, {self.high}]")

    def project(self, texture: Tensor) -> Tensor:
        return texture.clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Printable:
    """The colours that a printer can show: those that come out of its map of colours.

    A colour outside moves straight towards the middle of these, in sRGB, up to their boundary. That is not the
    nearest one, but it is exact and quick: a search for the nearest ends beside it where a profile has kinks, and a
    projection that is not one (applied again, it moves on) would carry a texture along at every step. The boundary is
    seen from the middle, so that a hollow in it counts as full, and lies up to two levels of 8 bits too far out.

    Args:
        lut: the printer's map (see `transforms.colour.lut`).
    """

    lut: Tensor = field(repr=False)
    middle: Tensor = field(init=False, repr=False)
    reach: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_lut(self.lut)
        middle, reach = _boundary(self.lut.detach().double().cpu())
        object.__setattr__(self, "middle", middle)
        object.__setattr__(self, "reach", reach)

    @torch.no_grad()
    def project(self, texture: Tensor) -> Tensor:
        inside = texture.clamp(0, 1)
        away = inside - self.middle.to(texture)[:, None, None]
        far = away.abs().amax(1, keepdim=True)
        direction = (away / far.clamp(min=1e-6)).permute(0, 2, 3, 1).flip(-1)[None]
        reach = F.grid_sample(
            self.reach.to(texture)[None, None], direction, padding_mode="border", align_corners=True
        )
        # Not `inside` by the formula where nothing moves: a printable colour keeps its bits.
        share = (reach[0].transpose(0, 1) / far.clamp(min=1e-6)).clamp(max=1)
        return torch.where(share < 1, inside - (1 - share) * away, inside)


def gamut(wish: Any) -> Gamut | None:
    """What a configuration's `perturbation.gamut` stands for: null, [low, high], or a map of colours by name or path.

    Raises:
        ValueError, FileNotFoundError: in one line.
    """
    if wish is None:
        return None
    if isinstance(wish, list | tuple):
        if len(wish) != 2 or not all(isinstance(value, int | float) for value in wish):
            raise ValueError(f"`perturbation.gamut` must be [low, high], generic, or a file; got {wish!r}")
        try:
            return Box(*map(float, wish))
        except ValueError as error:
            raise ValueError(str(error).replace("`gamut`", "`perturbation.gamut`")) from None
    lut = read_colour_map(str(wish), key="perturbation.gamut")
    return None if lut is None else Printable(lut)


def _boundary(lut: Tensor) -> tuple[Tensor, Tensor]:
    """The middle (3,) of a map's colours, and how far they reach in all directions: (n,n,n), of which the outermost
    nodes count. Lengths are by the largest channel.

    The boundary of what comes out lies among the colours that are asked for on the faces of the cube.
    """
    middle = apply_lut(lut.new_tensor([[0.0] * 3, [1.0] * 3])[:, :, None, None], lut)
    middle = middle.mean((0, 2, 3))
    level = torch.linspace(0, 1, REQUESTS, dtype=lut.dtype)
    plane = torch.cartesian_prod(level, level)
    total = torch.zeros(DIRECTIONS**3, dtype=lut.dtype)
    for axis in range(3):
        for end in (0.0, 1.0):
            asked = torch.cat([plane, torch.full_like(plane[:, :1], end)], dim=1).roll(axis, dims=1)
            away = apply_lut(asked.T[None, :, None], lut)[0, :, 0].T - middle
            far = away.abs().amax(1)
            far = torch.where(far > 1e-6, far, 0.0)
            node = ((away / far.clamp(min=1e-6)[:, None] + 1) * ((DIRECTIONS - 1) / 2)).round().long()
            index = (node[:, 0] * DIRECTIONS + node[:, 1]) * DIRECTIONS + node[:, 2]
            total.scatter_reduce_(0, index, far, "amax")  # the furthest of its neighbourhood: rather a level too far
    faces = F.pad(torch.zeros((1, *(DIRECTIONS - 2,) * 3), dtype=lut.dtype), (1,) * 6, value=1.0)
    reach = faces * total.reshape((1, *(DIRECTIONS,) * 3))
    # A direction that no request met is as its neighbours are; of a single colour there are none.
    while bool(reach.any()) and bool(((reach == 0) & (faces == 1)).any()):
        reach = torch.where(reach == 0, faces * F.max_pool3d(reach, 3, stride=1, padding=1), reach)
    return middle, reach[0]

"""Gamuts: the colours that a texture may have."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.perturbations.patch.colour_profiles import read_colour_map
from transforms.colour.lut import apply_lut, check_lut

#: Nodes along an edge of the cube of directions in which a gamut's reach is stored.
DIRECTIONS = 97
#: Samples along each axis of a face of the RGB cube, to measure a printer's boundary.
REQUESTS = 401


class Gamut(Protocol):
    """A set of colours. `project` is idempotent, and leaves colours of the set unchanged."""

    def project(self, texture: Tensor) -> Tensor:
        """(N,3,h,w) -> (N,3,h,w) in [0,1], every colour in the set."""


@dataclass(frozen=True)
class ColourBox:
    """Every channel between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"`perturbation.gamut` must be [low, high] with 0 <= low < high <= 1; got {self}")

    def project(self, texture: Tensor) -> Tensor:
        return texture.clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Printable:
    """The colours that a printer can show: the image of its colour map `lut` (see `transforms.colour.lut`).

    A colour outside moves straight towards the centre of the gamut, in sRGB, up to the boundary: not the nearest
    colour, but idempotent, so that it does not drift from step to step. The boundary is measured from the centre, so
    concave parts are filled, and it lies up to two 8-bit levels too far out.
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
        offset = inside - self.middle.to(texture)[:, None, None]
        far = offset.abs().amax(1, keepdim=True)
        direction = (offset / far.clamp(min=1e-6)).permute(0, 2, 3, 1).flip(-1)[None]
        reach = F.grid_sample(
            self.reach.to(texture)[None, None], direction, padding_mode="border", align_corners=True
        )
        # `where`, not the formula alone: a printable colour must not change by a bit.
        share = (reach[0].transpose(0, 1) / far.clamp(min=1e-6)).clamp(max=1)
        return torch.where(share < 1, inside - (1 - share) * offset, inside)


def gamut(setting: Any) -> Gamut | None:
    """The gamut of `perturbation.gamut`: null, [low, high], or a colour map by name or path. Raises ValueError or
    FileNotFoundError."""
    if setting is None:
        return None
    if isinstance(setting, list | tuple):
        if len(setting) != 2 or not all(isinstance(value, int | float) for value in setting):
            raise ValueError(f"`perturbation.gamut` must be [low, high], generic, or a file; got {setting!r}")
        return ColourBox(*map(float, setting))
    lut = read_colour_map(str(setting), key="perturbation.gamut")
    return None if lut is None else Printable(lut)


def _boundary(lut: Tensor) -> tuple[Tensor, Tensor]:
    """The centre (3,) of a map's colours, and their reach in all directions (n,n,n), of which the outermost nodes
    count, in maximum norms. The boundary of the gamut is the image of the faces of the RGB cube."""
    middle = apply_lut(lut.new_tensor([[0.0] * 3, [1.0] * 3])[:, :, None, None], lut)
    middle = middle.mean((0, 2, 3))
    level = torch.linspace(0, 1, REQUESTS, dtype=lut.dtype)
    plane = torch.cartesian_prod(level, level)
    total = torch.zeros(DIRECTIONS**3, dtype=lut.dtype)
    for axis in range(3):
        for end in (0.0, 1.0):
            colours = torch.cat([plane, torch.full_like(plane[:, :1], end)], dim=1).roll(axis, dims=1)
            offset = apply_lut(colours.T[None, :, None], lut)[0, :, 0].T - middle
            far = offset.abs().amax(1)
            far = torch.where(far > 1e-6, far, 0.0)
            node = ((offset / far.clamp(min=1e-6)[:, None] + 1) * ((DIRECTIONS - 1) / 2)).round().long()
            index = (node[:, 0] * DIRECTIONS + node[:, 1]) * DIRECTIONS + node[:, 2]
            total.scatter_reduce_(0, index, far, "amax")  # the farthest in each cell: an error outwards is preferred
    faces = F.pad(torch.zeros((1, *(DIRECTIONS - 2,) * 3), dtype=lut.dtype), (1,) * 6, value=1.0)
    reach = faces * total.reshape((1, *(DIRECTIONS,) * 3))
    # Fill directions without samples from their neighbours; a map to a single colour has none.
    while bool(reach.any()) and bool(((reach == 0) & (faces == 1)).any()):
        reach = torch.where(reach == 0, faces * F.max_pool3d(reach, 3, stride=1, padding=1), reach)
    return middle, reach[0]

"""The colours of a printer: its map, read from an untrusted file, and the gamut that a texture may have.

A map is a table (see `transforms.colour.lut`).
"""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageCms
from torch import Tensor

from attacks.perturbations.patch.inks import generic
from transforms.colour.lut import NODES, apply_lut, check_lut, nodes, powers, sampled, terms
from transforms.colour.spaces import to_linear, to_srgb
from transforms.doors import check_choice

#: Most bytes of a file; printer profiles have 0.1 to 4 million.
MAX_BYTES = {".icc": 2**24, ".icm": 2**24, ".json": 2**16}
#: Intent -> rendering intents to the printer's colours, and back to the screen.
INTENTS = {
    "relative": (ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Intent.RELATIVE_COLORIMETRIC),
    "perceptual": (ImageCms.Intent.PERCEPTUAL, ImageCms.Intent.RELATIVE_COLORIMETRIC),
    "absolute": (ImageCms.Intent.ABSOLUTE_COLORIMETRIC, ImageCms.Intent.ABSOLUTE_COLORIMETRIC),
}
#: Nodes along an edge of the cube of directions in which a gamut's reach is stored.
DIRECTIONS = 97
#: Samples along each axis of a face of the RGB cube, to measure a printer's boundary.
REQUESTS = 401


def read_colour_map(name: str, intent: str = "relative", key: str = "printer.colour") -> Tensor | None:
    """The table (3,n,n,n) from requested to printed sRGB; None for an ideal printer.

    Args:
        name: ideal, generic (see `attacks.perturbations.patch.inks`), or the path of an ICC profile (.icc, .icm), or
            of a fitted polynomial (.json, see `ColourFit.to_dict`).
        intent: of an ICC profile only: relative (the paper is white), perceptual, or absolute (the paper's own
            colour).
        key: of the configuration, for messages.

    Raises:
        ValueError, FileNotFoundError: an unknown name or intent, or a file that is missing or invalid.
    """
    check_choice("printer.intent", intent, INTENTS)
    suffix = Path(name).suffix.lower()
    if intent != "relative" and suffix not in (".icc", ".icm"):
        raise ValueError(f"`printer.intent={intent}` is for an ICC profile; {name!r} has no intents")
    if name in ("ideal", "generic"):
        return None if name == "ideal" else generic()
    if suffix not in MAX_BYTES:
        raise ValueError(f"`{key}` must be ideal, generic, or a file {', '.join(MAX_BYTES)}; got {name!r}")
    if not Path(name).is_file():
        raise FileNotFoundError(f"`{key}`: there is no file {name!r} (paths are relative to {Path.cwd()})")
    with Path(name).open("rb") as file:
        content = file.read(MAX_BYTES[suffix] + 1)
    try:
        if len(content) > MAX_BYTES[suffix]:
            raise ValueError(f"more than {MAX_BYTES[suffix]} bytes")
        return _polynomial(content) if suffix == ".json" else _profile(content, intent)
    except (ValueError, OSError, OverflowError, RecursionError, ImageCms.PyCMSError) as error:
        raise ValueError(
            f"`{key}`: {name} is not a {suffix} that can be used: {' '.join(str(error).split())}"
        ) from None


def _polynomial(content: bytes) -> Tensor:
    """A polynomial of red, green and blue: for each channel the weights of the monomials, in the order of
    `transforms.colour.lut.powers`, in linear light or sRGB values. The stage that applies the table clamps values
    beyond [0,1]."""
    data = json.loads(content)
    if not isinstance(data, dict) or data.get("schema") != 1 or data.get("kind") != "polynomial":
        raise ValueError('it must hold {"schema": 1, "kind": "polynomial", ...}')
    degree, rows, light = (data.get(key) for key in ("degree", "coefficients", "light"))
    if type(degree) is not int or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("it needs a `degree` and three lists of `coefficients`")
    if len(rows) != 3 or any(len(row) != len(powers(degree)) for row in rows):
        raise ValueError(f"`coefficients` must be 3 rows of {len(powers(degree))} numbers, for degree {degree}")
    if not all(type(value) in (int, float) and abs(value) <= 1e4 for row in rows for value in row):
        raise ValueError("`coefficients` must be numbers of at most 10000")
    if light not in ("linear", "srgb"):
        raise ValueError(f"`light` must be linear or srgb; got {light!r}")
    weights = torch.tensor(rows, dtype=torch.float64)
    if light == "srgb":
        return sampled(lambda colours: terms(colours, degree) @ weights.T)
    return linear_polynomial(weights, degree)


def linear_polynomial(weights: Tensor, degree: int) -> Tensor:
    """The table of a polynomial in linear light, of `weights` (3,K)."""
    return sampled(lambda colours: to_srgb(terms(to_linear(colours), degree) @ weights.T))


def _profile(content: bytes, intent: str) -> Tensor:
    """A soft proof: sRGB to the printer's colours and back, with black point compensation on the way there only, as
    in layout programs."""
    to_printer, back = INTENTS[intent]
    profile, screen = ImageCms.ImageCmsProfile(io.BytesIO(content)), ImageCms.createProfile("sRGB")
    kind, space = profile.profile.device_class.strip(), profile.profile.xcolor_space.strip()
    if kind not in ("prtr", "mntr") or space not in ("RGB", "CMYK", "GRAY"):
        raise ValueError(f"it must be of a printer or a screen, in RGB, CMYK or grey; it is a {kind} in {space}")
    exact, black = ImageCms.Flags.NOOPTIMIZE, ImageCms.Flags.BLACKPOINTCOMPENSATION
    if profile.profile.is_matrix_shaper:  # a proof transform of LittleCMS would pass colours that the device lacks
        steps = [
            ImageCms.buildTransform(screen, profile, "RGB", "RGB", to_printer, exact | black),
            ImageCms.buildTransform(profile, screen, "RGB", "RGB", back, exact),
        ]
    else:
        flags = exact | black | ImageCms.Flags.SOFTPROOFING
        steps = [ImageCms.buildProofTransform(screen, screen, profile, "RGB", "RGB", to_printer, back, flags)]
    grid = Image.fromarray((nodes() * 255).round().to(torch.uint8).reshape(NODES, -1, 3).numpy())
    for step in steps:
        grid = step.apply(grid)
    table = torch.from_numpy(np.array(grid)).reshape(NODES, NODES, NODES, 3)
    return table.permute(3, 0, 1, 2).float() / 255


@dataclass(frozen=True)
class ColourBox:
    """Every channel between `low` and `high`. `project` of a gamut takes and gives (N,3,h,w), and leaves its colours
    unchanged."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            got = f"[{self.low}, {self.high}]"
            raise ValueError(f"`perturbation.gamut` must be [low, high] with 0 <= low < high <= 1; got {got}")

    def project(self, texture: Tensor) -> Tensor:
        return texture.clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Printable:
    """The colours that a printer can show: the image of its colour map.

    A colour outside moves straight towards the centre of the gamut, in sRGB, up to the boundary. That is not the
    nearest colour, but it is idempotent and fast: a search for the nearest is inexact where a profile has kinks, and
    a projection that is not idempotent would drift at every step. The boundary is measured from the centre, so
    concave parts are filled, and it lies up to two 8-bit levels too far out.

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
        offset = inside - self.middle.to(texture)[:, None, None]
        far = offset.abs().amax(1, keepdim=True)
        direction = (offset / far.clamp(min=1e-6)).permute(0, 2, 3, 1).flip(-1)[None]
        cube = self.reach.to(texture)[None, None]
        reach = F.grid_sample(cube, direction, padding_mode="border", align_corners=True)
        # `where`, not the formula alone: a printable colour must not change by a bit.
        share = (reach[0].transpose(0, 1) / far.clamp(min=1e-6)).clamp(max=1)
        return torch.where(share < 1, inside - (1 - share) * offset, inside)


Gamut = ColourBox | Printable


def gamut(setting: Any) -> Gamut | None:
    """The gamut of a configuration's `perturbation.gamut`: null, [low, high], or a colour map by name or path. Raises
    ValueError or FileNotFoundError where it is not one of these."""
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
    middle = apply_lut(lut.new_tensor([[0.0] * 3, [1.0] * 3])[:, :, None, None], lut).mean((0, 2, 3))
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

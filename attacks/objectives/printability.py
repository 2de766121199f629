"""A penalty on colours that a printer cannot print."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from attacks.objectives.penalties import EDGE, check_weight
from attacks.perturbations.patch.colour_profiles import MAX_BYTES as COLOUR_MAPS
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.perturbations.patch.inks import generic
from attacks.schema.options import option
from transforms.colour.lut import apply_lut

#: The tints of each channel that make the palette of a printer whose palette is not measured.
TINTS = (0.0, 0.5, 1.0)
#: The most colours of a palette, and bytes of its file.
MAX_COLOURS, BYTES = 4096, 2**17


@dataclass(frozen=True, eq=False)
class NonPrintability:
    """Colours that a printer can print: of each texel of a patch the distance to the nearest one.

    The value is weight * the mean, over the texels, of the distance from a texel's colour to the nearest one of a
    palette, in sRGB of [0,1]: about 0.2 for random colours and the palette of the generic printer, 0 for those of the
    palette.

    The non-printability score of Sharif et al. 2016 multiplies the distances to all colours, and a product of thirty
    numbers below 1 is nearly 0 everywhere, and so is its gradient. Here only the nearest colour counts, which alone
    decides whether the product is 0.

    The distance is sqrt(d^2 + e^2) - e with e = `EDGE`, whose gradient at a printable colour is 0. All texels count,
    also the transparent ones.

    Use: a patch that will be printed, where only the printable colours are known.
    Not: a printer whose map is known: `perturbation.gamut`, which is exact.
    Cost: the distance of each texel to each colour of the palette, once a step.
    Oracle: the distance to the nearest colour, tests/objectives/test_printability.py.
    With: config=patch

    The `weight` is positive, 0.1 to 1 beside a cosine; the `palette` (K,3) in [0,1], or what `read_palette` takes.
    """

    weight: float = option(
        0.1, "of a distance in sRGB of [0, 1]", range="above 0", paper="Sharif et al. 2016, changed"
    )
    palette: str | Tensor = option(
        "generic", "or a text file (r, g, b of a colour a line, 0 to 255), or a printer's .icc or .json"
    )
    colours: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_weight(self.weight)
        palette = read_palette(self.palette) if isinstance(self.palette, str) else self.palette
        if palette.dim() != 2 or palette.shape[1] != 3 or not 1 <= len(palette) <= MAX_COLOURS:
            raise ValueError(f"`palette` must be (K,3), K from 1 to {MAX_COLOURS}; got shape {tuple(palette.shape)}")
        if not bool(((palette >= 0) & (palette <= 1)).all()):
            raise ValueError("`palette` must hold colours in [0,1]; divide levels of 8 bits by 255")
        object.__setattr__(self, "colours", palette)

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        texture = delta.expand(-1, 3, -1, -1)  # a printed grey is compared as a colour, for it need not be neutral
        difference = texture - nearest(texture.detach(), self.colours)
        lengths = (difference.square().sum(1) + EDGE**2).sqrt() - EDGE
        return self.weight * lengths.flatten(1).mean(1).expand(len(images))


@torch.no_grad()
def nearest(texture: Tensor, palette: Tensor) -> Tensor:
    """The nearest palette colour of each texel, (N,3,h,w); colour by colour, to save memory."""
    smallest = torch.full_like(texture[:, 0], math.inf)
    row = torch.zeros_like(smallest, dtype=torch.long)
    colours = palette.to(texture)
    for i, colour in enumerate(colours):
        distance = (texture - colour[:, None, None]).square().sum(1)
        row.masked_fill_(distance < smallest, i)
        smallest = torch.minimum(smallest, distance)
    return colours[row].permute(0, 3, 1, 2)


def read_palette(name: str) -> Tensor:
    """The printable colours (K,3): a printer's at `TINTS` of each channel, by its colour map (see `read_colour_map`);
    or a text or CSV file's, a line "r, g, b" each, from 0 to 255. Raises ValueError or FileNotFoundError."""
    if name == "generic":
        return tints(generic())
    suffix = Path(name).suffix.lower()
    if suffix in COLOUR_MAPS:
        lut = read_colour_map(name, key="penalty.palette")
        assert lut is not None
        return tints(lut)
    if suffix not in (".txt", ".csv"):
        suffixes = ", ".join((".txt", ".csv", *COLOUR_MAPS))
        raise ValueError(f"`penalty.palette` must be generic, or a file {suffixes}; got {name!r}")
    if not Path(name).is_file():
        raise FileNotFoundError(f"`penalty.palette`: there is no file {name!r} (paths are relative to {Path.cwd()})")
    with Path(name).open("rb") as file:
        content = file.read(BYTES + 1)
    if len(content) > BYTES:
        raise ValueError(f"`penalty.palette`: {name} has more than {BYTES} bytes; at most {MAX_COLOURS} colours fit")
    lines = content.decode("utf-8", errors="replace").splitlines()
    rows = [_colour(line, f"line {n} of {name}") for n, line in enumerate(lines, 1) if line.strip()]
    if not 1 <= len(rows) <= MAX_COLOURS:
        raise ValueError(f"`penalty.palette`: {name} must hold 1 to {MAX_COLOURS} colours; it holds {len(rows)}")
    return torch.tensor(rows) / 255


def tints(lut: Tensor) -> Tensor:
    """The printed colours of all mixtures of `TINTS`, (27,3)."""
    level = lut.new_tensor(TINTS)
    return apply_lut(torch.cartesian_prod(level, level, level).T[None, :, None], lut)[0, :, 0].T


def _colour(line: str, place: str) -> list[float]:
    try:
        values = [float(value) for value in line.replace(",", " ").replace(";", " ").split()]
    except ValueError:
        values = []
    if len(values) != 3 or not all(0 <= value <= 255 for value in values):
        raise ValueError(f'`penalty.palette`: {place} must be "r, g, b" from 0 to 255; got {line.strip()[:60]!r}')
    return values

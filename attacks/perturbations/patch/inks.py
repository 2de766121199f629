"""Generic printers: the colours of a four-colour halftone on paper, of one ink and of a family of inks."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.lut import sampled
from transforms.colour.spaces import LUMA, at_least_float32, to_linear, to_srgb
from transforms.draws.ranges import Range, Ranged, pair, symmetric
from transforms.sampling.straight_through import saturate

#: Colours of inks and overprints on coated paper (SWOP), as 8-bit sRGB with the paper as white. The index is the
#: requested colour, a bit each for red, green and blue: 0 is black ink, blue is cyan over magenta, 7 is bare paper.
INKS = (
    (35, 31, 32),
    (46, 49, 146),
    (0, 166, 81),
    (0, 174, 239),
    (237, 28, 36),
    (236, 0, 140),
    (255, 242, 0),
    (255, 255, 255),
)
#: Light that enters the paper beside a dot and leaves through it (Yule & Nielsen 1951): 1 for none, 2 for all of it.
SPREAD = 2.0
#: Below this light, one level of 8 bits, a power of light is a straight line: its derivative grows without bound.
TOE = 3e-4
#: The name of the family of inks among the colours of a printer.
FAMILY = "family"


def neugebauer(colours: Tensor, inks: Tensor, n: float = SPREAD) -> Tensor:
    """The colours that a halftone shows for requested sRGB colours, (K,3) -> (K,3).

    Dots of three inks overlap at random, so the areas of the eight overprints are products (Demichel); the eye
    averages their light (Neugebauer 1937), to the power 1/n (Yule & Nielsen 1951). The coverage of an ink is
    calibrated so that ideal inks (`inks` the corners of the cube) reproduce every colour: cyan covers 1 - red^(1/n),
    in linear light. With n = 2 a half tint of cyan matches SWOP to one level, of yellow to two; with n = 1 the error
    is 18 levels.

    Args:
        inks: (8,3) sRGB in [0,1], in the order of `INKS`.
    """
    bare = to_linear(colours).pow(1 / n)
    shares = [
        torch.stack([bare[:, i] if bit else 1 - bare[:, i] for i, bit in enumerate(bits)]).prod(0)
        for bits in itertools.product((0, 1), repeat=3)
    ]
    return to_srgb((torch.stack(shares, dim=-1) @ to_linear(inks).pow(1 / n)).pow(n))


def generic() -> Tensor:
    """The table of the generic printer, (3,n,n,n)."""
    inks = torch.tensor(INKS, dtype=torch.float64) / 255
    return sampled(lambda colours: neugebauer(colours, inks))


@dataclass(frozen=True)
class Inks(Ranged):
    """Print with an ink and on a paper of a family, drawn for each view: the halftone of `generic`, with

    - `gamma`: the power of the requested light, a dot gain or loss;
    - `gamut`: how pure the overprints are: 1 as those of `INKS`, 0 grey of the same luma;
    - `black`: the light of black ink, of which all overprints get their share: pale ink covers the paper less;
    - `gain`: of red, green and blue, the colour of paper and lamp, in stops.

    The default ranges hold the inks that they were set on, with room at both ends: SWOP on coated paper (black
    35/31/32, red 237/28/36), a print on plain paper (black 60, red 200/64/61), and a very pale draft.
    """

    gamma: Range = (0.7, 1.5)
    gamut: Range = (0.45, 1.0)
    black: Range = (0.01, 0.16)
    gain: float | Range = (-0.5, 0.1)

    names: ClassVar[tuple[str, ...]] = ("gamma (exponent)", "gamut (of SWOP)", "black (of paper's light)")
    names += ("red gain (stops)", "green gain (stops)", "blue gain (stops)")

    @cached_property
    def bounds(self) -> tuple[Range, ...]:
        gain = symmetric(self.gain, "gain", low=-4, high=4)
        gamut, black = (pair(getattr(self, name), name, low=0, high=1) for name in ("gamut", "black"))
        return (pair(self.gamma, "gamma", low=0.05, high=20), gamut, black, gain, gain, gain)

    def overprints(self, u: Tensor) -> Tensor:
        """(N,6) -> the light of the eight overprints, (N,8,3), in the order of `INKS`."""
        _, gamut, black, *gain = self.values(u)[:, :, None, None].unbind(1)
        swop = to_linear(u.new_tensor(INKS) / 255)
        black_ink = swop[0]
        light = ((swop - black_ink) / (1 - black_ink)).clamp(min=0)  # black is 0, paper is 1
        grey = (light @ u.new_tensor(LUMA))[:, None]
        light = grey + gamut * (light - grey)
        return (black + (1 - black) * light) * torch.cat(gain, -1).exp2()

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """(N,3,H,W) in [0,1] -> the printed colours (see `neugebauer`)."""
        wide = at_least_float32(images)
        light, power = to_linear(saturate(wide)), self.values(u)[:, :1, None, None].to(wide) / SPREAD
        bare = light * light.clamp(min=TOE).pow(power - 1)
        red, green, blue = (torch.stack([1 - bare[:, i], bare[:, i]], 1) for i in range(3))
        shares = (red[:, :, None, None] * green[:, None, :, None] * blue[:, None, None, :]).flatten(1, 3)
        roots = self.overprints(u).to(wide).pow(1 / SPREAD)
        halftone = torch.einsum("nkhw,nkc->nchw", shares, roots).pow(SPREAD)
        return saturate(to_srgb(halftone)).to(images.dtype)

"""A generic printer: the colours of a four-colour halftone on white paper."""

import itertools

import torch
from torch import Tensor

from transforms.colour.lut import sampled
from transforms.colour.spaces import to_linear, to_srgb

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


def neugebauer(colours: Tensor, inks: Tensor, n: float = SPREAD) -> Tensor:
    """The colours that a halftone shows for requested sRGB colours, (K,3) -> (K,3).

    Dots of three inks overlap at random, so the areas of the eight overprints are products (Demichel); the eye
    averages their light (Neugebauer 1937), to the power 1/n (Yule & Nielsen 1951). The coverage of an ink is
    calibrated so that ideal inks (`inks` the corners of the cube) reproduce every colour: cyan covers 1 - red^(1/n),
    in linear light. With n = 2 a half tint of cyan matches SWOP to one level, of yellow to two; with n = 1 the error
    is 18 levels.

    Args:
        inks: (8,3) sRGB, in the order of `INKS`.
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

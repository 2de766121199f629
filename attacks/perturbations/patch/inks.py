"""A printer of which nothing is known: the colours of a four-colour halftone on white paper."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from transforms.colour.lut import sampled
from transforms.colour.spaces import to_linear, to_srgb

#: What an ink, or two over each other, look like on coated paper, as 8-bit sRGB with the paper as white: the SWOP
#: colours that every layout program shows. By what the file asks for, a bit each for red, green and blue: nothing is
#: black ink, blue is cyan over magenta, ..., all three is bare paper.
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
    """What a halftone shows for the sRGB colours that it is asked for, (K,3) -> (K,3).

    Dots of three inks fall on each other by chance, so that the eight colours of paper and overprints share the area
    by products (Demichel); the eye averages their light over it (Neugebauer 1937), to the power 1/n (Yule & Nielsen
    1951). How much of the area an ink takes is set, as printers are calibrated, so that with ideal inks (`inks` the
    corners of the cube) every colour comes out as asked: cyan takes 1 - red^(1/n), of linear light. With n = 2 a half
    tint of cyan is that of SWOP to one level, of yellow to two; n = 1 would be 18 off.

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

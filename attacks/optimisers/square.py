"""Directions for a search without gradients: those of the Square attack (Andriushchenko et al. 2020)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.eot.protocols import Proposer
from attacks.schema.options import option

#: The shares of a run after which the window's area is halved (Andriushchenko et al. 2020, section 3.1, as shares of
#: 10 000 queries; the fourth of them is AutoAttack's).
HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
#: Values of one window differ by so much, relatively: a set that moves its largest values first then chooses among
#: them at random, not from left to right.
UNEVEN = 1e-3


@dataclass(frozen=True)
class Square(Proposer):
    """A random search of square windows, the Square attack: no gradient is used.

    First vertical stripes over the whole picture, then square windows at random places, each channel up or down as a
    whole; the windows shrink as the run goes on. In the L-inf ball this is the paper's algorithm 2, +-eps within the
    window, where `p_init` is the window's share of the picture's area at first; other sets have moves of their own.

    Use: an encoder that can only be asked, or a check that gradients are not masked.
    Not: an encoder with a gradient, which leads further in as many passes.
    Cost: forward passes only; 14.3 bits of a hash after 1,000 queries, where NES changes 25.3 (docs/decisions.md).
    Oracle: the proposals of the paper, and torchattacks at equal queries, tests/solvers/test_search.py.

    Examples:
        >>> from attacks.optimisers import Square
        >>> generator, like = torch.Generator().manual_seed(0), torch.zeros(1, 3, 32, 32)
        >>> window = Square().direction(like, step=50, steps=100, generator=generator)
        >>> window.shape, Square().side(32, 32, 0.5), int((window != 0).sum())  # 3 channels of 3 * 3 pixels
        (torch.Size([1, 3, 32, 32]), 3, 27)
    """

    p_init: float = option(
        0.8, "the first window's share of the picture", range="(0, 1]", paper="Andriushchenko et al. 2020"
    )

    def __post_init__(self) -> None:
        if not 0 < self.p_init <= 1:
            raise ValueError(f"`p_init` must lie in (0, 1], the window's share of the area; got {self.p_init:g}")

    def direction(self, like: Tensor, *, step: int, steps: int, generator: torch.Generator) -> Tensor:
        """What to move against in step `step` of `steps`: (1,C,H,W) for `like` (...,C,H,W), zero outside the
        window."""
        channels, height, width = like.shape[-3:]
        size = channels, height, width
        if step == 0:
            values = _signs((channels, 1, width), generator).expand(size)
            window = torch.ones(size)
        else:
            side = self.side(height, width, step / steps)
            top = int(torch.randint(height - side + 1, (), generator=generator))
            left = int(torch.randint(width - side + 1, (), generator=generator))
            values = _signs((channels, 1, 1), generator).expand(size)
            window = torch.zeros(size)
            window[:, top : top + side, left : left + side] = 1
        uneven = 1 - UNEVEN * torch.rand(size, generator=generator)
        return (values * window * uneven)[None].to(like)

    def side(self, height: int, width: int, share: float) -> int:
        """The window's side in pixels after a `share` in [0,1) of the run."""
        area = self.p_init / 2 ** sum(share > edge for edge in HALVINGS)
        return min(max(round(math.sqrt(area * height * width)), 1), height, width)


def _signs(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, size, generator=generator) - 1

"""The objective for a hash: its bits should change."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.phash import bits
from attacks.eot.protocols import Objective
from attacks.objectives.embedding import comparable
from attacks.schema.options import option


@dataclass(frozen=True)
class Bits(Objective):
    """The signs of the features should change: for encoder=phash.

    The loss is a smooth share of unchanged bits. A bit counts by its distance from the edge, the sign change: from -1
    (far on the other side) through 0 (on the edge) to 1. Its gradient falls with the square of this distance, so the
    attack works on the bits near the edge: neither on those that have changed (as a linear loss would) nor on those
    out of reach (as a hinge would).

    Use: a hash whose bits are compared, such as `encoder=phash`.
    Not: embeddings that are compared by a cosine: `Away`.
    Source: the Hamming distance, made smooth.
    Oracle: the bits that have not flipped, tests/encoders/test_phash.py.
    With: encoder=phash transforms=web

    The `margin` is in the units of the features, for `Phash` grey levels.
    """

    margin: float = option(
        8.0, "distance from the edge where a bit counts by a half, in the features' units", range="above 0"
    )

    def __post_init__(self) -> None:
        if not (self.margin > 0 and math.isfinite(self.margin)):
            raise ValueError(f"`margin` must be a positive number, in the features' units; got {self.margin}")

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D) whose signs are bits, (N,D) those of the pictures to move away from -> (N,) in (-1,1)."""
        features, anchor = comparable(features, anchor)
        agreement = torch.where(bits(anchor), features, -features)
        return (agreement / (self.margin + agreement.abs())).flatten(1).mean(1)

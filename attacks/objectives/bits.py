"""The share of bits of a hash that stay."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.phash import bits
from attacks.eot.protocols import Objective


@dataclass(frozen=True)
class Bits(Objective):
    """The share of bits that stay, softly: each counts by how far its number lies on the side where the anchor has
    it, from -1 (far on the other side) through 0 (on the edge) to 1.

    Args:
        margin: the distance from the edge, in the units of the features (for `Phash` grey levels), where a bit counts
            by a half. The pull on a bit falls with the square of its distance, and so goes to those that can still
            change: not to those already changed (a linear loss pulls on), nor to the hopeless (a hinge does).
    """

    margin: float = 8.0

    def __post_init__(self) -> None:
        if not (self.margin > 0 and math.isfinite(self.margin)):
            raise ValueError(f"`margin` must be a positive number, in the features' units; got {self.margin}")

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D) whose signs are bits, (N,D) those of the pictures to move away from -> (N,) in (-1,1)."""
        kept = torch.where(bits(anchor), features, -features)
        return (kept / (self.margin + kept.abs())).mean(1)

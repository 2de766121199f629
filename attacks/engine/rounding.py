"""How far a gradient is from that of float32, beside how far float32's own is from the gradient of all views."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from attacks.engine.records import Trial


class Rounding(NamedTuple):
    """`size` of the reference gradient, `error` of the candidate's, `noise` of the reference (None: unknown): root
    mean squares over images of L2 norms. `cosine` of the two, the mean over images."""

    size: float
    error: float
    noise: float | None
    cosine: float

    @property
    def ratio(self) -> float | None:
        """error^2 / noise^2: how much the rounding adds to E||g - E g||^2, the noise as every signal-to-noise ratio
        here counts it. A ratio of 0.15 costs what 13 % fewer views would. None where the noise is unknown."""
        if self.noise is None:
            return None
        return (self.error / self.noise) ** 2 if self.noise else math.inf


def compare(grad: Tensor, reference: Trial) -> Rounding:
    """The rounding of `grad` (N,...) against a step in float32.

    An estimate g has E||g||^2 = ||E g||^2 + E||g - E g||^2, so its noise is ||g|| / sqrt(1 + snr). A gradient that
    is not finite has the error infinity.
    """
    exact, other = (g.detach().flatten(1).double() for g in (reference.grad, grad))
    squares = exact.square().sum(1)
    difference = (other - exact).square().sum(1).mean()
    noise = (squares / (1 + reference.snr.to(squares).clamp(min=0))).mean()
    return Rounding(
        size=float(squares.mean().sqrt()),
        error=float(difference.sqrt()) if bool(difference.isfinite()) else math.inf,
        noise=float(noise.sqrt()) if bool(noise.isfinite()) else None,
        cosine=float(F.cosine_similarity(exact, other).mean()),
    )

"""How far apart two runs are, and how far they may be by chance."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

#: Differences below this share of what the attack gains count as none.
NEGLIGIBLE = 0.02


class Gap(NamedTuple):
    """The mean of a - b, and the `noise` below which it says nothing: two standard errors over the views, which are
    the same for both, and a small share of the attack's gain."""

    mean: float
    noise: float

    @property
    def above(self) -> bool:
        """Whether a is larger, beyond chance."""
        return self.mean > self.noise

    @property
    def below(self) -> bool:
        """Whether a is smaller, beyond chance."""
        return self.mean < -self.noise


def gap(a: Tensor, b: Tensor, gain: float) -> Gap:
    """Of two tables of losses (N,V) on the same views; `gain` is how far the attack lowers the loss."""
    by_view = (a - b).double().mean(0)
    error = float(by_view.std()) / len(by_view) ** 0.5 if len(by_view) > 1 else 0.0
    size = 1e-6 * float(b.abs().mean())  # float32's own digits
    return Gap(float(by_view.mean()), 2 * error + NEGLIGIBLE * abs(gain) + size)


def mean(losses: Tensor) -> float:
    """Over pictures and views."""
    return float(losses.double().mean())

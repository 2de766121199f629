"""More views where the gradient is too noisy: the norm test of adaptive-batch SGD (Byrd et al. 2012), on the cosine.

A gradient of n views has the cosine sqrt(n / (n + c)) to the true one; c is estimated in every step. Many steps of
few views are more efficient, so n grows only after several noisy steps, and only as far as the budget allows for
every planned step.
"""

from dataclasses import dataclass
from typing import NamedTuple

from attacks.eot.estimate import Estimate
from attacks.runtime.stored import stored


@stored("views")
class Views(NamedTuple):
    """How many blocks of `EOT.views` views a step takes, and for how many steps running the cosine was too low."""

    times: int = 1
    low: int = 0


@dataclass(frozen=True)
class Adaptive:
    """Doubles the views when the estimated cosine to the true gradient, averaged over the pictures, has been below
    `cosine` for `patience` steps running."""

    cosine: float
    patience: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.cosine < 1:
            raise ValueError(f"`cosine` must lie between 0 and 1; got {self.cosine}")
        if type(self.patience) is not int or self.patience < 1:
            raise ValueError(f"`patience` must be a whole number of steps, at least 1; got {self.patience!r}")

    def next(self, views: Views, estimate: Estimate, *, base: int, steps: int, budget: int) -> Views:
        """The views of the next step.

        Args:
            views: those of the step that gave `estimate`.
            base: views in a block.
            steps: how many steps are still to come.
            budget: how many views of each picture are left.
        """
        cosine = float(estimate.cosine.nan_to_num(0.0).mean())  # unknown from a single view: take more
        low = views.low + 1 if cosine < self.cosine else 0
        if low >= self.patience and 2 * views.times * base * steps <= budget:
            return Views(2 * views.times, 0)
        return Views(views.times, low)

"""Risks: from the losses (N,n) of an image's views to the number that the attacker minimises.

A tail weighs the highest losses, and costs a forward pass of all views first. Weights (N,n) are the derivative of the
value by the losses: non-negative, rows sum to 1. Both are float64 where the device has it.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from attacks.schema.options import option
from transforms.devices import wide_dtype


class Risk(Protocol):
    """A number from the losses of an image's views, between their mean and their maximum."""

    @property
    def uniform(self) -> bool:
        """Whether all weights are 1/n, whatever the losses: no look at them is needed first."""

    def weights(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,n): how much each view counts; rows sum to 1."""

    def value(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,)."""


@dataclass(frozen=True)
class Mean:
    r"""The mean over the views: expectation over transformation (Athalye et al. 2018).

    Formula: \frac{1}{n} \sum_{i=1}^{n} \ell_i
    Use: the default: success in as many views as possible.
    Not: an attack that has to hold in the worst views.
    Oracle: the limits of the other risks, tests/eot/test_risk.py.

    Examples:
        >>> from attacks.eot import Mean
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> Mean().value(losses).tolist(), Mean().weights(losses).tolist()
        ([2.5], [[0.25, 0.25, 0.25, 0.25]])
    """

    uniform: ClassVar[bool] = True

    def weights(self, losses: Tensor) -> Tensor:
        return torch.full_like(_wide(losses), 1 / losses.shape[1])

    def value(self, losses: Tensor) -> Tensor:
        return _wide(losses).mean(1)


@dataclass(frozen=True)
class CVaR:
    r"""Conditional value at risk: the mean of the worst share `alpha` of the views, those with the highest losses
    (Rockafellar & Uryasev 2000).

    The view at the boundary counts in part, so the share is exact for any n; below 1/n it is the maximum. Of equal
    losses, the earlier view counts first. `alpha` lies in (0,1]; 1 is the mean.

    Formula: \min_q \; q + \frac{1}{\alpha n} \sum_{i=1}^{n} \max(\ell_i - q, 0)
    Use: an attack that has to hold in the worst share of the views.
    Not: steps of few views, whose worst share is a single one.
    Oracle: the minimum of Rockafellar and Uryasev, tests/eot/test_risk.py.

    Examples:
        >>> from attacks import CVaR
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> CVaR(alpha=0.5).value(losses).tolist(), CVaR(alpha=0.5).weights(losses).tolist()
        ([3.5], [[0.5, 0.0, 0.5, 0.0]])
    """

    alpha: float = option(0.25, "the share", range="(0, 1]", paper="Rockafellar & Uryasev 2000")
    uniform: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"`alpha` must lie in (0, 1], the share of views that counts; got {self.alpha}")

    def weights(self, losses: Tensor) -> Tensor:
        """1 / (alpha n) for each view of the tail, less for the one at its boundary, 0 elsewhere."""
        wide = _wide(losses)
        order = wide.argsort(dim=1, descending=True, stable=True)
        return torch.zeros_like(wide).scatter(1, order, self._shares(wide).expand_as(wide))

    def value(self, losses: Tensor) -> Tensor:
        worst = _wide(losses).sort(dim=1, descending=True, stable=True).values
        return (worst * self._shares(worst)).sum(1)

    def _shares(self, like: Tensor) -> Tensor:
        """(n,), from the worst view to the best."""
        n = like.shape[1]
        count = max(1.0, self.alpha * n)
        # (k/n) n may miss k by rounding, and a view with a weight of 1e-16 costs as much as any other.
        count = round(count) if abs(count - round(count)) < 1e-9 else count
        return (count - torch.arange(n, dtype=like.dtype, device=like.device)).clamp(0, 1) / count


def _wide(losses: Tensor) -> Tensor:
    return losses.to(wide_dtype(losses))

"""Risks: from the losses of one image's views to the number that the attacker minimises.

The attacker lowers losses. The mean is EOT; the others weigh the highest losses, and cost a forward pass of all views
first. Losses are (N,n), one row per image. Weights (N,n) are the derivative of the value by the losses: non-negative,
rows sum to 1. Both are float64 where the device has it.
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

    @property
    def multiple(self) -> int:
        """The number of views must be a multiple of this."""

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
        >>> import torch
        >>> from attacks.eot import Mean
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> Mean().value(losses).tolist(), Mean().weights(losses).tolist()
        ([2.5], [[0.25, 0.25, 0.25, 0.25]])
    """

    uniform: ClassVar[bool] = True
    multiple: ClassVar[int] = 1

    def weights(self, losses: Tensor) -> Tensor:
        """1/n each."""
        return torch.full_like(_wide(losses), 1 / losses.shape[1])

    def value(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,)."""
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
        >>> import torch
        >>> from attacks import CVaR
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> CVaR(alpha=0.5).value(losses).tolist(), CVaR(alpha=0.5).weights(losses).tolist()
        ([3.5], [[0.5, 0.0, 0.5, 0.0]])
    """

    alpha: float = option(0.25, "the share", range="(0, 1]", paper="Rockafellar & Uryasev 2000")
    uniform: ClassVar[bool] = False
    multiple: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"`alpha` must lie in (0, 1], the share of views that counts; got {self.alpha}")

    def weights(self, losses: Tensor) -> Tensor:
        """1 / (alpha n) for each view of the tail, less for the one at its boundary, 0 elsewhere."""
        wide = _wide(losses)
        order = wide.argsort(dim=1, descending=True, stable=True)
        return torch.zeros_like(wide).scatter(1, order, self._shares(wide).expand_as(wide))

    def value(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,)."""
        worst = _wide(losses).sort(dim=1, descending=True, stable=True).values
        return (worst * self._shares(worst)).sum(1)

    def _shares(self, like: Tensor) -> Tensor:
        """(n,), from the worst view to the best."""
        n = like.shape[1]
        count = max(1.0, self.alpha * n)
        # (k/n) n may miss k by rounding, and a view with a weight of 1e-16 costs as much as any other.
        count = round(count) if abs(count - round(count)) < 1e-9 else count
        return (count - torch.arange(n, dtype=like.dtype, device=like.device)).clamp(0, 1) / count


@dataclass(frozen=True)
class WorstOf:
    r"""The views in groups of `k`, one after the other; the mean over the groups of each group's highest loss.

    With independent draws this estimates the expected maximum of k draws without bias, for any n that is a multiple
    of k; draws that depend on each other within a step shift it. Of equal losses, the first view of the group counts.

    Formula: \frac{k}{n} \sum_{j=1}^{n/k} \max(\ell_{(j-1)k+1}, \ldots, \ell_{jk})
    Use: the expected worst of k views, without bias.
    Not: a number of views that k does not divide.
    Source: the expected maximum of k draws.
    Oracle: the maxima of the groups, tests/eot/test_risk.py.
    With: attack.views=4

    Examples:
        >>> import torch
        >>> from attacks.eot import WorstOf
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> WorstOf(k=2).value(losses).tolist(), WorstOf(k=2).weights(losses).tolist()
        ([3.5], [[0.5, 0.0, 0.5, 0.0]])
    """

    k: int = option(4, "views in a group; attack.views must be a multiple", range="at least 1")
    uniform: ClassVar[bool] = False

    @property
    def multiple(self) -> int:
        """k."""
        return self.k

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ValueError(f"`k` must be a whole number of views, at least 1; got {self.k!r}")

    def weights(self, losses: Tensor) -> Tensor:
        """1 over the number of groups for the worst view of each, 0 elsewhere. Raises ValueError if k does not divide
        n."""
        groups = self._groups(losses)
        first = torch.zeros_like(groups).scatter(2, groups.argmax(2, keepdim=True), 1 / groups.shape[1])
        return first.flatten(1)

    def value(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,). Raises ValueError if k does not divide n."""
        groups = self._groups(losses)
        return groups.gather(2, groups.argmax(2, keepdim=True)).mean((1, 2))

    def _groups(self, losses: Tensor) -> Tensor:
        n = losses.shape[1]
        if n % self.k:
            raise ValueError(f"the number of views must be a multiple of `k`; got {n} views for k={self.k}")
        return _wide(losses).reshape(len(losses), -1, self.k)


@dataclass(frozen=True)
class SoftMax:
    r"""t log mean exp(loss / t): a smooth maximum, in which every view counts, the worst most (the entropic risk).

    `temperature` t is in the units of the loss: far above the spread of the losses it is their mean, far below it
    their maximum. Equal losses have equal weights.

    Formula: t \log \frac{1}{n} \sum_{i=1}^{n} e^{\ell_i / t}
    Use: an attack in which every view counts, and bad ones more.
    Not: losses of unknown scale: the temperature is in their unit.
    Source: the entropic risk.
    Oracle: the logarithm of a mean of exponentials, tests/eot/test_risk.py.

    Examples:
        >>> import torch
        >>> from attacks.eot import SoftMax
        >>> losses = torch.tensor([[4.0, 1.0, 3.0, 2.0]])
        >>> [round(float(SoftMax(temperature).value(losses)), 2) for temperature in (1e-3, 1.0, 1e3)]
        [4.0, 3.05, 2.5]
    """

    temperature: float = option(0.05, "of the loss; small: the worst view, large: the mean", range="[1e-9, 1e9]")
    uniform: ClassVar[bool] = False
    multiple: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1e-9 <= self.temperature <= 1e9:
            raise ValueError(
                f"`temperature` must lie in [1e-9, 1e9], in the units of the loss; got {self.temperature} "
                "(for the limits, use CVaR or WorstOf, and Mean)"
            )

    def weights(self, losses: Tensor) -> Tensor:
        """softmax(loss / t)."""
        return (_wide(losses) / self.temperature).softmax(1)

    def value(self, losses: Tensor) -> Tensor:
        """(N,n) -> (N,)."""
        wide = _wide(losses)
        top = wide.detach().amax(1, keepdim=True)
        # Away from the maximum: exp cannot overflow, and no digits cancel at high temperatures.
        excess = torch.expm1((wide - top) / self.temperature).mean(1)
        return top[:, 0] + self.temperature * torch.log1p(excess)


def _wide(losses: Tensor) -> Tensor:
    return losses.to(wide_dtype(losses))

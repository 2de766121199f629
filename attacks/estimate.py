"""What a step of EOT learns: a mean loss, a gradient, and how far both can be trusted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """Per image: `mean` loss (N,) over the views and its standard error (N,). Per delta (N of them, or one that all
    share): `snr` of the gradient, and the gradient `grad` of the risk, shaped like delta. Then the `views` of each
    picture, the `chunk`: the most rows that a pass had, fewer than asked where memory ran out; and `value` (N,), the
    risk of each image's losses, which `grad` belongs to (the mean, if the risk is).

    `snr` is ||E g||^2 / E||g - E g||^2 of the n-view mean g, both estimated from partial means and bias-corrected,
    at least 0; NaN when there is a single view. The standard errors and the snr are those of independent draws:
    a lower bound of the quality of Sobol points.
    """

    mean: Tensor
    stderr: Tensor
    snr: Tensor
    grad: Tensor
    views: int
    chunk: int
    value: Tensor

    @property
    def c(self) -> Tensor:
        """The noise of a single view's gradient as a multiple of the signal, tr Cov(g) / ||E g||^2: one number that
        tells what any number n of views will give, cosine^2 = n / (n + c)."""
        return self.views / self.snr

    @property
    def cosine(self) -> Tensor:
        """Of the gradient to the true one, as estimated: sqrt(snr / (1 + snr))."""
        return (1 + 1 / self.snr).rsqrt()


def signal_to_noise(grad: Tensor, energy: Tensor, n: int, groups: int) -> Tensor:
    """The snr of `grad` (N,...), from `energy` (N,): sum_k m_k ||g_k||^2 over the partial means g_k of
    m_k views, whose weighted mean is `grad`. NaN for a single partial mean."""
    if groups < 2:
        return torch.full_like(energy, torch.nan)
    size = grad.flatten(1).square().sum(1)
    noise = ((energy - n * size) / (groups - 1) / n).clamp(min=torch.finfo(energy.dtype).tiny)
    return ((size - noise) / noise).clamp(min=0)

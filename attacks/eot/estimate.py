"""The result of a step of EOT: a mean loss, a gradient, and the error of both."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.runtime.values import stored
from transforms.devices import uploaded, wide_dtype


@stored("estimate")
class Estimate(NamedTuple):
    """Per image: `mean` loss (N,) over the views and its standard error (N,). Per delta (N of them, or one that all
    share): `snr` of the gradient, the gradient `grad` of the risk, shaped like delta, and the `views` of a picture.
    Then the `chunk`: the most rows that a pass had, fewer than asked where memory ran out; and `value` (N,), the risk
    of each image's losses, which `grad` belongs to (the mean, if the risk is). In the steps of an attack by gradient
    all but `grad` is on the host.

    `snr` is ||E g||^2 / E||g - E g||^2 of the n-view mean g, both estimated from partial means and bias-corrected,
    at least 0; NaN when there is a single view. The standard errors and the snr are those of independent draws:
    a lower bound of the quality of Sobol points.

    Examples:
        >>> from attacks.eot import Estimate
        >>> zero, grad, views = torch.zeros(1), torch.zeros(1, 3, 8, 8), torch.tensor([6])
        >>> estimate = Estimate(zero, zero, torch.tensor([3.0]), grad, views, chunk=6, value=zero)
        >>> estimate.c.item(), round(estimate.cosine.item() ** 2, 4)  # n / snr, and n / (n + c)
        (2.0, 0.75)
    """

    mean: Tensor
    stderr: Tensor
    snr: Tensor
    grad: Tensor
    views: Tensor
    chunk: int
    value: Tensor

    @property
    def c(self) -> Tensor:
        """The noise of a single view's gradient as a multiple of the signal, tr Cov(g) / ||E g||^2: for any number n
        of views, cosine^2 = n / (n + c)."""
        return self.views / self.snr

    @property
    def cosine(self) -> Tensor:
        """The estimated cosine of the gradient to the true one: sqrt(snr / (1 + snr))."""
        return (1 + 1 / self.snr).rsqrt()


class OnHost(NamedTuple):
    """Estimates with all but their gradients on the host; of which deltas (D,) each one's gradient is exactly zero;
    whether its losses and gradient are finite; and whether another tensor is."""

    estimates: tuple[Estimate, ...]
    zeros: tuple[Tensor, ...]
    finite: tuple[bool, ...]
    other: bool


def on_host(estimates: Sequence[Estimate], other: Tensor | None = None) -> OnHost:
    """What the host must know of estimates, and whether an `other` tensor on their device is finite: one transfer."""
    figures: list[Tensor] = []
    for estimate in estimates:
        largest = _largest(estimate.grad)
        figures += (estimate.mean, estimate.stderr, estimate.value, estimate.snr)
        figures += (estimate.views.to(largest.dtype), largest)
    if other is not None:
        figures.append(torch.maximum(other.amax(), -other.amin())[None].to(figures[0].dtype))
    parts = torch.cat(figures).cpu().split([len(part) for part in figures])
    host_estimates, zeros, finite = [], [], []
    for i, estimate in enumerate(estimates):
        mean, stderr, value, snr, views, largest = parts[6 * i : 6 * i + 6]
        host_estimates.append(estimate._replace(mean=mean, stderr=stderr, value=value, snr=snr, views=views.long()))
        zeros.append(largest == 0)
        finite.append(bool(torch.cat([mean, value, largest]).isfinite().all()))
    return OnHost(tuple(host_estimates), tuple(zeros), tuple(finite), other is None or bool(parts[-1].isfinite()))


def _largest(grad: Tensor) -> Tensor:
    """The largest absolute value of each gradient (D,); NaN where any value is."""
    if len(grad) == 1:  # both in one pass, which torch has for a whole tensor
        low, high = grad.aminmax()
        return torch.maximum(high, -low)[None]
    rows = grad.flatten(1)
    return torch.maximum(rows.amax(1), -rows.amin(1))


def signal_to_noise(grad: Tensor, energy: Tensor, n: int, groups: int) -> Tensor:
    """The snr of `grad` (N,...), from `energy` (N,): sum_k m_k ||g_k||^2 over the partial means g_k of
    m_k views, whose weighted mean is `grad`. NaN for a single partial mean."""
    if groups < 2:
        return torch.full_like(energy, torch.nan)
    size = grad.flatten(1).square().sum(1)
    noise = ((energy - n * size) / (groups - 1) / n).clamp(min=torch.finfo(energy.dtype).tiny)
    return ((size - noise) / noise).clamp(min=0)


def combine(estimates: Sequence[Estimate]) -> Estimate:
    """One estimate from those of the members, made from the same views: mean losses, and the mean of the gradients,
    each first divided by its L1 norm (of each delta), then times the mean of those norms. `stderr` is the mean of
    theirs, an upper bound, and `snr` a lower bound. A member with a gradient of zero, or of a length that cannot be
    scaled to the others', does not count."""
    first = estimates[0]
    flat = torch.stack([estimate.grad.flatten(1) for estimate in estimates])  # (K,N,P)
    mean, stderr, value, snr, views = (
        uploaded(torch.stack([getattr(estimate, name) for estimate in estimates]), flat.device)
        for name in ("mean", "stderr", "value", "snr", "views")
    )
    norm = flat.abs().sum(2, dtype=wide_dtype(flat))
    share = norm.mean(0) / norm / len(estimates)
    share = torch.where((norm > 0) & (share < torch.finfo(flat.dtype).max), share, 0).to(flat.dtype)
    grad = (flat * share[:, :, None]).sum(0)
    power = flat.square().sum(2) / (1 + snr)  # each one's noise
    noise = (share * power.sqrt()).sum(0).square().clamp(min=torch.finfo(grad.dtype).tiny)
    return Estimate(
        mean=mean.mean(0),
        stderr=stderr.mean(0),
        snr=((grad.square().sum(1) - noise) / noise).clamp(min=0),
        grad=grad.view_as(first.grad),
        views=views[0],
        chunk=min(estimate.chunk for estimate in estimates),
        value=value.mean(0),
    )

"""The power spectrum of a perturbation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.evaluation.clusters import by_cluster

#: The most rings; small pictures have fewer frequencies.
RINGS = 32


def radial(deltas: Tensor, rings: int) -> Tensor:
    """(N,C,H,W) -> the power in each ring of frequencies (N,rings).

    Rings are equally wide from 0 to 0.5 cycles per pixel; the corners of the spectrum, up to 0.71, are left out.
    Power is summed over a ring, so that of white noise rises with the frequency. The sum over all frequencies is the
    mean square of the picture (Parseval).
    """
    height, width = deltas.shape[2:]
    values = deltas.detach().cpu().double()
    power = torch.fft.fft2(values).abs().square().sum(1) / (deltas.shape[1] * (height * width) ** 2)
    y, x = (torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    radius = torch.sqrt(y[:, None].square() + x.square())
    ring = (radius * 2 * rings).floor().long().clamp(max=rings - 1)  # 0.5 is in the last ring
    inside = (radius <= 0.5).flatten()
    total: Tensor = power.new_zeros(len(power), rings)
    return total.index_add_(1, ring.flatten()[inside], power.flatten(1)[:, inside])


def frequencies(rings: int) -> Tensor:
    """The centre of each ring, in cycles per pixel."""
    return (torch.arange(rings, dtype=torch.float64) + 0.5) / (2 * rings)


def shares(power: Tensor, clusters: Sequence[str]) -> list[float] | None:
    """(N,rings) -> the share of the power in each ring, averaged over the clusters of the pictures with any power;
    the sum is 1. None if no picture has any."""
    whole = power.sum(1, keepdim=True)
    some = whole[:, 0].nonzero()[:, 0].tolist()
    if not some:
        return None
    mean: list[float] = by_cluster(power[some] / whole[some], [clusters[i] for i in some]).mean(0).tolist()
    return mean


def ring_count(height: int, width: int) -> int:
    """The number of rings, so that each has frequencies on both axes."""
    return max(1, min(RINGS, min(height, width) // 2))

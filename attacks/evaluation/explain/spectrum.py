"""At which frequencies a perturbation has its power."""

from __future__ import annotations

import torch
from torch import Tensor

#: Rings at most; a small picture has fewer frequencies.
RINGS = 32


def radial(deltas: Tensor, rings: int) -> Tensor:
    """(N,C,H,W) -> the power in each ring of frequencies (N,rings).

    Rings are equally wide from 0 to 0.5, the finest pattern along an axis; the corners of the spectrum, up to 0.71,
    are left out. Power is added up over a ring, so white noise rises with the frequency: there are more waves of it.
    The mean square of the picture is the sum over all frequencies (Parseval).
    """
    height, width = deltas.shape[2:]
    values = deltas.detach().cpu().double()
    power = torch.fft.fft2(values).abs().square().sum(1) / (deltas.shape[1] * (height * width) ** 2)
    y, x = (torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    radius = torch.sqrt(y[:, None].square() + x.square())
    ring = (radius * 2 * rings).floor().long().clamp(max=rings - 1)  # 0.5 itself is in the last one
    kept = (radius <= 0.5).flatten()
    found: Tensor = power.new_zeros(len(power), rings)
    return found.index_add_(1, ring.flatten()[kept], power.flatten(1)[:, kept])


def frequencies(rings: int) -> Tensor:
    """The middle of each ring, in cycles per pixel."""
    return (torch.arange(rings, dtype=torch.float64) + 0.5) / (2 * rings)


def shares(power: Tensor) -> list[float] | None:
    """(N,rings) -> how the power of a picture is shared out over the rings, on average over the pictures: each counts
    alike, and sums to 1. None where no picture has any power."""
    whole = power.sum(1, keepdim=True)
    some = whole[:, 0] > 0
    found: list[float] = (power[some] / whole[some]).mean(0).tolist()
    return found if bool(some.any()) else None


def ring_count(height: int, width: int) -> int:
    """So many that each ring has frequencies on both axes."""
    return max(1, min(RINGS, min(height, width) // 2))

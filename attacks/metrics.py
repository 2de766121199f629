"""Numbers with intervals."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 4000


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Tensor, seed: int = 0) -> Interval:
    """The mean of (N,V) values, N pictures seen from V views, with a 95 % percentile bootstrap interval.

    Pictures are resampled whole (a cluster bootstrap: views of one picture are not independent; Davison & Hinkley
    1997). With a single picture only its views can be resampled, and the interval says nothing about
    other pictures.
    """
    units = values.double().mean(1) if len(values) > 1 else values.double()[0]
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(units), (RESAMPLES, len(units)), generator=generator)
    means = units.cpu()[rows].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(float(units.mean()), low, high)

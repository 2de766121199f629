"""Numbers with intervals."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 4000
#: Of the standard normal distribution, 95 % lie within so many standard deviations.
NORMAL = 1.959963984540054


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


def wilson(successes: float, n: int) -> Interval:
    """The share of `n` independent trials that succeeded, with its 95 % score interval (Wilson 1927; recommended for
    small `n` by Brown, Cai & DasGupta 2001): the shares from which the seen one lies less than 1.96 of their own
    standard deviations away. It has a width where all trials succeed, too, or none does."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"`successes` must lie in 0..`n`, and `n` be at least 1; got {successes} of {n}")
    mean, square = successes / n, NORMAL**2
    middle = (mean + square / (2 * n)) / (1 + square / n)
    half = NORMAL * math.sqrt(mean * (1 - mean) / n + square / (4 * n**2)) / (1 + square / n)
    return Interval(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))

"""Means, shares, medians and quantiles with 95 % intervals.

Pictures are the sampling units: views of one picture are not independent, so intervals are about other pictures, seen
from the same bank of views. `tests/evaluation/test_coverage.py` measures their coverage.
"""

import math
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 4000
#: Numbers drawn at once, to save memory.
BLOCK = 2**22
#: 95 % of the standard normal distribution lie within this many standard deviations.
NORMAL = 1.959963984540054
#: Pictures with hits only, and as many with misses only, that `rate` adds to estimate the variance between pictures.
UNSEEN = 0.25


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Tensor, seed: int = 0) -> Interval:
    """The mean of (N,V) values, N pictures seen from V views, with a 95 % bootstrap interval.

    Pictures are resampled whole (a cluster bootstrap; Davison & Hinkley 1997). Of a single picture the views are
    resampled, and the interval says nothing about other pictures.

    The ends are quantiles of the resampled means: those of BCa (Efron 1987), which correct for skewness, moved
    outward as Student's t is wider than the normal (the expansion of Hesterberg 2015), because percentiles are too
    narrow for few pictures. They never leave the range of the values. Coverage is about 0.95 from ten pictures on,
    0.90 for five, 0.75 for three, 0.50 for two.
    """
    units = values.double().mean(1) if len(values) > 1 else values.double()[0]
    mean, low, high = (float(value) for value in bootstrap(units.cpu()[None], seed))
    return Interval(mean, low, high)


def bootstrap(units: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The means of B samples (B,n) in float64, and the ends of their intervals (see `interval`): three (B,)."""
    n = units.shape[1]
    if n == 1:
        return units[:, 0], units[:, 0], units[:, 0]
    least, most = units.amin(1), units.amax(1)  # despite rounding, no end may leave this range
    mean = units.mean(1).clamp(least, most)
    away = units - mean[:, None]
    means = _resampled(away, seed).sort(1).values
    # Of a mean, BCa's bias and acceleration are both a sixth of its skewness. As that is at most 1/6, the denominator
    # below is above 0.6.
    spread = away.square().mean(1, keepdim=True).sqrt()
    skew = torch.where(spread > 0, away / spread, 0.0).pow(3).mean(1, keepdim=True) / (6 * math.sqrt(n))
    width = math.sqrt(n / (n - 1)) * student(n - 1)
    ends = skew + torch.tensor([[-width, width]], dtype=torch.float64)
    place = torch.special.ndtr(skew + ends / (1 - skew * ends)) * (RESAMPLES - 1)
    below = place.floor().long().clamp(0, RESAMPLES - 2)
    shifts = torch.lerp(means.gather(1, below), means.gather(1, below + 1), place - below)
    low, high = mean + shifts[:, 0].clamp_max(0), mean + shifts[:, 1].clamp_min(0)
    return mean, low.clamp(least, most), high.clamp(least, most)


def _resampled(away: Tensor, seed: int) -> Tensor:
    """The means (B,RESAMPLES) of resamples of (B,n), with the same indices for all B."""
    n, means = away.shape[1], []
    generator = torch.Generator().manual_seed(seed)
    for part in torch.arange(RESAMPLES).split(max(1, BLOCK // n)):
        places = torch.randint(n, (len(part), n), generator=generator)
        times = away.new_zeros(len(part), n).scatter_add_(1, places, away.new_ones(1, 1).expand_as(places))
        means.append(away @ times.T)
    return torch.cat(means, 1) / n


def rate(hits: Tensor) -> Interval:
    """The share of (N,V) trials that succeeded, N pictures seen from V views, with a 95 % interval that always has a
    width (see `rate_of_shares`)."""
    return rate_of_shares(hits.double().mean(1), hits.shape[1])


def rate_of_shares(shares: Tensor, views: int) -> Interval:
    """`rate` from each picture's share (N,) of its `views`: Wilson's interval for the effective number of trials.

    That number (Kish 1965) is p (1 - p) over the variance of the mean share, corrected by Student's t because the
    variance is estimated (Korn & Graubard 1998). A quarter of a picture with hits only and one with misses only are
    added to the estimate, for pictures that agree by chance. It is at least N, at most N V; of a single picture V.
    """
    shares = shares.double().cpu()
    return _score(float(shares.mean()), _effective_trials(shares, views))


def _effective_trials(shares: Tensor, views: int) -> float:
    n = len(shares)
    if n == 1:
        return float(views)
    p = (shares.sum() + UNSEEN) / (n + 2 * UNSEEN)
    added = UNSEEN * (p.square() + (1 - p).square())
    variance = ((shares - p).square().sum() + added) / (n + 2 * UNSEEN - 1)
    return float((n * p * (1 - p) / variance * (NORMAL / student(n - 1)) ** 2).clamp(n, n * views))


def median(values: Tensor) -> Interval:
    """The lower median of (N,) values, in `mean`, with an interval between two of the values (order statistics;
    Thompson 1936). Its coverage is at least 0.95 for any distribution; of fewer than six values it is their range,
    with coverage 0.94 for five, 0.75 for three."""
    low, high = _ordered(values, 0.5)
    return Interval(float(values.double().median()), low, high)


def quantile(values: Tensor, share: float) -> Interval:
    """The same for the quantile at `share`, interpolated linearly."""
    low, high = _ordered(values, share)
    value = float(values.double().quantile(share))
    return Interval(value, min(low, value), max(high, value))


def _ordered(values: Tensor, share: float) -> tuple[float, float]:
    """The two of (N,) values that enclose a quantile, each with an error of at most 2.5 %."""
    rising, n = values.double().sort().values, len(values)
    # The number of values below the quantile is binomial.
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
    chances = [math.exp(log + k * math.log(share) + (n - k) * math.log1p(-share)) for k, log in enumerate(logs)]
    low, high = _omitted(chances), n - 1 - _omitted(chances[::-1])
    return float(rising[low]), float(rising[high])


def _omitted(chances: list[float]) -> int:
    """How many values an interval can omit at one side, at a risk of 2.5 %."""
    return max(0, sum(risk <= 0.025 for risk in accumulate(chances)) - 1)


@cache
def student(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t, in standard errors; degrees of freedom are integers, at least 1."""
    if freedom > 200:  # Cornish & Fisher 1938; the error is below 1e-12
        z = NORMAL
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return math.fsum((z, *(term / freedom**k for k, term in enumerate(terms, 1))))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _within(angle: float, freedom: int) -> float:
    """The probability within sqrt(freedom) tan(angle) of Student's t (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def wilson(successes: float, n: int) -> Interval:
    """The share of `n` independent trials that succeeded, with its 95 % score interval (Wilson 1927; recommended for
    small `n` by Brown, Cai & DasGupta 2001). It has a width also where all trials succeed, or none."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"`successes` must lie in 0..`n`, and `n` be at least 1; got {successes} of {n}")
    return _score(successes / n, n)


def _score(mean: float, n: float) -> Interval:
    square = NORMAL**2
    middle = (mean + square / (2 * n)) / (1 + square / n)
    half = NORMAL * math.sqrt(mean * (1 - mean) / n + square / (4 * n**2)) / (1 + square / n)
    return Interval(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))

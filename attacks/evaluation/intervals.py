"""Numbers with intervals.

Pictures are the sampling units: views of one picture are not independent, so intervals are about other pictures, seen
from the same bank of views. `tests/evaluation/test_coverage.py` measures how often they hold the truth.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 4000
#: Numbers drawn at once, for memory.
BLOCK = 2**22
#: Of the standard normal distribution, 95 % lie within so many standard deviations.
NORMAL = 1.959963984540054
#: Pictures of nothing but hits, and as many of nothing but misses, that `rate` adds to estimate how alike views are.
UNSEEN = 0.25


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Tensor, seed: int = 0) -> Interval:
    """The mean of (N,V) values, N pictures seen from V views, with a 95 % bootstrap interval.

    Pictures are resampled whole (a cluster bootstrap: views of one picture are not independent; Davison & Hinkley
    1997). With a single picture only its views can be resampled, and the interval says nothing about
    other pictures.

    The ends are quantiles of the resampled means, so they never leave the range of the values. Which quantiles: those
    of BCa (Efron 1987), which follow a skewed distribution, but as much further out as Student's t is wider than the
    normal (the expansion of Hesterberg 2015), for plain percentiles are too narrow for few pictures. From ten
    pictures on the truth lies within about 95 times of 100. With fewer the range of the values is too short for that:
    90 of 100 for five pictures, 75 for three, 50 for two.
    """
    units = values.double().mean(1) if len(values) > 1 else values.double()[0]
    mean, low, high = (float(value) for value in bootstrap(units.cpu()[None], seed))
    return Interval(mean, low, high)


def bootstrap(units: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The means of B samples (B,n) in float64, and the two ends of their intervals (see `interval`): three (B,)."""
    n = units.shape[1]
    if n == 1:
        return units[:, 0], units[:, 0], units[:, 0]
    least, most = units.amin(1), units.amax(1)  # rounding must not leave this range
    mean = units.mean(1).clamp(least, most)
    away = units - mean[:, None]
    means = _resampled(away, seed).sort(1).values
    # Both constants of BCa, bias and acceleration, are this for a mean: a sixth of its skewness. It never passes 1/6,
    # and with it the denominator below stays above 0.6.
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
    """The means (B,RESAMPLES) of samples (B,n), each drawn anew with the same places."""
    n, means = away.shape[1], []
    generator = torch.Generator().manual_seed(seed)
    for part in torch.arange(RESAMPLES).split(max(1, BLOCK // n)):
        places = torch.randint(n, (len(part), n), generator=generator)
        times = away.new_zeros(len(part), n).scatter_add_(1, places, away.new_ones(1, 1).expand_as(places))
        means.append(away @ times.T)
    return torch.cat(means, 1) / n


def rate(hits: Tensor) -> Interval:
    """The share of (N,V) trials that succeeded, N pictures seen from V views, with a 95 % interval: `wilson`'s, for
    as many independent trials as these are worth. It always has a width. See `rate_of_shares`."""
    return rate_of_shares(hits.double().mean(1), hits.shape[1])


def rate_of_shares(shares: Tensor, views: int) -> Interval:
    """`rate` from each picture's share (N,) of its `views`.

    What the trials are worth (Kish 1965) is p (1 - p) over the variance of the mean share, less what Student's t asks
    for having estimated it (Korn & Graubard 1998). Few pictures that agree by chance would promise too much, nothing
    of all that agree; so a quarter of a picture with hits only and one with misses only are counted in. It is never
    less than N trials, for a picture's views are no worse than one trial, nor more than N V. A single picture
    counts by its views, and the interval says nothing about other pictures.
    """
    shares = shares.double().cpu()
    return _score(float(shares.mean()), float(_worth(shares[None], views)))


def _worth(shares: Tensor, views: int) -> Tensor:
    """How many independent trials B samples of shares (B,N) of `views` are worth: (B,)."""
    n = shares.shape[1]
    if n == 1:
        return torch.full((len(shares),), float(views), dtype=torch.float64)
    p = (shares.sum(1) + UNSEEN) / (n + 2 * UNSEEN)
    added = UNSEEN * (p.square() + (1 - p).square())
    variance = ((shares - p[:, None]).square().sum(1) + added) / (n + 2 * UNSEEN - 1)
    worth: Tensor = n * p * (1 - p) / variance * (NORMAL / student(n - 1)) ** 2
    return worth.clamp(n, n * views)


def median(values: Tensor) -> Interval:
    """The lower median of (N,) values, in `mean`, with an interval from one of them to another that holds the true
    median at least 95 times of 100, whatever the distribution (order statistics; Thompson 1936). Of fewer than six
    values it is their range, which holds it less often: 94 times of 100 for five, 75 for three."""
    low, high = _ordered(values, 0.5)
    return Interval(float(values.double().median()), low, high)


def quantile(values: Tensor, share: float) -> Interval:
    """The same for the value, in `mean`, that a `share` of (N,) values lies below; between two of them by a line."""
    low, high = _ordered(values, share)
    value = float(values.double().quantile(share))
    return Interval(value, min(low, value), max(high, value))


def _ordered(values: Tensor, share: float) -> tuple[float, float]:
    """The two of (N,) values which have a quantile between them, each missing it 2.5 times of 100 at most."""
    rising, n = values.double().sort().values, len(values)
    # How many values lie below the quantile is binomial.
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1)]
    chances = [math.exp(log + k * math.log(share) + (n - k) * math.log1p(-share)) for k, log in enumerate(logs)]
    low, high = _fewest(chances), n - 1 - _fewest(chances[::-1])
    return float(rising[low]), float(rising[high])


def _fewest(chances: list[float]) -> int:
    """How many of the first can be left out at a risk of 2.5 %; none where that is too many already."""
    risk = 0.0
    for k, chance in enumerate(chances):
        risk += chance
        if risk > 0.025:
            return max(0, k - 1)
    return 0


@cache
def student(freedom: int) -> float:
    """The number of standard errors that holds 95 % of Student's t with whole degrees of freedom, at least 1."""
    if freedom > 200:  # Cornish & Fisher 1938; by then good to 1e-12
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
    """How much of Student's t lies within sqrt(freedom) tan(angle) (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def wilson(successes: float, n: int) -> Interval:
    """The share of `n` independent trials that succeeded, with its 95 % score interval (Wilson 1927; recommended for
    small `n` by Brown, Cai & DasGupta 2001): the shares from which the seen one lies less than 1.96 of their own
    standard deviations away. It has a width where all trials succeed, too, or none does."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"`successes` must lie in 0..`n`, and `n` be at least 1; got {successes} of {n}")
    return _score(successes / n, n)


def _score(mean: float, n: float) -> Interval:
    square = NORMAL**2
    middle = (mean + square / (2 * n)) / (1 + square / n)
    half = NORMAL * math.sqrt(mean * (1 - mean) / n + square / (4 * n**2)) / (1 + square / n)
    return Interval(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))

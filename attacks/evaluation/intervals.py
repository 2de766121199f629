"""Means, shares, medians and quantiles with 95 % intervals over clusters.

Clusters are the sampling units (photographs; see `attacks.evaluation.clusters`), because views and tiles of one
photograph are not independent. Intervals are about other clusters, seen from the same bank of views. The methods were
chosen by simulation: `python scripts/benchmark.py coverage`.
"""

import math
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special
import scipy.stats
from torch import Tensor

Floats = npt.NDArray[np.float64]

#: The fewest clusters for which the interval of a mean, and of a share, keeps its coverage; of fewer, the range is
#: given.
FEWEST_MEANS, FEWEST_SHARES = 30, 4
#: Points of the grid of rates, and of correlations, of `_posterior`.
RATES, CORRELATIONS = 400, 32


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval, or, as `kind` "range", with the smallest and largest cluster value,
    where no method keeps its coverage for so few clusters."""

    mean: float
    low: float
    high: float
    kind: Literal["interval", "range"] = "interval"


def interval(values: Tensor) -> Interval:
    """The mean of (C,) values of C clusters, or (C,V) values seen from V views each.

    Of a single cluster with several views, the views are the units, and the interval says nothing about other
    clusters. Fewer than `FEWEST_MEANS` units give the range. See `mean_ends` for the method.
    """
    units = array(values)
    if units.ndim == 2:
        units = units.mean(1) if len(units) > 1 else units[0]
    ends = mean_ends(units[None]) if len(units) >= FEWEST_MEANS else None
    return summary(units, float(units.mean()), ends)


def array(values: Tensor) -> Floats:
    """In float64, on the CPU."""
    result: Floats = values.detach().double().cpu().numpy()
    return result


def summary(units: Floats, mean: float, ends: tuple[Floats, Floats] | None) -> Interval:
    """An interval of (C,) units from its ends (1,), widened to hold the mean; without ends, their range."""
    least, most = float(units.min()), float(units.max())
    mean = min(max(mean, least), most)  # despite rounding
    if ends is None:
        return Interval(mean, least, most, "range")
    return Interval(mean, min(mean, float(ends[0][0])), max(mean, float(ends[1][0])))


def mean_ends(units: Floats) -> tuple[Floats, Floats]:
    """The ends (B,) of the 95 % intervals of the means of B samples (B,n): Student's t, corrected for skewness by
    Hall's transformation (Hall 1992), within the range of the values."""
    n = units.shape[1]
    mean, spread = units.mean(1), units.std(1, ddof=1)
    away = (units - mean[:, None]) / np.where(spread > 0, spread, 1)[:, None]
    skew = (away**3).mean(1)
    width = float(scipy.stats.t.ppf(0.975, n - 1)) / math.sqrt(n)
    low, high = (mean - spread * _hall(end, skew, n) for end in (width, -width))
    least, most = units.min(1), units.max(1)
    return low.clip(least, most), high.clip(least, most)


def _hall(end: float, skew: Floats, n: int) -> Floats:
    """The inverse of Hall's transformation g(x) = x + skew x**2 / 3 + skew**2 x**3 / 27 + skew / (6 n)."""
    flat = np.abs(skew) < 1e-6
    safe = np.where(flat, 1, skew)
    result: Floats = np.where(flat, end, 3 / safe * (np.cbrt(1 + safe * (end - safe / (6 * n))) - 1))
    return result


def rate(shares: Tensor, trials: int | Tensor | None = None) -> Interval:
    """The mean of the shares (C,) of C clusters, each of `trials` views, one number or (C,), with an interval that
    always has a width. Or of hits (C,V), of C clusters seen from V views.

    Of a single cluster it is Wilson's over its views, and says nothing about other clusters.
    """
    if trials is None:
        shares, trials = shares.double().mean(1), shares.shape[1]
    units, n = array(shares), trials_of(trials)
    mean = float(units.mean())
    if len(units) == 1:
        ends = scipy.stats.binomtest(round(mean * n), n).proportion_ci(0.95, "wilson")
        return Interval(mean, min(mean, float(ends.low)), max(mean, float(ends.high)))
    return summary(units, mean, share_ends(units[None], n) if len(units) >= FEWEST_SHARES else None)


def trials_of(trials: int | Tensor) -> int:
    """The harmonic mean of the numbers of views, rounded: with independent views the mean of the clusters' shares
    varies as if each cluster had so many."""
    return trials if isinstance(trials, int) else max(1, round(1 / float((1 / array(trials)).mean())))


def share_ends(shares: Floats, trials: int) -> tuple[Floats, Floats]:
    """The ends (B,) of the 95 % intervals of the rates of B samples of shares (B,n) of `trials`: equal-tailed, of the
    posterior of the mean of beta-binomial clusters."""
    return _posterior(shares, trials)


def _posterior(shares: Floats, trials: int, risk: float = 0.05) -> tuple[Floats, Floats]:
    table, prior, edges = _grid(trials)
    low, high = np.empty(len(shares)), np.empty(len(shares))
    for start in range(0, len(shares), 250):
        rows = slice(start, start + 250)
        log = _histogram(shares[rows], trials) @ table + prior
        mass = np.exp(log - log.max(1, keepdims=True)).reshape(-1, CORRELATIONS, RATES).sum(1)
        below = np.cumsum(np.pad(mass, ((0, 0), (1, 0))), 1)
        for row, curve in enumerate(below / below[:, -1:], start):
            low[row], high[row] = np.interp((risk / 2, 1 - risk / 2), curve, edges)
    return low, high


def _histogram(shares: Floats, trials: int) -> Floats:
    """How many of the shares (B,n) are k / `trials`, (B,trials + 1); a share between two goes to both in part."""
    hits = shares * trials
    below = np.floor(hits + 1e-9).clip(0, trials)
    part = (hits - below).clip(0)
    result = np.zeros((len(shares), trials + 1))
    rows = np.arange(len(shares))[:, None]
    np.add.at(result, (rows, below.astype(int)), 1 - part)
    np.add.at(result, (rows, np.minimum(below + 1, trials).astype(int)), part)
    return result


@cache
def _grid(trials: int) -> tuple[Floats, Floats, Floats]:
    """Log likelihoods (trials + 1, CORRELATIONS * RATES) of the hits of a cluster, log weights of the prior, and the
    edges (RATES + 1,) between the rates."""
    edges = np.sin(np.pi / 2 * np.arange(RATES + 1) / RATES) ** 2
    p = np.sin(np.pi / 2 * (np.arange(RATES) + 0.5) / RATES) ** 2
    alike = np.sin(np.pi / 2 * (np.arange(CORRELATIONS) + 0.5) / CORRELATIONS) ** 2
    size = (1 / alike - 1)[:, None]
    one, other = (p * size).reshape(-1), ((1 - p) * size).reshape(-1)
    hits = np.arange(trials + 1)[:, None]
    table = scipy.special.betaln(hits + one, trials - hits + other) - scipy.special.betaln(one, other)
    return table, np.zeros(CORRELATIONS * RATES), edges


def median(values: Tensor) -> Interval:
    """The lower median of (N,) values, in `mean`, with an interval between two of the values (order statistics;
    Thompson 1936). Its coverage is at least 0.95 for any distribution; of fewer than six values it is their range."""
    units = array(values)
    return _ordered(units, 0.5, float(np.sort(units)[(len(units) - 1) // 2]))


def quantile(values: Tensor, share: float) -> Interval:
    """The same for the quantile at `share`, interpolated linearly."""
    units = array(values)
    return _ordered(units, share, float(np.quantile(units, share)))


def _ordered(units: Floats, share: float, middle: float) -> Interval:
    """The two of (N,) values that enclose a quantile, each with an error of at most 2.5 %; their range where no two
    do."""
    rising, n = np.sort(units), len(units)
    # The number of values below the quantile is binomial.
    number = scipy.stats.binom(n, share)
    low, high = int(number.ppf(0.025)) - 1, int(number.ppf(0.975))
    if low < 0 or high >= n:
        return Interval(middle, float(rising[max(0, low)]), float(rising[min(n - 1, high)]), "range")
    return Interval(middle, min(middle, float(rising[low])), max(middle, float(rising[high])))

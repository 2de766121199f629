"""Intervals that the report does not use, for `coverage`: those of the version before, and textbook ones.

Each takes samples (B,n) of shares of `trials`, or of values, and gives the two ends (B,) of B intervals.
"""

import numpy as np
import scipy.special
import scipy.stats

from attacks.evaluation.intervals import Floats

Ends = tuple[Floats, Floats]
RESAMPLES = 1000


def student(values: Floats) -> Ends:
    """Student's t of the cluster means."""
    n, mean = values.shape[1], values.mean(1)
    half = scipy.stats.t.ppf(0.975, n - 1) * values.std(1, ddof=1) / n**0.5
    return mean - half, mean + half


def percentile(values: Floats) -> Ends:
    """The plain percentile bootstrap over clusters."""
    low, high = np.quantile(_resampled(values), (0.025, 0.975), axis=1)
    return low, high


def expanded_bca(values: Floats) -> Ends:
    """Before: BCa (Efron 1987) with the expansion of Hesterberg (2015)."""
    n, mean = values.shape[1], values.mean(1, keepdims=True)
    spread = values.std(1, keepdims=True)
    away = (values - mean) / np.where(spread > 0, spread, 1)
    skew = (away**3).mean(1, keepdims=True) / (6 * n**0.5)
    ends = skew + (n / (n - 1)) ** 0.5 * scipy.stats.t.ppf(0.975, n - 1) * np.array([[-1, 1]])
    place = scipy.special.ndtr(skew + ends / (1 - skew * ends)) * (RESAMPLES - 1)
    below = np.clip(place.astype(int), 0, RESAMPLES - 2)
    means = np.sort(_resampled(values), 1)
    low, high = (np.take_along_axis(means, below + step, 1) for step in (0, 1))
    result: Floats = low + (place - below) * (high - low)
    return result[:, 0], result[:, 1]


def _resampled(values: Floats) -> Floats:
    """Means (B,RESAMPLES) of resamples, the same for all B."""
    n = values.shape[1]
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    result: Floats = values @ times.T / n
    return result


def design_wilson(shares: Floats, trials: Floats) -> Ends:
    """Before: Wilson's interval of the effective trials, a quarter of a cluster of each kind added."""
    n, mean, z = shares.shape[1], shares.mean(1), scipy.stats.norm.ppf(0.975)
    p = (shares.sum(1) + 0.25) / (n + 0.5)
    squares = ((shares - p[:, None]) ** 2).sum(1) + 0.25 * (p**2 + (1 - p) ** 2)
    worth = (n * p * (1 - p) / squares * (n - 0.5) * (z / scipy.stats.t.ppf(0.975, n - 1)) ** 2).clip(n, n * trials)
    middle = (mean + z**2 / (2 * worth)) / (1 + z**2 / worth)
    half = z * np.sqrt(mean * (1 - mean) / worth + z**2 / (4 * worth**2)) / (1 + z**2 / worth)
    return middle - half, middle + half


def korn_graubard(shares: Floats, trials: Floats) -> Ends:
    """Clopper & Pearson's interval of the effective trials (Korn & Graubard 1998); all trials where they do not
    vary."""
    n, mean = shares.shape[1], shares.mean(1)
    variance = shares.var(1, ddof=1) / n
    worth = np.where(variance > 0, mean * (1 - mean) / np.where(variance > 0, variance, 1), n * trials)
    worth = worth * (scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, n - 1)) ** 2
    hits = mean * worth
    low = scipy.special.betaincinv(np.maximum(hits, 1e-300), worth - hits + 1, 0.025)
    high = scipy.special.betaincinv(hits + 1, np.maximum(worth - hits, 1e-300), 0.975)
    return low, high


def newcombe_wilson(one: Floats, other: Floats, trials: Floats) -> Ends:
    """Before: Newcombe's method 10 from `design_wilson`, with the estimated correlation."""
    (low, high), (under, over) = design_wilson(one, trials), design_wilson(other, trials)
    first, second = one.mean(1), other.mean(1)
    x, y = one - first[:, None], other - second[:, None]
    spread = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    alike = (x * y).sum(1) / np.where(spread > 0, spread, 1)

    def error(a: Floats, b: Floats) -> Floats:
        result: Floats = np.sqrt((a**2 - 2 * alike * a * b + b**2).clip(0))
        return result

    return first - second - error(first - low, over - second), first - second + error(high - first, second - under)

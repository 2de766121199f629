"""Textbook intervals, which the report does not use, for `coverage`.

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


def _resampled(values: Floats) -> Floats:
    """Means (B,RESAMPLES) of resamples, the same for all B."""
    n = values.shape[1]
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    result: Floats = values @ times.T / n
    return result


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

"""Confidence sequences: intervals of a mean that hold at every look at once."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: The means that are tried.
GRID = 2001
#: The error on each side, and the largest share of its capital that a bet may lose.
ALPHA, BOLDEST = 0.025, 0.75


def confidence_sequence(values: Floats, alpha: float = ALPHA) -> tuple[Floats, Floats]:
    """The ends (n+1,) of the intervals of a mean after 0, 1, ..., n of the `values` (n,) in [0,1].

    Each side misses the mean of exchangeable draws at any of the looks with a probability of at most `alpha`. For
    each possible mean m a gambler bets that the values are larger, and one that they are smaller; the capital
    prod(1 + lambda_t (x_t - m)) of either grows to 1 / alpha with a probability of at most `alpha` if m is the mean
    (Ville's inequality). The bets are the predictable plug-in of Waudby-Smith & Ramdas (2023, JRSS-B 86, eq. 26):
    sqrt(2 log(1 / alpha) / (v t log(1 + t))) with the variance v of the values before.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(f"`values` must lie in 0..1; got {values.min():g} to {values.max():g}")
    n, t = len(values), np.arange(1, len(values) + 1)
    mean = (0.5 + np.cumsum(values)) / (t + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (t + 1)
    previous = np.concatenate([[0.25], variance[:-1]]) if n else variance
    bets = np.sqrt(2 * math.log(1 / alpha) / (previous * t * np.log1p(t)))
    means = np.linspace(0, 1, GRID)
    lows, highs = np.zeros(n + 1), np.ones(n + 1)
    above, below = np.zeros(GRID), np.zeros(GRID)  # the logarithms of the capitals
    limit = math.log(1 / alpha)
    with np.errstate(divide="ignore"):
        most_above, most_below = BOLDEST / means, BOLDEST / (1 - means)
    for i, (x, bet) in enumerate(zip(values, bets, strict=True)):
        above += np.log1p(np.minimum(bet, most_above) * (x - means))
        below += np.log1p(-np.minimum(bet, most_below) * (x - means))
        # A capital falls, or rises, with m: the means that it refutes lie at one end.
        above_limit, below_limit = np.flatnonzero(above >= limit), np.flatnonzero(below >= limit)
        lows[i + 1] = max(lows[i], means[above_limit[-1]] if len(above_limit) else 0.0)
        highs[i + 1] = min(highs[i], means[below_limit[0]] if len(below_limit) else 1.0)
    return lows, highs

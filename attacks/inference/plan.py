"""How many clusters a study needs: to compare two arms, or to decide about a bar."""

from collections.abc import Callable

import numpy as np
import scipy
from torch import Tensor

from attacks.inference.bounded import Floats, array, is_above
from attacks.inference.pairs import LEVEL, ROUNDING, fewest_clusters

#: Simulated studies of a comparison, whose power then has a standard error of 0.01, and of a bar, 0.02; the random
#: choices of signs in a study; and the most clusters that are tried.
STUDIES, BAR_STUDIES, FLIPS, MAX_CLUSTERS = 2000, 400, 2000, 1000
#: The power of every plan.
POWER = 0.8


def pilot_samples(values: Tensor, mean: float | None = None) -> Floats:
    """Samples (STUDIES,MAX_CLUSTERS) of the values (C,) of a pilot run's clusters, drawn with replacement. Where a
    `mean` is given, the values are shifted to it, within -1..1. Raises ValueError for fewer than two."""
    pilot = array(values)
    if len(pilot) < 2 or not np.isfinite(pilot).all():
        raise ValueError(
            f"a pilot must have finite values of at least 2 clusters; got {len(pilot)} (run a larger one)"
        )
    if mean is not None:
        limit, original = max(1.0, float(np.abs(pilot).max())), pilot
        shift = scipy.optimize.brentq(
            lambda by: (original + by).clip(-limit, limit).mean() - mean, -2 * limit, 2 * limit
        )
        pilot = (pilot + shift).clip(-limit, limit)
    return np.asarray(np.random.default_rng(0).choice(pilot, (STUDIES, MAX_CLUSTERS)))


def rate_samples(rate: float, correlation: float, trials: int, seed: int = 0) -> Floats:
    """Samples (STUDIES,MAX_CLUSTERS) of the shares of `trials` views with success, from a stated `rate`. The rates of
    clusters are beta distributed, with the intraclass `correlation` of the views of one."""
    random, shape = np.random.default_rng(seed), (STUDIES, MAX_CLUSTERS)
    level: Floats = np.full(shape, rate)
    if correlation and 0 < rate < 1:
        size = 1 / correlation - 1
        level = random.beta(rate * size, (1 - rate) * size, size=shape)
    return np.asarray(random.binomial(trials, level) / trials)


def clusters_for_difference(samples: Floats) -> int:
    """The fewest clusters with which the test of `sign_flips` has p below 0.05 in `POWER` of the samples of
    differences (B,n). Raises ValueError where n are not enough."""
    return _fewest(samples, flip_power)


def clusters_for_bar(samples: Floats, bar: float, sequential: bool = False) -> int:
    """The fewest clusters whose `interval`, perhaps `sequential`, lies on one side of a `bar` in `POWER` of the
    samples of values in 0..1 (B,n). Raises ValueError where n are not enough."""

    def power(samples: Floats) -> float:
        pairs = [((x, bar), (1 - x, 1 - bar)) for x in samples[:BAR_STUDIES]]
        return float(np.mean([any(is_above(*side, sequential=sequential) for side in pair) for pair in pairs]))

    return _fewest(samples, power)


def flip_power(samples: Floats) -> float:
    """The share of samples (B,n) whose sign flips give p below 0.05, with the same random flips for all of them."""
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (FLIPS, samples.shape[1]))
    signs[0] = 1  # the observed signs are one of the choices
    sums = np.abs(samples.sum(1)) * (1 - ROUNDING)
    return float(((np.abs(signs @ samples.T) >= sums).mean(0) < LEVEL).mean())


def _fewest(samples: Floats, power: Callable[[Floats], float]) -> int:
    low, high, limit = 0, fewest_clusters(), samples.shape[1]
    while (share := power(samples[:, :high])) < POWER:
        if high == limit:
            raise ValueError(
                f"what is to be found is too small: {limit} clusters decide it with a power of {share:.2f}"
            )
        low, high = high, min(limit, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(samples[:, :middle]) >= POWER else (middle, high)
    return high


def further_clusters(
    values: Tensor, bar: float, low: float, high: float, weights: Tensor | None = None, sequential: bool = False
) -> int | None:
    """About how many more clusters like those of (C,) `values` in `low`..`high` decide on which side of a `bar` their
    mean lies: they are repeated, with their `weights`, until their `interval`, perhaps `sequential`, excludes it.
    None where `MAX_CLUSTERS`
    are not enough."""
    units, bar = (array(values).clip(low, high) - low) / (high - low), (bar - low) / (high - low)
    scales = np.ones(len(units)) if weights is None else array(weights)
    if np.average(units, weights=scales) < bar:
        units, bar = 1 - units, 1 - bar
    for total in np.unique(np.geomspace(len(units) + 1, max(len(units) + 1, MAX_CLUSTERS), 40).astype(int)):
        if is_above(np.resize(units, total), bar, np.resize(scales, total), sequential):
            return int(total) - len(units)
    return None

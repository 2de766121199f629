"""How many clusters a run needs for its primary comparison (two-sided sign flips at 0.05) to detect a difference."""

import numpy as np
import scipy
from torch import Tensor

from attacks.evaluation.intervals import Floats, array
from attacks.evaluation.significance import LEVEL, ROUNDING, fewest_clusters

#: Simulated studies, whose power then has a standard error of 0.01; and the most clusters that are tried.
STUDIES, MAX_CLUSTERS = 2000, 1000
#: The most clusters for which all choices of signs are tried, and the number of random choices for more.
EXACT, FLIPS = 12, 999


def clusters_for_power(differences: Tensor, effect: float, power: float = 0.8) -> int:
    """The fewest clusters with which a mean difference of `effect` is detected with probability `power`, from the
    differences (C,) of a pilot run's clusters, shifted to the mean `effect` and resampled. Raises ValueError for
    fewer than two clusters, for impossible arguments, and where more than `MAX_CLUSTERS` clusters are needed."""
    pilot = array(differences)
    if len(pilot) < 2 or not np.isfinite(pilot).all():
        raise ValueError(
            f"`differences` must be finite, of at least 2 clusters; got {len(pilot)} (run a larger pilot)"
        )
    limit = max(1.0, float(np.abs(pilot).max()))
    _check(effect, power, limit)

    def shifted(shift: float) -> Floats:
        return (pilot + shift).clip(-limit, limit)

    values = shifted(
        scipy.optimize.brentq(lambda shift: float(shifted(shift).mean()) - effect, -2 * limit, 2 * limit)
    )
    return _fewest(values[np.random.default_rng(0).integers(len(values), size=(STUDIES, MAX_CLUSTERS))], power)


def clusters_from_rates(baseline: float, effect: float, correlation: float, trials: int, power: float = 0.8) -> int:
    """The same from stated rates: an arm that succeeds in a share `baseline` of the views, and one with that plus
    `effect`. The clusters' rates are beta distributed, with the intraclass `correlation` of the `trials` views of a
    cluster, and independent between arms."""
    rates = baseline, baseline + effect
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"`baseline` and `baseline` + `effect` must be rates, 0..1; got {rates[0]} and {rates[1]:g}")
    if not 0 <= correlation < 1 or trials < 1:
        raise ValueError(
            f"`correlation` must lie in 0..1 (below 1), `trials` be positive; got {correlation}, {trials}"
        )
    _check(effect, power, 1.0)
    random, shape = np.random.default_rng(0), (STUDIES, MAX_CLUSTERS)
    hits = []
    for rate in rates:
        level: Floats = np.full(shape, rate)
        if correlation and 0 < rate < 1:
            size = 1 / correlation - 1
            level = random.beta(rate * size, (1 - rate) * size, size=shape)
        hits.append(random.binomial(trials, level))
    return _fewest((hits[1] - hits[0]) / trials, power)


def _check(effect: float, power: float, limit: float) -> None:
    if not 0 < abs(effect) < limit:
        raise ValueError(f"`effect` must be a difference other than 0, within -{limit:g}..{limit:g}; got {effect}")
    if not LEVEL < power < 1:
        raise ValueError(f"`power` must be a probability above {LEVEL} and below 1; got {power}")


def _fewest(values: Floats, power: float) -> int:
    """The fewest columns of (STUDIES,MAX_CLUSTERS) with a share `power` of significant rows, by bisection."""
    low, high = fewest_clusters() - 1, fewest_clusters()
    while (share := flip_power(values[:, :high])) < power:
        if high == MAX_CLUSTERS:
            raise ValueError(
                f"`effect` is too small: {MAX_CLUSTERS} clusters have a power of {share:.2f}, below {power}"
            )
        low, high = high, min(MAX_CLUSTERS, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if flip_power(values[:, :middle]) >= power else (middle, high)
    return high


def flip_power(values: Floats, level: float = LEVEL) -> float:
    """The share of B studies (B,n) whose sign flips give p below `level`: all flips for few clusters, else the same
    random ones for all studies."""
    n = values.shape[1]
    if n <= EXACT:  # the first sign stays, as p is two-sided
        bits = (np.arange(2 ** (n - 1))[:, None] >> np.arange(n)) % 2
    else:
        bits = np.random.default_rng(1).integers(0, 2, size=(FLIPS, n))
        bits[0] = 0  # the observed signs are one of the choices
    floor = np.abs(values.sum(1)) - ROUNDING * np.abs(values).sum(1)
    p_values = (np.abs((1.0 - 2 * bits) @ values.T) >= floor).mean(0)
    return float((p_values < level).mean())

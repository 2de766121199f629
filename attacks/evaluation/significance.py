"""Paired differences of two arms, their intervals and p values, and the clusters that a test needs."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy
from torch import Tensor

from attacks.evaluation.intervals import (
    FEWEST_SHARES,
    Floats,
    Interval,
    array,
    harmonic_trials,
    interval,
    share_ends,
    with_ends,
)

Measure = Literal["cosine", "success"]
#: The measures that are compared.
MEASURES: tuple[Measure, ...] = ("cosine", "success")
#: The significance level.
LEVEL = 0.05
#: The most clusters for which all choices of signs are counted, and the number of random choices for more: the
#: standard error of p = 0.05 is then 0.0009, of p = 0.001 it is 0.0001.
EXACT, FLIPS = 32, 65_535
#: Sums that differ by less, relatively, are equal.
ROUNDING = 1e-12


def mean_difference(first: Tensor, second: Tensor) -> Interval:
    """The mean difference of (C,) or (C,V) values, paired by cluster and view, with its `interval`."""
    _check(first, second)
    return interval(first.double() - second.double())


def paired_shares(first: Tensor, second: Tensor, trials: int | Tensor) -> Interval:
    """The mean difference of the shares (C,) of two arms, each of `trials` views (one number, or (C,)), with its 95 %
    interval; for fewer than `FEWEST_SHARES` clusters the range of the differences instead.

    The interval combines those of both shares (see `rate`) and the correlation between the arms (Newcombe 1998,
    method 10; Zou & Donner 2008). So its width is not zero even where one arm always succeeds and the other never."""
    _check(first, second)
    x, y = array(first), array(second)
    ends = None if len(x) < FEWEST_SHARES else difference_ends(x[None], y[None], harmonic_trials(trials))
    return with_ends(x - y, float((x - y).mean()), ends)


def difference_ends(first: Floats, second: Floats, trials: int | Floats) -> tuple[Floats, Floats]:
    """The ends (B,) of the 95 % intervals of the differences of B pairs of samples of shares (B,n) of `trials`. The
    estimated correlation, where positive, is shrunk by 1 / n: of few clusters it is mostly chance."""
    means = first.mean(1), second.mean(1)
    lows, highs = zip(*(share_ends(sample, trials) for sample in (first, second)), strict=True)
    x, y = (sample - sample.mean(1, keepdims=True) for sample in (first, second))
    spread = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    alike = np.where(spread > 0, (x * y).sum(1) / np.where(spread > 0, spread, 1), 0).clip(-1, 1)
    alike = np.where(alike > 0, alike * (1 - 1 / first.shape[1]), alike)
    pairs = ((means[0] - lows[0], highs[1] - means[1]), (highs[0] - means[0], means[1] - lows[1]))
    errors = ((first.clip(0), second.clip(0)) for first, second in pairs)
    below, above = (np.sqrt((a**2 - 2 * alike * a * b + b**2).clip(0)) for a, b in errors)
    difference = means[0] - means[1]
    return (difference - below).clip(-1, 1), (difference + above).clip(-1, 1)


def _check(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"both arms must be pairs; got shapes {tuple(first.shape)} and {tuple(second.shape)}")


def sign_flip(differences: Tensor) -> float:
    """The two-sided p value for the differences (C,) of two arms to have either sign equally often: the share of
    choices of signs with a mean at least as far from 0 (Fisher 1935). Up to `EXACT` clusters all choices are counted;
    for more, `FLIPS` random ones with a fixed seed and the observed one (Phipson & Smyth 2010). Raises ValueError for
    NaN and infinity."""
    values = array(differences)
    if not np.isfinite(values).all():
        raise ValueError("`differences` must be finite numbers; got NaN or infinity (does an arm lack its scores?)")
    size = float(np.abs(values).sum())
    floor = abs(float(values.sum())) - ROUNDING * size
    if floor <= 0:
        return 1.0
    if len(values) <= EXACT:
        # The sums of one half, sorted, are searched for those that complete each sum of the other half.
        half, rest = (_sums(part) for part in (values[: len(values) // 2], values[len(values) // 2 :]))
        half.sort()
        extreme = len(half) - np.searchsorted(half, floor - rest)
        return 2 * int(extreme.sum()) / (len(half) * len(rest))
    random, n, sums = np.random.default_rng(0), len(values), np.empty(FLIPS)
    for rows in np.array_split(np.arange(FLIPS), 16):  # to save memory
        buffer = np.frombuffer(random.bytes(n * -(-len(rows) // 8)), np.uint8)
        sums[rows] = values @ (2.0 * np.unpackbits(buffer.reshape(n, -1), axis=1, count=len(rows)) - 1)
    return (1 + int((np.abs(sums) >= floor).sum())) / (1 + FLIPS)


def _sums(values: Floats) -> Floats:
    """The sums (2**n,) of (n,) values with all choices of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def least_p(n: int) -> float:
    """The smallest p value of `sign_flip` for n clusters."""
    return 2.0 ** (1 - n) if n <= EXACT else 1 / (1 + FLIPS)


def fewest_clusters(tests: int = 1) -> int:
    """The fewest clusters with which the smallest of `tests` p values, corrected by Holm, can be below 0.05."""
    return next(n for n in range(1, EXACT + 1) if tests * least_p(n) < LEVEL)


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for multiple tests, in their order (Holm 1979)."""
    if not all(0 <= value <= 1 for value in p):
        raise ValueError(f"`p` must hold probabilities, 0..1; got {[value for value in p if not 0 <= value <= 1]}")
    values, floor = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        floor = max(floor, min(1.0, (len(p) - rank) * p[place]))
        values[place] = floor
    return values


#: Simulated studies, whose power then has a standard error of 0.01; and the most clusters that are tried.
STUDIES, MAX_CLUSTERS = 2000, 1000
#: The most clusters for which all choices of signs are tried, and the number of random choices for more.
STUDY_EXACT, STUDY_FLIPS = 12, 999


def clusters_for_power(differences: Tensor, effect: float, power: float = 0.8) -> int:
    """The fewest clusters with which a mean difference of `effect` is detected with probability `power`, from the
    differences (C,) of a pilot run's clusters. These are shifted to the mean `effect` and resampled.

    The number is uncertain, because the pilot's spread is: by a share of about 1 / sqrt(C / 2). Raises ValueError for
    fewer than two clusters, for impossible arguments, and where more than `MAX_CLUSTERS` clusters are needed."""
    pilot = array(differences)
    if (n := len(pilot)) < 2 or not np.isfinite(pilot).all():
        raise ValueError(f"`differences` must be finite, of at least 2 clusters; got {n} (run a larger pilot)")
    limit = max(1.0, float(np.abs(pilot).max()))
    _check_plan(effect, power, limit)

    def shifted(by: float) -> Floats:
        return (pilot + by).clip(-limit, limit)

    values = shifted(scipy.optimize.brentq(lambda by: float(shifted(by).mean()) - effect, -2 * limit, 2 * limit))
    return _fewest(values[np.random.default_rng(0).integers(len(values), size=(STUDIES, MAX_CLUSTERS))], power)


def clusters_from_rates(baseline: float, effect: float, correlation: float, trials: int, power: float = 0.8) -> int:
    """The same from stated rates: an arm that succeeds in a share `baseline` of the views, and one with that plus
    `effect`.

    The clusters' rates are beta distributed, with the intraclass `correlation` of the `trials` views of a cluster,
    and independent between arms: where they rise and fall together, fewer clusters are enough.
    """
    rates = baseline, baseline + effect
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"`baseline` and `baseline` + `effect` must be rates, 0..1; got {rates[0]} and {rates[1]:g}")
    if not 0 <= correlation < 1 or trials < 1:
        raise ValueError(f"`correlation` must lie in 0..1 (below 1), `trials` above 0; got {correlation}, {trials}")
    _check_plan(effect, power, 1.0)
    random, shape = np.random.default_rng(0), (STUDIES, MAX_CLUSTERS)
    hits = []
    for rate in rates:
        level: Floats = np.full(shape, rate)
        if correlation and 0 < rate < 1:
            size = 1 / correlation - 1
            level = random.beta(rate * size, (1 - rate) * size, size=shape)
        hits.append(random.binomial(trials, level))
    return _fewest((hits[1] - hits[0]) / trials, power)


def _check_plan(effect: float, power: float, limit: float) -> None:
    if not 0 < abs(effect) < limit:
        raise ValueError(f"`effect` must be a difference other than 0, within -{limit:g}..{limit:g}; got {effect}")
    if not LEVEL < power < 1:
        raise ValueError(f"`power` must be a probability above {LEVEL} and below 1; got {power}")


def _fewest(values: Floats, power: float) -> int:
    """The fewest columns of (STUDIES,MAX_CLUSTERS) with a share `power` of significant rows, by bisection."""
    low, high = fewest_clusters() - 1, fewest_clusters()
    while (share := flip_power(values[:, :high])) < power:
        if high == MAX_CLUSTERS:
            reason = f"{MAX_CLUSTERS} clusters have a power of {share:.2f}, below {power}"
            raise ValueError(f"`effect` is too small: {reason}")
        low, high = high, min(MAX_CLUSTERS, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if flip_power(values[:, :middle]) >= power else (middle, high)
    return high


def flip_power(values: Floats, level: float = LEVEL) -> float:
    """The share of B studies (B,n) whose sign flips give p below `level`: all flips for few clusters, else the same
    random ones for all studies."""
    n = values.shape[1]
    if n <= STUDY_EXACT:  # the first sign stays, as p is two-sided
        bits = (np.arange(2 ** (n - 1))[:, None] >> np.arange(n)) % 2
    else:
        bits = np.random.default_rng(1).integers(0, 2, size=(STUDY_FLIPS, n))
        bits[0] = 0  # the observed signs are one of the choices
    floor = np.abs(values.sum(1)) - ROUNDING * np.abs(values).sum(1)
    p_values = (np.abs((1.0 - 2 * bits) @ values.T) >= floor).mean(0)
    return float((p_values < level).mean())

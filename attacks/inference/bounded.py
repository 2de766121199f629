"""The mean of bounded values with its 95 % interval, for a statement against a bar."""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when first used, by a process that makes tables
from torch import Tensor

Floats = npt.NDArray[np.float64]

#: The error of each end, and the largest share of its capital that a bet may lose.
ALPHA, BOLDEST = 0.025, 0.97
#: The logarithm of the capital that refutes a mean.
LIMIT = math.log(1 / ALPHA)
#: The smallest mean, and variance, that is tried.
SMALLEST = 1e-12
#: Orders in which a sample is bet on: at most, at least for large ones, and about so many values in all of them.
ORDERS, FEWEST_ORDERS, ORDERED_VALUES = 64, 16, 2**14
#: A value beyond its span by no more is rounding: a cosine in float32 may be 1 + 1e-7.
SLACK = 1e-5
#: Thresholds at which the distribution of a function is bounded.
THRESHOLDS = 64


class Interval(NamedTuple):
    """An estimate with the ends of its 95 % interval, or, as `kind` "range", with the smallest and largest value,
    where there is no interval: of medians and differences of fewer than six values, and of pictures that a shared
    perturbation was made from."""

    mean: float
    low: float
    high: float
    kind: Literal["interval", "range"] = "interval"


def interval(
    values: Tensor,
    low: float = 0.0,
    high: float = 1.0,
    *,
    weights: Tensor | None = None,
    sequential: bool = False,
    tests: int = 1,
) -> Interval:
    """The mean of (C,) values of C clusters in `low`..`high`, or of (C,V) values seen from V views each.

    Each end misses the mean of independent draws with a probability of at most 2.5 %, whatever their distribution and
    however few they are. For each possible mean m a gambler bets that values are larger, and one that they are
    smaller; the capital prod(1 + b_t w_t (x_t - m)) exceeds 40 with a probability of at most 1/40 if m is the mean.
    The bets b_t are the predictable plug-in of Waudby-Smith & Ramdas (2023, JRSS-B 86, section 3.3), from the values
    before. A finished sample is bet on in about 64 orders, which are fixed before a value is seen, and the mean of
    their capitals is tested: a rare value is met early as often as late. Another order of `values` moves the ends by
    about a hundredth of the width.

    Args:
        values: of a single cluster with several views, the views are the units: the interval then says nothing about
            other clusters.
        weights: (C,) in 0..1, such as a cluster's share of the traffic over the largest: of the weighted mean.
        sequential: look at the values in their order, and at each look: the interval then holds at all looks at once,
            however often one looks at growing results. It is wider.
        tests: of how many in a table this is one: the intervals hold all at once (Bonferroni).

    Raises ValueError for no values, for values outside of the span, and for other weights.

    Examples:
        >>> import torch
        >>> from attacks import interval
        >>> mean, low, high, kind = interval(torch.tensor([0.25, 0.5, 0.75]))  # three clusters say little
        >>> round(mean, 2), round(low, 2), round(high, 2), kind
        (0.5, 0.08, 0.92, 'interval')
        >>> mean, low, high, kind = interval(torch.arange(101.0) / 100)
        >>> round(mean, 2), round(low, 2), round(high, 2), kind
        (0.5, 0.42, 0.58, 'interval')
    """
    if not isinstance(values, Tensor) or values.dim() not in (1, 2) or not values.numel():
        kind = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(f"`values` must be a tensor (C,) or (C,V) of at least one value; got {kind}")
    units = array(values)
    if units.ndim == 2:
        units = units.mean(1) if len(units) > 1 else units[0]
    smallest, largest = float(units.min()), float(units.max())
    if not low - SLACK <= smallest <= largest <= high + SLACK:
        raise ValueError(f"`values` must lie in {low:g}..{high:g}; got {smallest:g} to {largest:g}")
    scales = np.ones(len(units)) if weights is None else array(weights)
    if scales.shape != units.shape or not (scales > 0).all() or scales.max() > 1:
        raise ValueError(f"`weights` must be a number in 0..1, not 0, for each of {len(units)} values")
    units = ((units - low) / (high - low)).clip(0, 1)
    mean = float(units @ scales / scales.sum())
    limit = LIMIT + math.log(tests)
    low_end, high_end = (_end(limit, *_orders(x, scales, sequential)) for x in (units, 1 - units))
    mean, lowest, highest = (
        low + (high - low) * value for value in (mean, min(mean, low_end), max(mean, 1 - high_end))
    )
    return Interval(mean, lowest, highest)


def array(values: Tensor) -> Floats:
    """The values in float64, on the CPU."""
    result: Floats = values.detach().double().cpu().numpy()
    return result


def _end(limit: float, *sample: Any) -> float:
    """The largest mean that values in 0..1, as `_orders` has them, refute by being larger."""
    if log_capital(SMALLEST, *sample) < limit:
        return 0.0
    return float(scipy.optimize.brentq(lambda mean: log_capital(mean, *sample) - limit, SMALLEST, 1.0, xtol=1e-10))


def independent_difference(first: Tensor, second: Tensor, low: float = 0.0, *, tests: int = 1) -> Interval:
    """The mean of the values (n,) of a group minus that of another, independent within and drawn from `low`..1.

    Its ends are differences of the ends of two intervals, with half of the error each: an end misses only where one
    of the two does, with a probability of at most 2.5 %, whatever the distributions.
    """
    a, b = (interval(values, low, tests=2 * tests) for values in (first, second))
    return Interval(a.mean - b.mean, a.low - b.high, a.high - b.low)


def is_above(units: Floats, bar: float, weights: Floats | None = None, sequential: bool = False) -> bool:
    """Whether the `interval` of values (n,) in 0..1 lies above a bar in 0..1."""
    scales = np.ones(len(units)) if weights is None else weights
    return log_capital(max(bar, SMALLEST), *_orders(units, scales, sequential)) > LIMIT


def _orders(units: Floats, scales: Floats, sequential: bool) -> tuple[Floats, Floats, bool]:
    """The values and weights in the orders in which they are bet on, both (O,n)."""
    n = len(units)
    order = np.arange(n)[None]
    if not sequential:
        count = min(n, ORDERS, max(FEWEST_ORDERS, ORDERED_VALUES // n))
        bases = np.random.default_rng(0).permuted(np.tile(order, (max(1, ORDERS // n), 1)), axis=1)
        order = bases[:, (order + np.arange(count)[:, None] * n // count) % n].reshape(-1, n)
    return units[order], scales[order], sequential


def log_capital(mean: float, x: Floats, w: Floats, sequential: bool) -> float:
    """The logarithm of the capital won by bets against a `mean`, from values in some orders and their weights, both
    (O,n): the largest at any look, or the mean over the orders at the end. It falls with the mean."""
    n = x.shape[1]
    count = np.arange(1, n + 1)
    centre = (mean + (w * x).cumsum(1)) / (1 + w.cumsum(1))  # the mean itself counts as an earlier value
    variance = np.empty_like(x)
    variance[:, 0] = mean * (1 - mean)
    variance[:, 1:] = (mean * (1 - mean) + ((w * (x - centre)) ** 2).cumsum(1)[:, :-1]) / count[1:]
    horizon = count * np.log1p(count) if sequential else n
    bets = np.sqrt(2 * LIMIT / np.maximum(variance, SMALLEST) / horizon)
    logs = np.log1p(np.minimum(bets, BOLDEST / mean) * w * (x - mean))
    return float(logs.cumsum(1).max() if sequential else np.logaddexp.reduce(logs.sum(1)) - math.log(len(x)))


def rate(shares: Tensor, trials: int | Tensor, weights: Tensor | None = None) -> Interval:
    """The mean of the shares (C,) of C clusters, each of `trials` views, with `weights` as of `interval`; of a single
    cluster over its views, which says nothing about other clusters.

    Examples:
        >>> import torch
        >>> from attacks.inference import rate
        >>> mean, low, high, kind = rate(torch.tensor([0.0, 0.25, 0.5, 0.25]), trials=8)  # four clusters
        >>> mean, round(low, 2), round(high, 2), kind
        (0.25, 0.02, 0.72, 'interval')
    """
    if len(shares) > 1:
        return interval(shares, weights=weights)
    views = int(trials if isinstance(trials, int) else trials[0])
    hits = round(float(shares[0]) * views)
    return interval(shares.new_tensor([1.0] * hits + [0.0] * (views - hits)))


def missable_share(clusters: int) -> float:
    """The largest share of pictures that may behave otherwise where so many independent ones show none, at 95 %:
    about 3 over their number (Hanley & Lippman-Hand 1983).

    Examples:
        >>> from attacks.inference import missable_share
        >>> round(missable_share(10), 2), round(missable_share(300), 2)
        (0.26, 0.01)
    """
    return float(1 - 0.05 ** (1 / clusters))


def median(values: Tensor) -> Interval:
    """The lower median of (N,) values, in `mean`, with an interval between two of the values (order statistics;
    Thompson 1936). Its coverage is at least 0.95 for any distribution; of fewer than six values it is their range."""
    return quantile(values, 0.5, "lower")


def quantile(values: Tensor, share: float, method: Literal["linear", "lower"] = "linear") -> Interval:
    """The same for the quantile at `share`; each end has an error of at most 2.5 %."""
    units = array(values)
    middle = float(np.quantile(units, share, method=method))
    low, high = scipy.stats.quantile_test(units, p=share).confidence_interval(0.95)  # NaN where there is none
    if np.isnan([low, high]).any():
        return Interval(middle, float(np.fmax(low, units.min())), float(np.fmin(high, units.max())), "range")
    return Interval(middle, min(middle, float(low)), max(middle, float(high)))


def smoothed_floor(values: Floats, pilot: Floats, low: Floats, shifts: Floats, alpha: float) -> Floats:
    """Lower bounds (R,K) of the means of K functions h(x + e), e ~ N(0, 1), wherever x moves by at most R lengths:
    low + sum_j (t_j - t_(j-1)) Phi(Phi^-1(p_j) - shift), with t_0 = low, t_j quantiles of a pilot sample, and p_j the
    lower end of P(h >= t_j) by Clopper & Pearson (1934). The bound is that of Kumar et al. (2020).

    Args:
        values: (n,K) at independent draws of e; `pilot` (n',K) at others.
        low: (K,) the least values of the functions.
        shifts: (R,) in units of the noise's deviation; 0 gives a lower limit of the mean.
        alpha: the probability, at most, that a bound of any function and shift fails.

    Raises:
        ValueError: for a value below `low`.

    Examples:
        >>> import numpy as np
        >>> from attacks.inference import smoothed_floor
        >>> values, pilot = np.tanh(np.random.default_rng(0).standard_normal((2, 10_000, 1)))
        >>> smoothed_floor(values, pilot, np.array([-1.0]), np.array([0.0, 0.5]), 0.05).round(2).tolist()
        [[-0.04], [-0.33]]
    """
    limits = np.quantile(pilot, np.linspace(0, 1, THRESHOLDS), axis=0)
    if (np.concatenate([values, limits]) < low - 1e-9).any():
        raise ValueError(
            f"`low` must be the least value of each function; got {low}, and values from {values.min(0)}"
        )
    hits = np.stack([(values >= limit).sum(0) for limit in limits])
    ends = scipy.stats.beta.ppf(alpha / hits.size, hits, len(values) - hits + 1)
    normal = scipy.special.ndtri(np.where(hits > 0, ends, 0.0))
    steps = np.diff(limits, axis=0, prepend=low[None])
    floors: Floats = low + (steps * scipy.special.ndtr(normal - shifts[:, None, None])).sum(1)
    return floors

"""Means, shares, medians and quantiles with 95 % intervals: of other clusters, seen from the same bank of views."""

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when first used, by a process that makes tables
from torch import Tensor

Floats = npt.NDArray[np.float64]

#: The fewest clusters for which the interval of a mean, and of a share, keeps its coverage; of fewer, the range is
#: given.
FEWEST_MEANS, FEWEST_SHARES = 30, 4
#: The most clusters among which a tenth that behaves otherwise may be missed, and the share that `share_ends` leaves
#: room for.
MISSABLE, OTHERWISE = 28, 0.14
#: Clusters with hits only, and as many with misses only, that `share_ends` adds to estimate the variance between
#: clusters: of up to `MISSABLE` clusters, and of more.
EXTRA = 0.1, 0.2
#: The continuity correction of its ends, between Jeffreys' 1/2 and Clopper & Pearson's 1.
CONTINUITY = 2 / 3


class Interval(NamedTuple):
    """A mean with the ends of its 95 % interval, or, as `kind` "range", with the smallest and largest cluster value,
    where no method keeps its coverage for so few clusters."""

    mean: float
    low: float
    high: float
    kind: Literal["interval", "range"] = "interval"


def interval(values: Tensor) -> Interval:
    """The mean of (C,) values of C clusters, or (C,V) values seen from V views each; see `mean_ends` for the method.

    Of a single cluster with several views, the views are the units, and the interval says nothing about other
    clusters. Fewer than `FEWEST_MEANS` units give the range: no method then covers the mean.

    Examples:
        >>> import torch
        >>> from attacks import interval
        >>> interval(torch.tensor([0.25, 0.5, 0.75]))  # three clusters are too few for an interval
        Interval(mean=0.5, low=0.25, high=0.75, kind='range')
        >>> mean, low, high, kind = interval(torch.arange(101.0) / 100)
        >>> round(mean, 2), round(low, 2), round(high, 2), kind
        (0.5, 0.44, 0.56, 'interval')
    """
    if not isinstance(values, Tensor) or values.dim() not in (1, 2) or not values.numel():
        kind = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(f"`values` must be a tensor (C,) or (C,V) of at least one value; got {kind}")
    units = array(values)
    if units.ndim == 2:
        units = units.mean(1) if len(units) > 1 else units[0]
    ends = mean_ends(units[None]) if len(units) >= FEWEST_MEANS else None
    return with_ends(units, float(units.mean()), ends)


def array(values: Tensor) -> Floats:
    """The values in float64, on the CPU."""
    result: Floats = values.detach().double().cpu().numpy()
    return result


def with_ends(units: Floats, mean: float, ends: tuple[Floats, Floats] | None) -> Interval:
    """An interval of (C,) units from its ends (1,), widened to hold the mean; without ends, their range."""
    smallest, largest = float(units.min()), float(units.max())
    mean = min(max(mean, smallest), largest)  # despite rounding
    if ends is None:
        return Interval(mean, smallest, largest, "range")
    return Interval(mean, min(mean, float(ends[0][0])), max(mean, float(ends[1][0])))


def mean_ends(units: Floats) -> tuple[Floats, Floats]:
    """The ends (B,) of the 95 % intervals of the means of B samples (B,n): Student's t, lengthened on the side of the
    long tail by Johnson's (1978) correction for skewness, within the range of the values."""
    n = units.shape[1]
    mean, spread = units.mean(1), units.std(1, ddof=1)
    deviations = (units - mean[:, None]) / np.where(spread > 0, spread, 1)[:, None]
    half = float(scipy.stats.t.ppf(0.975, n - 1)) / math.sqrt(n)
    shift = (deviations**3).mean(1) * (1 / (6 * n) + half**2 / 3)
    low, high = mean + spread * (shift.clip(max=0) - half), mean + spread * (shift.clip(min=0) + half)
    return low.clip(units.min(1)), high.clip(max=units.max(1))


def rate(shares: Tensor, trials: int | Tensor | None = None) -> Interval:
    """The mean of the shares (C,) of C clusters, each of `trials` views, one number or (C,), with an interval that
    always has a width. Or of hits (C,V), of C clusters seen from V views.

    Of a single cluster it is Wilson's over its views, and says nothing about other clusters.

    Examples:
        >>> import torch
        >>> from attacks.evaluation import rate
        >>> mean, low, high, kind = rate(torch.tensor([0.0, 0.25, 0.5, 0.25]), trials=8)  # four clusters
        >>> mean, round(low, 2), round(high, 2), kind
        (0.25, 0.03, 0.7, 'interval')
    """
    if trials is None:
        shares, trials = shares.double().mean(1), shares.shape[1]
    units, n = array(shares), harmonic_trials(trials)
    mean = float(units.mean())
    if len(units) == 1:
        ends = scipy.stats.binomtest(round(mean * n), n).proportion_ci(0.95, "wilson")
        return Interval(mean, min(mean, float(ends.low)), max(mean, float(ends.high)))
    return with_ends(units, mean, share_ends(units[None], n) if len(units) >= FEWEST_SHARES else None)


def harmonic_trials(trials: int | Tensor) -> int:
    """The harmonic mean of the numbers of views, rounded."""
    return trials if isinstance(trials, int) else max(1, round(1 / float((1 / array(trials)).mean())))


def share_ends(shares: Floats, trials: int | Floats) -> tuple[Floats, Floats]:
    """The ends (B,) of the 95 % intervals of the rates of B samples of shares (B,n) of `trials`, one number or (B,).

    They are quantiles of beta distributions for the effective number of trials (Korn & Graubard 1998): p (1 - p) over
    the variance of the mean share (Kish 1965), corrected by Student's t because the variance is estimated; at least
    n, at most n `trials`. To the estimate of p and of the variance a part of a cluster (`EXTRA`) with hits only, and
    one with misses only, are added: clusters may agree by chance. Up to `MISSABLE` clusters, room is left for further
    ones with hits only, or with misses only: the share that n clusters miss at a risk of 5 %, at most `OTHERWISE`.
    """
    n, mean = shares.shape[1], shares.mean(1)
    extra = EXTRA[n > MISSABLE]
    p = (shares.sum(1) + extra) / (n + 2 * extra)
    squares = ((shares - p[:, None]) ** 2).sum(1) + extra * (p**2 + (1 - p) ** 2)
    worth = n * p * (1 - p) / squares * (n + 2 * extra - 1)
    worth *= float(scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, n - 1)) ** 2
    worth = worth.clip(n, n * trials)
    hits = mean * worth
    low = scipy.special.betaincinv(hits + 1 - CONTINUITY, worth - hits + CONTINUITY, 0.025)
    high = scipy.special.betaincinv(hits + CONTINUITY, worth - hits + 1 - CONTINUITY, 0.975)
    missable = min(OTHERWISE, 1 - 0.05 ** (1 / n)) if n <= MISSABLE else 0.0
    floor = mean * (1 - missable)
    return np.minimum(low, floor), np.maximum(high, floor + missable)


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

"""The typical difference of two arms, or two encoders: its interval and its p value, which are one computation."""

import math
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from attacks.inference.bounded import Floats, Interval, array

Measure = Literal["cosine", "success"]
#: The measures that are compared.
MEASURES: tuple[Measure, ...] = ("cosine", "success")
#: The significance level.
LEVEL = 0.05
#: The most clusters for which all choices of signs are counted, and the number of random choices for more: the
#: standard error of p = 0.05 is then 0.0009.
EXACT, FLIPS = 16, 65_535
#: Sums that differ by less, relatively, are equal.
ROUNDING = 1e-12


class SignFlipTest(NamedTuple):
    """A difference of two arms with the p value of its test: None, with the number that is `needed`, where so few
    clusters cannot give one below 0.05. `negative`, `positive`: the one-sided p values of that sign."""

    difference: Interval
    p: float | None
    needed: int | None
    negative: float
    positive: float


def sign_flips(first: Tensor, second: Tensor, tests: int = 1) -> SignFlipTest:
    """Compare the values (C,) of two arms, paired by cluster: the *typical difference*, the centre about which the
    clusters' differences are assumed to be symmetric, each sign being as likely.

    The test is that of sign flips (Fisher 1935): p is twice the share of choices of signs with a mean as far from 0
    on one side. Flips leave the sum of squares, so Student's t gives the same p. The interval holds the centres that
    the test does not reject: its ends are order statistics of the means of subsets of the differences (Hartigan
    1969), and the estimate, which has p = 1, is their mean. So p < 0.05 exactly where 0 is outside. Up to 16 clusters
    all choices are counted; for more, 65 535 random ones with a fixed seed, and the observed one (Phipson & Smyth
    2010). Where differences are skewed, their mean is not the typical difference, and the test says nothing about it.

    Args:
        tests: of how many in a table this is one. p is multiplied by it (Bonferroni), and the interval holds with the
            others at once.

    Raises ValueError for other shapes, NaN and infinity.

    Examples:
        >>> import torch
        >>> from attacks.inference import sign_flips
        >>> first, second = torch.tensor([9.0, 8, 10, 7, 9, 8]), torch.tensor([5.0, 6, 7, 6, 4, 6])
        >>> result = sign_flips(first, second)
        >>> [round(value, 3) for value in result.difference[:3]], result.p
        ([2.833, 1.0, 5.0], 0.03125)
        >>> sign_flips(torch.tensor([1.0]), torch.tensor([0.5])).needed
        6
    """
    if first.shape != second.shape or first.dim() != 1 or not len(first):
        raise ValueError(f"both arms must be pairs; got shapes {tuple(first.shape)} and {tuple(second.shape)}")
    values = array(first) - array(second)
    if not np.isfinite(values).all():
        raise ValueError("`differences` must be finite numbers; got NaN or infinity (does an arm lack its scores?)")
    means, mean = subset_means(values), float(values.mean().clip(values.min(), values.max()))  # despite rounding
    total = len(means) + 1
    negative, positive = ((1 + int(side.sum())) / total for side in (means >= 0, means <= 0))
    # The place of the first mean, from either end, that is not rejected.
    rank = math.ceil(LEVEL / 2 * total / tests) - 2
    if rank < 0:
        ends = Interval(mean, float(values.min()), float(values.max()), "range")
        return SignFlipTest(ends, None, fewest_clusters(tests), negative, positive)
    low, high = (float(np.partition(side * means, rank)[rank]) * side for side in (1, -1))
    ends = Interval(mean, min(mean, low), max(mean, high))
    return SignFlipTest(ends, min(1.0, 2 * tests * min(negative, positive)), None, negative, positive)


def subset_means(values: Floats) -> Floats:
    """The means of all subsets of the (n,) values but the empty one, or of random ones."""
    n, size = len(values), float(np.abs(values).sum())
    if n <= EXACT:
        sums, counts = np.zeros(1), np.zeros(1)
        for value in values:
            sums, counts = np.concatenate([sums, sums + value]), np.concatenate([counts, counts + 1])
        sums, counts = sums[1:], counts[1:]
    else:
        random, sums, counts = np.random.default_rng(0), np.empty(FLIPS), np.empty(FLIPS)
        for rows in np.array_split(np.arange(FLIPS), 16):  # to save memory
            buffer = np.frombuffer(random.bytes(n * -(-len(rows) // 8)), np.uint8)
            flips = np.unpackbits(buffer.reshape(n, -1), axis=1, count=len(rows))
            sums[rows], counts[rows] = values @ flips.astype(float), flips.sum(0)
        counts = counts.clip(1)  # the empty subset has the sum 0: it counts on both sides
    sums[np.abs(sums) <= ROUNDING * size] = 0
    return sums / counts


def least_p(clusters: int) -> float:
    """The smallest p value of `sign_flips` for so many clusters.

    Examples:
        >>> from attacks.inference import least_p
        >>> least_p(6)
        0.03125
    """
    return 2 / (1 + (2**clusters - 1 if clusters <= EXACT else FLIPS))


def fewest_clusters(tests: int = 1) -> int:
    """The fewest clusters with which one of so many tests in a table can give p below 0.05; EXACT + 1 where none can.

    Examples:
        >>> from attacks.inference import fewest_clusters
        >>> fewest_clusters(), fewest_clusters(6)
        (6, 8)
    """
    return next((n for n in range(1, EXACT + 1) if tests * least_p(n) < LEVEL), EXACT + 1)

"""Paired differences of two arms and their p values. Pictures are the units, because views of one picture are not
independent."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attacks.evaluation.intervals import BLOCK, Interval, interval, rate_of_shares

Measure = Literal["cosine", "success"]
#: The measures that are compared.
MEASURES: tuple[Measure, ...] = ("cosine", "success")
#: The most pictures for which all choices of signs are tried, and the number of random ones for more.
EXACT = 12
FLIPS = 10_000
#: The fewest pictures for which a positive correlation of two arms is estimated.
CORRELATED = 4
#: Sums that differ by less, relatively, are equal.
ROUNDING = 1e-12


def paired(one: Tensor, other: Tensor, seed: int = 0) -> Interval:
    """The mean difference of (N,V) values, paired by picture and view, with its `interval`."""
    if one.shape != other.shape:
        raise ValueError(f"`one` and `other` must be pairs; got shapes {tuple(one.shape)} and {tuple(other.shape)}")
    return interval(one.double() - other.double(), seed)


def paired_shares(one: Tensor, other: Tensor, views: int) -> Interval:
    """The difference of two shares with its 95 % interval, from each picture's share (N,) of its `views` in two arms.

    It combines the intervals of both shares (see `rate`) and the correlation between the arms (Newcombe 1998, method
    10; Zou & Donner 2008), so it has a width also where one arm always succeeds and the other never does. A bootstrap
    has none there: at 0.98 against 0.01 its coverage is 0.39 to 0.74 for ten pictures. Of fewer than four pictures a
    positive correlation is mostly chance, and is ignored.
    """
    if one.shape != other.shape:
        raise ValueError(f"`one` and `other` must be pairs; got shapes {tuple(one.shape)} and {tuple(other.shape)}")
    first, second = rate_of_shares(one, views), rate_of_shares(other, views)
    x, y = (values.double().cpu() - values.double().cpu().mean() for values in (one, other))
    spread = math.sqrt(float(x.square().sum() * y.square().sum()))
    correlation = max(-1.0, min(1.0, float(x @ y) / spread)) if spread > 0 else 0.0
    if len(one) < CORRELATED:
        correlation = min(correlation, 0.0)
    mean = first.mean - second.mean
    low = _error(first.mean - first.low, second.high - second.mean, correlation)
    high = _error(first.high - first.mean, second.mean - second.low, correlation)
    return Interval(mean, mean - low, mean + high)


class Compared(NamedTuple):
    """The difference of two arms, or two runs, in a measure, and its p value."""

    difference: Interval
    test: str
    p: float


def compared(measure: Measure, one: Tensor, other: Tensor, views: int) -> Compared:
    """Compare two arms from each picture's mean cosine, or share of successes among its `views`, (N,): cosines by
    sign flips, successes by McNemar's test of the pictures that the attack wins in more than half of their views."""
    if measure == "cosine":
        return Compared(paired(one[:, None], other[:, None]), "sign flips", sign_flip(one - other))
    return Compared(paired_shares(one, other, views), "McNemar", mcnemar(one > 0.5, other > 0.5))


def _error(one: float, other: float, correlation: float) -> float:
    """The error of a difference from the errors of its parts and their correlation."""
    return math.sqrt(max(0.0, one**2 - 2 * correlation * one * other + other**2))


def mcnemar(one: Tensor, other: Tensor) -> float:
    """The exact two-sided p value for two arms (N,) bool to succeed equally often: binomial, over the pictures on
    which only one succeeds (McNemar 1947)."""
    one, other = one.bool(), other.bool()
    only = int((one & ~other).sum()), int((other & ~one).sum())
    tail = sum(math.comb(sum(only), k) for k in range(min(only) + 1))
    return min(1.0, 2 * tail / (1 << sum(only)))


def sign_flip(differences: Tensor, seed: int = 0) -> float:
    """The two-sided p value for differences (N,) of two arms to have either sign equally often: the share of choices
    of signs with a mean at least as far from 0 (Fisher 1935). Up to 12 pictures all choices are tried; for more,
    10 000 random ones and the observed one (Phipson & Smyth 2010)."""
    values = differences.double().cpu()
    n = len(values)
    if not bool(values.isfinite().all()):
        raise ValueError("`differences` must be finite numbers; got NaN or infinity (does an arm lack its scores?)")
    least = float(values.sum().abs()) - ROUNDING * float(values.abs().sum())
    if n <= EXACT:
        signs = (torch.arange(2**n)[:, None] >> torch.arange(n)) % 2
        return _as_far(signs, values, least) / len(signs)
    generator, count = torch.Generator().manual_seed(seed), 0
    for part in torch.arange(FLIPS).split(max(1, BLOCK // n)):
        count += _as_far(torch.randint(2, (len(part), n), generator=generator), values, least)
    return (1 + count) / (1 + FLIPS)


def least_p(n: int) -> float:
    """The smallest p value of `sign_flip` for n pictures: one test below 0.05 needs six of them."""
    return 2.0 ** (1 - n) if n <= EXACT else 1 / (1 + FLIPS)


def _as_far(signs: Tensor, values: Tensor, least: float) -> int:
    return int((((2 * signs - 1).double() @ values).abs() >= least).sum())


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for multiple tests, in their order (Holm 1979)."""
    if not all(0 <= each <= 1 for each in p):
        raise ValueError(f"`p` must hold probabilities, 0..1; got {[each for each in p if not 0 <= each <= 1]}")
    corrected, floor = [0.0] * len(p), 0.0
    for done, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        floor = max(floor, min(1.0, (len(p) - done) * p[place]))
        corrected[place] = floor
    return corrected

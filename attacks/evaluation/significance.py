"""Two arms compared picture by picture, and how likely such a difference is by chance. Pictures are the units: the
views of one are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from attacks.evaluation.intervals import BLOCK, Interval, interval, rate_of_shares

Measure = Literal["cosine", "success"]
#: What is compared.
MEASURES: tuple[Measure, ...] = ("cosine", "success")
#: Up to so many pictures every choice of signs is tried, 4096 of them.
EXACT = 12
#: Of more pictures, so many random ones.
FLIPS = 10_000
#: The fewest pictures from which a positive correlation of two arms is estimated.
CORRELATED = 4
#: Sums that differ by no more than rounding are equal.
ROUNDING = 1e-12


def paired(one: Tensor, other: Tensor, seed: int = 0) -> Interval:
    """The mean difference of (N,V) values, each pair of the same picture in the same view, with the interval of
    `attacks.evaluation.intervals.interval`."""
    if one.shape != other.shape:
        raise ValueError(f"`one` and `other` must be pairs; got shapes {tuple(one.shape)} and {tuple(other.shape)}")
    return interval(one.double() - other.double(), seed)


def paired_shares(one: Tensor, other: Tensor, views: int) -> Interval:
    """The difference of two shares with its 95 % interval, from each picture's share (N,) of its `views` in two arms.

    It is put together from the intervals of both shares (see `attacks.evaluation.intervals.rate`) and the
    correlation between the arms (Newcombe 1998, method 10; Zou & Donner 2008). So it has a width where the one arm
    always succeeds and the other never does; a bootstrap has none there, and of 0.98 against 0.01 it holds the truth
    39 to 74 times of 100 for ten pictures. Of fewer than four pictures a positive correlation is mostly chance, and
    counts as none.
    """
    if one.shape != other.shape:
        raise ValueError(f"`one` and `other` must be pairs; got shapes {tuple(one.shape)} and {tuple(other.shape)}")
    first, second = rate_of_shares(one, views), rate_of_shares(other, views)
    away, beside = (values.double().cpu() - values.double().cpu().mean() for values in (one, other))
    spread = math.sqrt(float(away.square().sum() * beside.square().sum()))
    alike = max(-1.0, min(1.0, float(away @ beside) / spread)) if spread > 0 else 0.0
    if len(one) < CORRELATED:
        alike = min(alike, 0.0)
    mean = first.mean - second.mean
    low = _apart(first.mean - first.low, second.high - second.mean, alike)
    high = _apart(first.high - first.mean, second.mean - second.low, alike)
    return Interval(mean, mean - low, mean + high)


class Compared(NamedTuple):
    """How two arms, or two runs, differ in a measure, and how likely that is by chance."""

    difference: Interval
    test: str
    p: float


def compared(measure: Measure, one: Tensor, other: Tensor, views: int) -> Compared:
    """Each picture's mean cosine, or its share of successes among its `views`, (N,) in two arms: cosines by flipping
    signs, successes by McNemar's test of the pictures that the attack wins in more than half of their views."""
    if measure == "cosine":
        return Compared(paired(one[:, None], other[:, None]), "sign flips", sign_flip(one - other))
    return Compared(paired_shares(one, other, views), "McNemar", mcnemar(one > 0.5, other > 0.5))


def _apart(one: float, other: float, alike: float) -> float:
    """The error of a difference from the errors of its parts and their correlation."""
    return math.sqrt(max(0.0, one**2 - 2 * alike * one * other + other**2))


def mcnemar(one: Tensor, other: Tensor) -> float:
    """The p value, two-sided, of two arms (N,) bool that succeed on the same pictures equally often: exact, by the
    binomial distribution of the pictures on which only one succeeds (McNemar 1947)."""
    one, other = one.bool(), other.bool()
    only = int((one & ~other).sum()), int((other & ~one).sum())
    tail = sum(math.comb(sum(only), k) for k in range(min(only) + 1))
    return min(1.0, 2 * tail / (1 << sum(only)))


def sign_flip(differences: Tensor, seed: int = 0) -> float:
    """The two-sided p value of the hypothesis that differences (N,) of two arms have either sign equally often: the
    share of choices of signs with a mean at least as far from 0 (Fisher 1935). Up to 12 pictures all choices are
    tried; of more, 10 000 random ones, and the seen one is counted among them (Phipson & Smyth 2010)."""
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
    """The smallest p value that `sign_flip` can give for so many pictures: six of them are needed for one test
    below 0.05, and more where several are corrected for."""
    return 2.0 ** (1 - n) if n <= EXACT else 1 / (1 + FLIPS)


def _as_far(signs: Tensor, values: Tensor, least: float) -> int:
    return int((((2 * signs - 1).double() @ values).abs() >= least).sum())


def holm(p: Sequence[float]) -> list[float]:
    """p values corrected for there being several, in their order (Holm 1979): the smallest times their number, the
    next times one less, and so on; none below one that was smaller before, none above 1."""
    if not all(0 <= each <= 1 for each in p):
        raise ValueError(f"`p` must hold probabilities, 0..1; got {[each for each in p if not 0 <= each <= 1]}")
    corrected, floor = [0.0] * len(p), 0.0
    for done, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        floor = max(floor, min(1.0, (len(p) - done) * p[place]))
        corrected[place] = floor
    return corrected

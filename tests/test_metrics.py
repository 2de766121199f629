"""Intervals against theory: how often they hold the truth."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from attacks import interval
from attacks.metrics import wilson

double = torch.float64


def clustered(seed, pictures=40, views=8, between=1.0, within=1.0):
    """Values of mean 0 whose views share their picture's own level."""
    generator = torch.Generator().manual_seed(seed)
    level = between * torch.randn(pictures, 1, generator=generator, dtype=double)
    return level + within * torch.randn(pictures, views, generator=generator, dtype=double)


def test_mean_is_the_mean():
    values = clustered(0)
    assert interval(values).mean == pytest.approx(values.mean().item(), abs=1e-12)


@pytest.mark.parametrize("between", [0.0, 1.0, 3.0])
def test_about_95_percent_of_intervals_hold_the_truth(between):
    # 300 repeats: 0.95 has an error of 0.013 of its own, and percentile intervals of 40 units are a little short.
    found = [interval(clustered(seed, between=between)) for seed in range(300)]
    assert 0.90 <= np.mean([low <= 0 <= high for _, low, high in found]) <= 0.99


def test_width_is_that_of_the_normal_theory():
    # The mean of 40 pictures of 8 views: variance (between^2 + within^2 / 8) / 40.
    found = [interval(clustered(seed, between=2.0)) for seed in range(100)]
    wanted = 2 * 1.96 * math.sqrt((4 + 1 / 8) / 40)
    assert np.mean([high - low for _, low, high in found]) == pytest.approx(wanted, rel=0.05)


def test_is_scipys_percentile_bootstrap_of_the_pictures_means():
    values = clustered(0, pictures=25).square()  # skewed, so that the two ends differ
    theirs = scipy.stats.bootstrap(
        (values.mean(1).numpy(),), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    _, low, high = interval(values)
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.05 * width)


def test_views_of_one_picture_are_no_independent_evidence():
    values = clustered(0, between=3.0)
    _, low, high = interval(values)
    _, naive_low, naive_high = interval(values.reshape(-1, 1))
    assert high - low > 2 * (naive_high - naive_low)


def test_the_order_of_views_does_not_matter():
    values = clustered(0)
    assert interval(values.flip(1)) == pytest.approx(interval(values), abs=1e-12)


def test_a_single_picture_resamples_its_views():
    values = clustered(0, pictures=1, views=200)
    mean, low, high = interval(values)
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 * values.std().item() / math.sqrt(200), rel=0.1)


def test_the_seed_fixes_the_interval():
    values = clustered(0)
    assert interval(values, seed=3) == interval(values, seed=3)
    assert interval(values, seed=3)[1:] != interval(values, seed=4)[1:]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (9, 5)])
def test_constant_values_have_no_width(shape):
    assert tuple(interval(torch.full(shape, 0.75))) == (0.75, 0.75, 0.75)


@pytest.mark.parametrize("shape", [(1, 50), (50, 3)])
def test_shares_stay_shares(shape):
    # Hits and misses of a rare kind: an interval of normal theory would leave [0,1].
    values = torch.zeros(shape)
    values[0, 0] = 1
    mean, low, high = interval(values)
    assert 0 <= low <= mean <= high <= 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_hits_of_any_dtype(dtype):
    hits = clustered(0) > 0
    assert interval(hits.to(dtype)) == interval(hits.double())


@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_wilsons_interval_is_scipys(n):
    for k in range(0, n + 1, max(1, n // 7)):
        theirs = scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert wilson(k, n) == pytest.approx((k / n, theirs.low, theirs.high), abs=1e-12)
        assert 0 <= wilson(k, n).low <= k / n <= wilson(k, n).high <= 1
    assert wilson(n, n).low < 1 and wilson(0, n).high > 0


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_more_successes_than_trials_are_refused(successes, n):
    with pytest.raises(ValueError, match="`successes`"):
        wilson(successes, n)

"""Intervals against scipy, and their laws; their coverage is in test_coverage.py."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.intervals import EXTRA, FEWEST_MEANS, FEWEST_SHARES, interval, median, quantile, rate

double = torch.float64


def cluster_values(seed, clusters=40, views=8, between_sd=1.0, within_sd=1.0):
    """Values of mean 0 whose views share their cluster's own level."""
    generator = torch.Generator().manual_seed(seed)
    level = between_sd * torch.randn(clusters, 1, generator=generator, dtype=double)
    return level + within_sd * torch.randn(clusters, views, generator=generator, dtype=double)


def shares(seed, clusters=20, views=8, like=1.0):
    """Shares of views that are hits, of rate 0.5, more correlated within a cluster for a larger `like`."""
    return (cluster_values(seed, clusters, views, between_sd=like) > 0).double().mean(1)


def test_the_interval_of_symmetric_values_is_students_t():
    values = torch.cat([cluster_values(0, 20)[:, 0], -cluster_values(0, 20)[:, 0]])
    theirs = scipy.stats.ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    assert interval(values)[1:] == (pytest.approx(theirs.low), pytest.approx(theirs.high), "interval")


def test_the_interval_of_skewed_values_adds_johnsons_shift_on_the_side_of_the_tail():
    values = cluster_values(1, 35)[:, 0].exp()
    theirs = scipy.stats.ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    mean, spread, n = float(values.mean()), float(values.std()), 35
    third = float(((values - mean) ** 3).mean())  # Johnson 1978: mu3 / (6 s^2 n) + mu3 / (3 s^4) (mean - mu)^2
    shift = third / (6 * spread**2 * n) + third / (3 * spread**4) * (theirs.high - mean) ** 2
    assert interval(values)[:3] == pytest.approx((mean, theirs.low, theirs.high + shift), abs=1e-12)


@pytest.mark.parametrize("clusters", [2, 5, FEWEST_MEANS - 1])
def test_few_clusters_have_their_range(clusters):
    values = cluster_values(clusters, clusters)
    units = values.mean(1)
    expected = (units.mean(), units.min(), units.max())
    assert interval(values) == (*(pytest.approx(float(end)) for end in expected), "range")
    for count in range(1, FEWEST_SHARES):
        result = rate(shares(0, count), 8)
        assert result.kind == ("range" if count > 1 else "interval")


def test_the_views_of_a_single_cluster_are_its_units():
    values = cluster_values(0, clusters=1, views=200)
    assert interval(values) == interval(values[0])
    theirs = scipy.stats.binomtest(150, 200).proportion_ci(0.95, "wilson")
    assert rate(torch.tensor([0.75]), 200) == (
        0.75,
        pytest.approx(theirs.low),
        pytest.approx(theirs.high),
        "interval",
    )


@pytest.mark.parametrize("value", [0.75, 0.1, -1e-200])
@pytest.mark.parametrize("shape", [(1, 1), (9, 1), (9, 5), (40, 2)])
def test_constant_values_have_no_width(shape, value):
    assert interval(torch.full(shape, value, dtype=double))[:3] == (value, value, value)


@pytest.mark.parametrize("clusters", [2, 7, 30, 90])
def test_ends_stay_in_the_range_of_the_values_and_around_the_mean(clusters):
    for seed in range(20):
        values = cluster_values(seed, clusters, views=3).exp()  # a long tail
        mean, low, high, _ = interval(values)
        units = values.mean(1)
        assert units.min() <= low <= mean <= high <= units.max() and low < high


def test_a_mirrored_sample_has_the_mirrored_interval():
    values = cluster_values(0).exp()
    mean, low, high, _ = interval(values)
    assert interval(-values)[:3] == pytest.approx((-mean, -high, -low), abs=1e-12)
    for clusters in (5, 20, 60):
        mean, low, high, _ = rate(shares(3, clusters), 8)
        assert rate(1 - shares(3, clusters), 8)[:3] == pytest.approx((1 - mean, 1 - high, 1 - low), abs=1e-9)


def test_nan_gives_nan():
    assert all(math.isnan(end) for end in interval(torch.tensor([[0.1], [math.nan], [0.2]]))[:3])


@pytest.mark.parametrize("hits", [0, 1, 30, 60, 61])
def test_a_rate_of_independent_trials_is_between_jeffreys_and_clopper_pearsons(hits):
    # 61 clusters of one view each, most of which agree, have a worth of at most their number.
    hits_by_cluster = torch.tensor([1.0] * hits + [0.0] * (61 - hits))
    mean, low, high, _ = rate(hits_by_cluster, 1)
    exact = scipy.stats.binomtest(hits, 61).proportion_ci(0.95, "exact")
    jeffreys = scipy.stats.beta(hits + 0.5, 61 - hits + 0.5)
    assert mean == pytest.approx(hits / 61)
    assert low == pytest.approx(exact.low, abs=0.012) and high == pytest.approx(exact.high, abs=0.012)
    assert low <= jeffreys.ppf(0.025) if hits else low == 0
    assert high >= jeffreys.ppf(0.975) if hits < 61 else high == 1


def test_the_effective_trials_are_those_of_kish_with_added_clusters():
    values = torch.linspace(0.35, 0.6, 40, dtype=double)
    units, times = np.r_[values.numpy(), 0, 1], np.r_[np.ones(40), EXTRA[1], EXTRA[1]]
    p = np.average(units, weights=times)
    variance = np.average((units - p) ** 2, weights=times) * times.sum() / (times.sum() - 1)
    worth = 40 * p * (1 - p) / variance * (scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, 39)) ** 2
    assert 40 < worth < 40 * 512
    hits = float(values.mean()) * worth
    ends = (scipy.stats.beta.ppf(0.025, hits + 1 / 3, worth - hits + 2 / 3),)
    ends += (scipy.stats.beta.ppf(0.975, hits + 2 / 3, worth - hits + 1 / 3),)
    assert rate(values, 512)[1:3] == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize("clusters", [8, 20, 28])
def test_a_rate_of_few_clusters_leaves_room_for_a_tenth_that_behaves_otherwise(clusters):
    mean, low, high, _ = rate(torch.full((clusters,), 0.7, dtype=double), 10_000)
    assert low <= 0.9 * mean and high >= 0.9 * mean + 0.1
    _, low, high, _ = rate(torch.full((200,), 0.7, dtype=double), 10_000)
    assert high - low < 0.05


def test_unequal_trials_count_as_their_harmonic_mean():
    values = shares(0, 12)
    assert rate(values, torch.tensor([4, 12] * 6)) == rate(values, 6)
    assert rate(values, torch.full((12,), 8)) == rate(values, 8)


@pytest.mark.parametrize("n", [6, 7, 20, 101])
def test_the_interval_of_a_median_is_the_shortest_of_which_each_end_errs_in_one_of_forty(n):
    values = cluster_values(n, clusters=n, views=1)[:, 0]
    rising, below = sorted(values.tolist()), [sum(math.comb(n, i) for i in range(k)) / 2**n for k in range(n + 1)]
    k = sum(error <= 0.025 for error in below) - 1  # how many of the values at each end lie outside
    assert median(values) == (rising[(n - 1) // 2], rising[k - 1], rising[n - k], "interval")


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_interval_of_a_median_of_few_values_is_their_range(n):
    assert median(torch.arange(n)) == ((n - 1) // 2, 0, n - 1, "range")


def test_quantiles_equal_numpy_and_lie_in_their_interval():
    for n in (1, 4, 33, 512):
        values = cluster_values(n, clusters=n, views=1)[:, 0]
        result, low, high, _ = quantile(values, 0.1)
        assert result == pytest.approx(np.quantile(values.numpy(), 0.1), abs=1e-12) and low <= result <= high
    values = np.random.default_rng(0).random((400, 50))  # uniform: the tenth percentile is 0.1
    covers = [low <= 0.1 <= high for _, low, high, _ in (quantile(torch.from_numpy(row), 0.1) for row in values)]
    assert np.mean(covers) >= 0.93


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], r"`values` must be a tensor \(C,\) or \(C,V\) .*; got a list"),
        (torch.zeros(0), r"`values` must be a tensor .*at least one value; got shape \(0,\)"),
        (torch.zeros(2, 2, 2), r"`values` must be a tensor .*got shape \(2, 2, 2\)"),
        (torch.tensor(1.0), r"`values` must be a tensor .*got shape \(\)"),
    ],
)
def test_an_interval_of_no_numbers_is_an_error_in_one_line(values, message):
    with pytest.raises(ValueError, match=message):
        interval(values)

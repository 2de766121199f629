"""Intervals against scipy, their laws, and their coverage on a part of the grid of the benchmark `coverage`."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.intervals import interval, median, quantile, rate
from attacks.evaluation.significance import paired_shares
from scripts.benchmarks.coverage import DIFFERENCES, KINDS, MEANS, MINIMUM_COVERAGE, SHARES, coverage_and_width

double = torch.float64


def cluster_values(seed, clusters=40, views=8, between_sd=1.0, within_sd=1.0):
    """Values of mean 0 whose views share their cluster's own level."""
    generator = torch.Generator().manual_seed(seed)
    level = between_sd * torch.randn(clusters, 1, generator=generator, dtype=double)
    return level + within_sd * torch.randn(clusters, views, generator=generator, dtype=double)


def shares(seed, clusters=20, views=8, like=1.0):
    """Shares of views that are hits, of rate 0.5, more correlated within a cluster for a larger `like`."""
    return (cluster_values(seed, clusters, views, between_sd=like) > 0).double().mean(1)


def test_the_views_of_a_single_cluster_are_its_units():
    values = cluster_values(0, clusters=1, views=200)
    assert interval(values) == interval(values[0])
    theirs = scipy.stats.binomtest(150, 200).proportion_ci(0.95, "wilson")
    assert rate(torch.tensor([0.75]), 200)[:3] == pytest.approx((0.75, theirs.low, theirs.high))


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


def test_constant_values_have_no_width_and_nan_gives_nan():
    for value, shape in itertools.product([0.75, 0.1, -1e-200], [(1, 1), (9, 5), (40, 2)]):
        assert interval(torch.full(shape, value, dtype=double))[:3] == (value, value, value)
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


REPEATS = 1000
#: Three standard errors of a simulated coverage of `MINIMUM_COVERAGE`.
ERROR = 3 * (MINIMUM_COVERAGE * (1 - MINIMUM_COVERAGE) / REPEATS) ** 0.5


def worst_coverage(name, method, clusters):
    """The coverage in the worst population."""
    kind = replace(KINDS[name], methods={method: KINDS[name].methods[method]})
    return min(
        (coverage_and_width(population, kind, clusters, REPEATS)[method][0], population.name)
        for population in kind.populations
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("clusters", [4, 8, 12, 28, 30, 50, 100])
def test_intervals_keep_their_coverage_in_every_population(name, clusters):
    if clusters < KINDS[name].fewest:
        pytest.skip("the range is given")
    coverage, population = worst_coverage(name, "ours", clusters)
    assert coverage >= MINIMUM_COVERAGE - ERROR, population


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_textbook_intervals_fail_the_same_test(name, method):
    assert worst_coverage(name, method, 20)[0] < 0.9


def test_the_simulated_intervals_are_those_of_the_report():
    random = np.random.default_rng(0)
    for population, clusters in ((SHARES[8], 9), (MEANS[1], 40), (DIFFERENCES[3], 9)):
        sample = population.draw(random, (3, clusters))
        name = next(name for name, kind in KINDS.items() if population in kind.populations)
        low, high = KINDS[name].methods["ours"](sample)
        for row, (first, other) in enumerate(zip(*map(torch.from_numpy, sample[:2]), strict=True)):
            trials = int(sample.trials[row])
            single = interval(first) if name == "means" else rate(first, trials) if name == "shares" else None
            single = single or paired_shares(first, other, trials)
            assert single.kind == "interval"
            assert single[1:3] == pytest.approx((min(low[row], single.mean), max(high[row], single.mean)), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [15, 6, 40])
def test_medians_have_at_least_95_percent_coverage(clusters):
    values = torch.from_numpy(np.random.default_rng(0).exponential(size=(1000, clusters)))
    result = [median(row) for row in values]
    assert np.mean([low <= np.log(2) <= high for _, low, high, _ in result]) >= 0.935

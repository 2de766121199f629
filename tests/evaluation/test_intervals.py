"""Intervals against scipy and the formulas of their sources."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from attacks import interval
from attacks.evaluation.intervals import NORMAL, bootstrap, median, quantile, rate, rate_of_shares, student, wilson

double = torch.float64


def clustered(seed, pictures=40, views=8, between=1.0, within=1.0):
    """Values of mean 0 whose views share their picture's own level."""
    generator = torch.Generator().manual_seed(seed)
    level = between * torch.randn(pictures, 1, generator=generator, dtype=double)
    return level + within * torch.randn(pictures, views, generator=generator, dtype=double)


@pytest.mark.parametrize("pictures", [8, 25])
def test_the_interval_equals_scipy_bca_expanded_by_student_t(pictures):
    values = clustered(0, pictures=pictures).square()  # skewed, so that the two ends differ
    wide = math.sqrt(pictures / (pictures - 1)) * scipy.stats.t.ppf(0.975, pictures - 1)
    theirs = scipy.stats.bootstrap(
        (values.mean(1).numpy(),),
        np.mean,
        n_resamples=20000,
        confidence_level=1 - 2 * scipy.stats.norm.cdf(-wide),
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    _, low, high = interval(values)
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.05 * width)


def test_a_single_picture_resamples_its_views():
    values = clustered(0, pictures=1, views=200)
    mean, low, high = interval(values)
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 * values.std().item() / math.sqrt(200), rel=0.1)


@pytest.mark.parametrize("value", [0.75, 0.1, -1e-200])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (9, 5)])
def test_constant_values_have_no_width(shape, value):
    assert tuple(interval(torch.full(shape, value, dtype=double))) == (value, value, value)


@pytest.mark.parametrize("pictures", [2, 3, 4, 7, 30])
def test_ends_stay_in_the_range_of_the_values_and_around_the_mean(pictures):
    for seed in range(20):
        values = clustered(seed, pictures=pictures, views=3).exp()  # a long tail
        mean, low, high = interval(values)
        units = values.mean(1)
        assert units.min() <= low <= mean <= high <= units.max() and low < high


def test_a_mirrored_sample_has_the_mirrored_interval():
    values = clustered(0, pictures=12).exp()
    mean, low, high = interval(values)
    assert interval(-values) == pytest.approx((-mean, -high, -low), abs=1e-12)


def test_samples_in_a_batch_are_independent():
    samples = torch.stack([clustered(seed, pictures=12).mean(1) for seed in range(5)])
    for row, result in zip(samples, zip(*bootstrap(samples), strict=True), strict=True):
        assert [float(each) for each in result] == pytest.approx(interval(row[:, None]), abs=1e-14)


def test_many_pictures_are_resampled_in_parts(monkeypatch):
    values = clustered(0, pictures=30)
    whole = interval(values)
    monkeypatch.setattr("attacks.evaluation.intervals.BLOCK", 1000)
    assert interval(values) == pytest.approx(whole, abs=1e-12)


def test_nan_gives_nan():
    assert all(math.isnan(each) for each in interval(torch.tensor([[0.1], [math.nan], [0.2]])))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_hits_of_any_dtype_give_equal_intervals(dtype):
    hits = clustered(0) > 0
    assert interval(hits.to(dtype)) == interval(hits.double())


@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_the_wilson_interval_equals_scipy(n):
    for k in range(0, n + 1, max(1, n // 7)):
        theirs = scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert wilson(k, n) == pytest.approx((k / n, theirs.low, theirs.high), abs=1e-12)
        assert 0 <= wilson(k, n).low <= k / n <= wilson(k, n).high <= 1
    assert wilson(n, n).low < 1 and wilson(0, n).high > 0


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 3), (4, 3)])
def test_more_successes_than_trials_are_refused(successes, n):
    with pytest.raises(ValueError, match="`successes`"):
        wilson(successes, n)


def test_student_quantiles_equal_scipy():
    for freedom in [*range(1, 260), 1000, 6399, 10**6]:
        assert student(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), abs=1e-9)


def trials(seed, pictures=20, views=8, like=1.0):
    """Hits of rate 0.5, more correlated within a picture for a larger `like`."""
    return clustered(seed, pictures, views, between=like, within=1.0) > 0


@pytest.mark.parametrize("pictures", [2, 9, 50])
def test_a_rate_of_one_view_per_picture_is_the_wilson_interval(pictures):
    for hits in (trials(0, pictures, 1), torch.ones(pictures, 1), torch.zeros(pictures, 1)):
        wanted = pytest.approx(wilson(float(hits.sum()), pictures), abs=1e-12)
        assert rate(hits) == wanted
        assert rate(hits.expand(-1, 32)) == wanted  # identical views count as one trial


@pytest.mark.parametrize("like", [0.0, 0.5, 2.0, 9.0])
def test_a_rate_is_between_the_wilson_intervals_of_trials_and_pictures(like):
    for seed in range(20):
        hits = trials(seed, like=like)
        mean, low, high = rate(hits)
        most, least = rate(hits.reshape(-1, 1)), wilson(mean * len(hits), len(hits))
        assert mean == pytest.approx(hits.double().mean().item(), abs=1e-15)
        assert least.low - 1e-12 <= low <= most.low + 1e-12 < mean < most.high - 1e-12 <= high <= least.high + 1e-12


def test_a_rate_approaches_the_design_effect_of_korn_and_graubard():
    # Of many pictures Korn & Graubard's: p (1 - p) over the variance of the mean, with the t correction.
    hits = trials(0, pictures=3000)
    shares = hits.double().mean(1).numpy()
    p, variance = shares.mean(), scipy.stats.sem(shares) ** 2
    worth = p * (1 - p) / variance * (NORMAL / scipy.stats.t.ppf(0.975, 2999)) ** 2
    mean, low, high = rate(hits)
    middle, half = (mean + NORMAL**2 / (2 * worth)) / (1 + NORMAL**2 / worth), (high - low) / 2
    assert (low + high) / 2 == pytest.approx(middle, abs=1e-4)
    assert half == pytest.approx(NORMAL * math.sqrt(p * (1 - p) / worth), rel=0.01)


@pytest.mark.parametrize("pictures", [4, 10])
def test_a_rate_of_few_pictures_adds_quarter_pictures_and_students_t(pictures):
    shares = torch.linspace(0.35, 0.6, pictures, dtype=double)
    values, times = np.r_[shares.numpy(), 0, 1], np.r_[np.full(pictures, 4), 1, 1]  # in quarters of a picture
    p, squares = np.average(values, weights=times), np.cov(values, fweights=times) * (times.sum() - 1) / 4
    worth = pictures * p * (1 - p) / (squares / (pictures - 0.5))
    worth *= (NORMAL / scipy.stats.t.ppf(0.975, pictures - 1)) ** 2
    assert pictures < worth < 512 * pictures
    wanted = wilson(float(shares.mean()) * worth, worth)
    assert rate_of_shares(shares, 512) == pytest.approx(wanted, abs=1e-9)


def test_the_rate_of_misses_mirrors_that_of_hits():
    hits = trials(3)
    mean, low, high = rate(hits)
    assert rate(~hits) == pytest.approx((1 - mean, 1 - high, 1 - low), abs=1e-12)
    assert rate(hits) == rate_of_shares(hits.double().mean(1), 8) == rate(hits.flip(1))


@pytest.mark.parametrize("count", [0, 3, 40])
def test_a_rate_of_a_single_picture_is_over_its_views(count):
    hits = (torch.arange(40) < count)[None]
    assert rate(hits) == pytest.approx(wilson(count, 40), abs=1e-12)


@pytest.mark.parametrize("n", [6, 7, 20, 101])
def test_the_interval_of_a_median_equals_scipy(n):
    values = clustered(n, pictures=n, views=1)[:, 0]
    low, high = (
        scipy.stats.quantile_test(values.numpy(), p=0.5, alternative=side).confidence_interval(0.975)
        for side in ("greater", "less")
    )
    assert median(values)[1:] == (low.low, high.high)
    assert median(values).mean == sorted(values.tolist())[(n - 1) // 2]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_interval_of_a_median_of_few_values_is_their_range(n):
    assert tuple(median(torch.arange(n))) == ((n - 1) // 2, 0, n - 1)


def test_quantiles_equal_numpy_and_lie_in_their_interval():
    for n in (1, 4, 33, 512):
        values = clustered(n, pictures=n, views=1)[:, 0]
        result, low, high = quantile(values, 0.1)
        assert result == pytest.approx(np.quantile(values.numpy(), 0.1), abs=1e-12) and low <= result <= high
    values = np.random.default_rng(0).random((400, 50))  # uniform: the tenth percentile is 0.1
    held = [low <= 0.1 <= high for _, low, high in (quantile(torch.from_numpy(row), 0.1) for row in values)]
    assert np.mean(held) >= 0.93


@pytest.mark.parametrize("function", [interval, rate])
def test_the_number_of_threads_changes_no_bit(function):
    values = clustered(0, pictures=200, views=32)
    values = values if function is interval else values > 0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        result = function(values)
        torch.set_num_threads(3)
        assert function(values) == result
    finally:
        torch.set_num_threads(threads)

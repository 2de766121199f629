"""The coverage of the 95 % intervals of `attacks.evaluation.intervals`, on simulated pictures with correlated views,
10 000 times in each cell, beside intervals that treat all views as independent.

The bank of views is the same for all pictures, as in a run: the true value is the mean over the population of
pictures, from these views.
"""

import numpy as np
import pytest
import torch

from attacks.evaluation.intervals import NORMAL, bootstrap, interval, median, rate_of_shares, wilson

TRIALS, VIEWS = 10_000, 32
#: The correlation of the views of a picture.
ALIKE = 0.3


def normal(random, trials, pictures):
    """Levels of pictures and of views, and noise, all normal: (trials,pictures,VIEWS), and the truth (trials,)."""
    picture, view = random.normal(size=(trials, pictures, 1)), random.normal(size=(trials, 1, VIEWS))
    return picture + view + random.normal(size=(trials, pictures, VIEWS)), view.mean((1, 2))


def cosines(random, trials, pictures):
    """Cosines mostly near 1, with a tail of pictures of lower cosine: skewness -1.2."""
    view = random.normal(0, 0.02, size=(trials, 1, VIEWS))
    level = random.beta(6, 1.2, size=(trials, pictures, 1))
    return level + view + random.normal(0, 0.05, size=(trials, pictures, VIEWS)), 6 / 7.2 + view.mean((1, 2))


def hits(random, trials, pictures, p, alike=ALIKE):
    """Shares (trials,pictures) of views that are hits, beta-binomial."""
    size = 1 / alike - 1
    return random.binomial(VIEWS, random.beta(p * size, (1 - p) * size, size=(trials, pictures))) / VIEWS


def held(truth, low, high):
    """The share of intervals that cover the truth."""
    return float(np.mean((np.asarray(low) <= truth) & (truth <= np.asarray(high))))


def coverage(draw, pictures, trials=TRIALS, seed=0):
    """The coverage of `interval`, and of the interval for independent views."""
    random, ours, naive = np.random.default_rng(seed), [], []
    for _ in range(trials // 500):
        values, truth = draw(random, 500, pictures)
        units = torch.from_numpy(values).mean(2)
        _, low, high = bootstrap(units)
        ours.append(held(truth, low, high))
        mean, error = values.mean((1, 2)), values.std((1, 2), ddof=1) / (pictures * VIEWS) ** 0.5
        naive.append(held(truth, mean - NORMAL * error, mean + NORMAL * error))
    return np.mean(ours), np.mean(naive)


def rate_coverage(pictures, p, trials=TRIALS, alike=ALIKE):
    """The coverage of `rate`, and of Wilson's interval of all trials."""
    shares = torch.from_numpy(hits(np.random.default_rng(0), trials, pictures, p, alike))
    ours = [rate_of_shares(row, VIEWS) for row in shares]
    naive = [wilson(float(row.mean()) * pictures * VIEWS, pictures * VIEWS) for row in shares]
    return tuple(held(p, [each.low for each in result], [each.high for each in result]) for result in (ours, naive))


@pytest.mark.slow
@pytest.mark.parametrize("draw", [normal, cosines])
@pytest.mark.parametrize("pictures", [10, 20, 50, 200])
def test_intervals_have_95_percent_coverage_and_naive_ones_do_not(draw, pictures):
    ours, naive = coverage(draw, pictures)
    print(f"{draw.__name__}, {pictures} pictures: {ours:.4f}, naive {naive:.4f}")  # shown with -s
    assert 0.93 <= ours <= 0.97 and naive < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("pictures", [10, 20, 50, 200])
def test_rates_have_at_least_95_percent_coverage_and_naive_ones_do_not(pictures, p):
    ours, naive = rate_coverage(pictures, p)
    print(f"rate {p}, {pictures} pictures: {ours:.4f}, naive {naive:.4f}")
    # The effective sample size is uncertain for few pictures and rates near 1: the interval is conservative.
    most = 0.97 if (pictures >= 50 and p < 0.9) or pictures == 200 else 0.995
    assert 0.93 <= ours <= most and naive < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("alike", [0.05, 0.6, 0.9])
def test_rates_have_coverage_at_any_correlation_of_views(alike):
    for pictures in (10, 20, 50, 200):
        for p in (0.5, 0.8, 0.95):
            # At a correlation near 1 it is Wilson's over the pictures: at ten and p = 0.95 its coverage is 0.91.
            assert rate_coverage(pictures, p, 4000, alike)[0] >= (0.93 if alike < 0.9 else 0.915), (pictures, p)


def test_a_bootstrap_of_views_as_if_independent_has_low_coverage():
    values, truth = normal(np.random.default_rng(0), 300, 20)
    naive, ours = (bootstrap(torch.from_numpy(each))[1:] for each in (values.reshape(300, -1), values.mean(2)))
    assert held(truth, *naive) < 0.6 and held(truth, *ours) > 0.9
    _, low, high = interval(torch.from_numpy(values[0]))  # the public function agrees
    assert (low, high) == pytest.approx((float(ours[0][0]), float(ours[1][0])), abs=1e-12)


def test_the_plain_percentile_bootstrap_of_ten_pictures_is_too_narrow():
    random = np.random.default_rng(0)
    units = random.normal(size=(1000, 10))
    _, low, high = bootstrap(torch.from_numpy(units))
    drawn = units[:, random.integers(10, size=(1000, 10))].mean(2)
    plain = held(0, *np.quantile(drawn, (0.025, 0.975), axis=1))
    assert plain < 0.92 < 0.935 < held(0, low, high) < 0.97


@pytest.mark.parametrize("pictures", [6, 15, 40])
def test_medians_have_at_least_95_percent_coverage(pictures):
    values = torch.from_numpy(np.random.default_rng(0).exponential(size=(2000, pictures)))
    result = [median(row) for row in values]
    held_by = held(np.log(2), [each.low for each in result], [each.high for each in result])
    assert held_by >= 0.94

"""The floor of a smoothed function against a closed form: h(z) = Phi(z) has the mean Phi(x / sqrt(2)) at x, which
moves by a shift to Phi((x - shift) / sqrt(2)), and no shift of that length moves it further."""

import numpy as np
import pytest
import scipy
from scipy.special import ndtr, ndtri

from attacks.inference import bounded, smoothed_floor

SHIFTS, LOW = np.array([0.0, 0.5, 1.5]), np.array([0.0])
truth = pytest.mark.parametrize("x", [-0.5, 1.0])


def sample(x, n, seed):
    return ndtr(x + np.random.default_rng(seed).standard_normal((n, 1)))


def floors(x, n=2000, seed=0, alpha=0.05, scale=1.0):
    return smoothed_floor(sample(x, n, seed), sample(x, 200, 10_000 + seed), LOW, scale * SHIFTS, alpha)[:, 0]


def exceedances(x, scale, seeds=400):
    """The share of seeds whose floors are above the truth at any shift."""
    bar = ndtr((x - SHIFTS) / np.sqrt(2))
    return np.mean([(floors(x, seed=seed, scale=scale) > bar).any() for seed in range(seeds)])


@truth
def test_floors_fail_as_seldom_as_promised_but_not_with_a_wrong_deviation(x):
    assert exceedances(x, 1.0) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert exceedances(x, 1 / 1.5) > 0.9  # as if the noise had 1.5 times its deviation


@truth
def test_floors_come_near_to_the_truth(x):
    gap = ndtr((x - SHIFTS) / np.sqrt(2)) - floors(x, 200_000)
    assert (gap > 0).all() and (gap < 0.035).all()


def test_the_bound_is_the_formula_with_scipys_clopper_and_pearson():
    values, pilot, alpha = sample(0.3, 500, 1), sample(0.3, 100, 2), 0.01
    limits = np.quantile(pilot[:, 0], np.linspace(0, 1, bounded.THRESHOLDS))
    total, start = 0.0, 0.0
    for limit in limits:
        test = scipy.stats.binomtest(int((values >= limit).sum()), len(values))
        end = test.proportion_ci(1 - 2 * alpha / len(limits), "exact").low
        total += (limit - start) * ndtr(ndtri(end) - 0.5)
        start = limit
    assert smoothed_floor(values, pilot, LOW, np.array([0.5]), alpha)[0, 0] == pytest.approx(total, abs=1e-9)


def test_floors_fall_with_the_shift_and_rise_with_samples_and_error():
    values, pilot = sample(0.3, 500, 1), sample(0.3, 100, 2)

    def floor(values, alpha=0.01):
        return smoothed_floor(values, pilot, LOW, np.linspace(0, 4, 9), alpha)[:, 0]

    base = floor(values)
    assert (np.diff(base) < 0).all() and (base > 0).all()
    assert (floor(np.tile(values, (4, 1))) > base).all() and (floor(values, 0.1) > base).all()
    assert base[0] < values.mean()


@pytest.mark.parametrize("function", [ndtr, np.tanh, lambda z: (z > 0.4) * 0.9])
def test_the_bound_is_no_weaker_than_by_the_mean(function):
    values = function(ndtri((np.arange(1_000_000) + 0.5) / 1_000_000))[:, None]  # nearly the distribution itself
    low = -1.0
    share = (values.mean() - low) / (1 - low)
    of_the_mean = low + (1 - low) * ndtr(ndtri(share) - SHIFTS)
    assert (smoothed_floor(values, values, np.array([low]), SHIFTS, 0.05)[:, 0] > of_the_mean - 0.02).all()


def test_several_functions_share_the_error():
    values, pilot = (np.concatenate([sample(x, 500, s) for x in (0, 1)], 1) for s in (1, 2))
    joint = smoothed_floor(values, pilot, np.zeros(2), SHIFTS, 0.02)
    for k in range(2):
        column = slice(k, k + 1)
        single = smoothed_floor(values[:, column], pilot[:, column], LOW, SHIFTS, 0.01)
        assert joint[:, column] == pytest.approx(single)


def test_a_value_below_the_least_one_is_refused():
    with pytest.raises(ValueError, match="`low` must be the least value"):
        smoothed_floor(np.array([[-0.1], [0.5]]), np.array([[0.2]]), LOW, SHIFTS, 0.05)

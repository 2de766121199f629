"""The planner against the power of Student's t, and against the test itself."""

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.significance import (
    clusters_for_power,
    clusters_from_rates,
    fewest_clusters,
    flip_power,
    sign_flip,
)


def power_of_t(effect, n):
    """Of a two-sided t test of normal differences, with a standard deviation of 1."""
    end = scipy.stats.t.ppf(0.975, n - 1)
    shift = effect * n**0.5
    return scipy.stats.nct.sf(end, n - 1, shift) + scipy.stats.nct.cdf(-end, n - 1, shift)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.35, 0.6, 1.1])
def test_normal_differences_need_as_many_clusters_as_the_t_test(effect):
    pilot = torch.from_numpy(scipy.stats.norm.ppf((np.arange(400) + 0.5) / 400) / 20)
    plan = clusters_for_power(pilot + 0.3, effect * float(pilot.std()))
    expected = next(n for n in range(3, 300) if power_of_t(effect, n) >= 0.8)
    assert abs(plan - expected) <= max(1, 0.05 * expected)


@pytest.mark.parametrize("n", [6, 10, 14])
def test_the_power_is_the_share_of_studies_that_the_test_finds(n):
    studies = np.random.default_rng(n).normal(0.8, 1, size=(300, n))
    expected = np.mean([sign_flip(torch.from_numpy(row)) < 0.05 for row in studies])
    assert flip_power(studies) == pytest.approx(expected, abs=0 if n <= 12 else 0.02)


@pytest.mark.slow
def test_rates_and_a_pilot_from_them_need_as_many_clusters():
    random, size = np.random.default_rng(0), 1 / 0.3 - 1
    shares = [random.binomial(64, random.beta(rate * size, (1 - rate) * size, 5000)) / 64 for rate in (0.9, 0.65)]
    pilot = clusters_for_power(torch.from_numpy(shares[0] - shares[1]), 0.25)
    assert clusters_from_rates(0.65, 0.25, 0.3, 64) == pytest.approx(pilot, abs=1)


def test_clear_differences_need_the_fewest_clusters_that_can_be_significant():
    assert clusters_for_power(torch.tensor([0.5, 0.51]), 0.5) == fewest_clusters()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda: clusters_for_power(torch.tensor([0.1]), 0.1), "at least 2 clusters; got 1"),
        (lambda: clusters_for_power(torch.tensor([0.1, 0.2]), 0.0), "`effect` must be .* got 0"),
        (lambda: clusters_for_power(torch.tensor([0.1, 0.2]), 0.1, 1.0), "`power` must be"),
        (lambda: clusters_for_power(torch.tensor([-1.0, 1.0]), 0.02), "1000 clusters have a power of 0"),
        (lambda: clusters_from_rates(0.9, 0.2, 0.3, 64), "must be rates, 0..1; got 0.9 and 1.1"),
        (lambda: clusters_from_rates(0.5, 0.2, 1.0, 64), "`correlation` must lie in 0..1"),
    ],
)
def test_impossible_plans_are_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        plan()

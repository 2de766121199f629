"""Paired tests against scipy and by law, and the planner against the power of Student's t."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.intervals import FEWEST_SHARES, interval
from attacks.evaluation.significance import (
    EXACT,
    FLIPS,
    clusters_for_power,
    clusters_from_rates,
    fewest_clusters,
    flip_power,
    holm,
    least_p,
    mean_difference,
    paired_shares,
    sign_flip,
)
from tests.helpers.recomputation import flips


def normal_values(n, seed=0, shift=0.3):
    return shift + torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_paired_difference_is_that_of_each_cluster_in_each_view():
    first, other = normal_values(180).view(36, 5), normal_values(180, seed=1).view(36, 5)
    assert mean_difference(first, other) == interval(first - other)
    level = 100 * normal_values(36, seed=2)[:, None]  # the common level of the arms cancels
    shifted_arms = mean_difference(first + level, other + level)
    assert shifted_arms[:3] == pytest.approx(mean_difference(first, other)[:3], abs=1e-9)
    with pytest.raises(ValueError, match="pairs"):
        mean_difference(first, other[:, :1])


def test_swapped_arms_have_the_mirrored_interval_and_ends_stay_within_one():
    for n in (2, 5, 12, 40):
        first, other = torch.rand(n, generator=torch.Generator().manual_seed(n)), torch.linspace(0, 0.9, n)
        mean, low, high, kind = paired_shares(first, other, 8)
        assert paired_shares(other, first, 8) == (*(pytest.approx(x, abs=1e-9) for x in (-mean, -high, -low)), kind)
        assert -1 <= low <= mean <= high <= 1
        assert (kind == "range") == (n < FEWEST_SHARES)
    first, other = torch.ones(10), torch.zeros(10)  # no cluster differs from the rest, yet the interval has a width
    result = paired_shares(first, other, 8)
    assert result.mean == result.high == 1 > result.low
    with pytest.raises(ValueError, match="pairs"):
        paired_shares(first, other[:3], 8)


@pytest.mark.parametrize("n", [1, 2, 8, EXACT, 40])
def test_least_p_is_the_smallest_p_value(n):
    assert sign_flip(torch.linspace(1, 2, n, dtype=torch.float64)) == pytest.approx(least_p(n), rel=1e-12)


def test_the_needed_clusters_are_the_fewest_that_holm_leaves_below_the_level():
    assert fewest_clusters() == 6
    for tests in (1, 6, 49, 500):
        for n in (fewest_clusters(tests) - 1, fewest_clusters(tests)):
            p = holm([least_p(n)] + [1.0] * (tests - 1))[0]
            assert (p < 0.05) == (n == fewest_clusters(tests))


@pytest.mark.parametrize("n", [2, 5, 13])
def test_all_sign_flips_are_counted(n):
    for values in (normal_values(n), normal_values(n).round(decimals=0)):
        assert sign_flip(values) == pytest.approx(flips(values.numpy()), abs=1e-12)


def test_random_flips_approximate_the_exact_p_value(monkeypatch):
    values = normal_values(30, shift=0.55)
    exact = sign_flip(values)
    assert 0.01 < exact < 0.2
    monkeypatch.setattr("attacks.evaluation.significance.EXACT", 29)
    error = (exact * (1 - exact) / FLIPS) ** 0.5
    assert 0 < abs(sign_flip(values) - exact) < 4 * error < 0.006


def test_rounding_does_not_break_ties_of_sums():
    assert sign_flip(torch.tensor([0.1, 0.2, 0.3, 0.1])) == sign_flip(torch.tensor([1, 2, 3, 1.0]))
    assert sign_flip(torch.full((20,), 0.1, dtype=torch.float64)) == least_p(20)


def test_equal_arms_have_p_one_and_p_is_never_zero():
    assert sign_flip(torch.ones(1)) == sign_flip(torch.zeros(20)) == sign_flip(torch.zeros(3)) == 1
    assert sign_flip(torch.ones(100)) == 1 / (1 + FLIPS)
    with pytest.raises(ValueError, match="finite"):
        sign_flip(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_the_closed_bonferroni_test(seed):
    p = np.random.default_rng(seed).random(6) ** 3
    p[4] = p[1]
    sets = [group for size in range(1, 7) for group in combinations(range(6), size)]
    expected = [max(min(1, len(group) * p[list(group)].min()) for group in sets if i in group) for i in range(6)]
    assert holm(p.tolist()) == pytest.approx(expected, abs=1e-15)


def test_holm_takes_empty_lists_and_refuses_invalid_probabilities():
    assert holm([]) == [] and holm([0.3]) == [0.3] and holm([1, 1]) == [1, 1]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="probabilities"):
            holm([0.5, wrong])


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

"""Plans: what they promise holds in fresh studies, and both sources agree."""

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.inference import fewest_clusters, plan, sign_flips
from attacks.inference.bounded import interval
from attacks.inference.plan import (
    POWER,
    clusters_for_bar,
    clusters_for_difference,
    flip_power,
    further_clusters,
    pilot_samples,
    rate_samples,
)


def normal_samples(effect):
    return np.random.default_rng(0).normal(effect, 1, size=(plan.STUDIES, 200))


def t_power(effect, n):
    """Of a two-sided t test of normal differences, with a standard deviation of 1."""
    end, shift = scipy.stats.t.ppf(0.975, n - 1), effect * n**0.5
    return scipy.stats.nct.sf(end, n - 1, shift) + scipy.stats.nct.cdf(-end, n - 1, shift)


@pytest.mark.parametrize("effect", [0.6, 1.1])
def test_normal_differences_need_as_many_clusters_as_the_t_test(effect):
    expected = next(n for n in range(3, 300) if t_power(effect, n) >= POWER)
    assert abs(clusters_for_difference(normal_samples(effect)) - expected) <= max(1, 0.06 * expected)


def test_the_power_is_the_share_of_studies_that_the_test_finds():
    for n in (6, 14):
        studies = np.random.default_rng(n).normal(0.8, 1, size=(300, n))
        rows = map(torch.from_numpy, studies)
        expected = np.mean([sign_flips(row, torch.zeros_like(row)).p < 0.05 for row in rows])
        assert flip_power(studies) == pytest.approx(expected, abs=0.035)


@pytest.mark.slow
def test_fresh_studies_of_a_planned_size_are_decided_as_often_as_said():
    draw = rate_samples(0.9, 0.3, 64) - rate_samples(0.65, 0.3, 64, seed=1)
    n = clusters_for_difference(draw)
    studies = rate_samples(0.9, 0.3, 64, seed=8) - rate_samples(0.65, 0.3, 64, seed=9)
    rows = [torch.from_numpy(row) for row in studies[:400, :n]]
    count = np.mean([sign_flips(row, torch.zeros_like(row)).p < 0.05 for row in rows])
    assert count >= POWER - 3 * 0.02 and flip_power(draw[:, : n - 1]) < POWER


@pytest.mark.parametrize("rate", [0.02, pytest.param(0.3, marks=pytest.mark.slow)])
def test_fresh_intervals_of_a_planned_size_exclude_a_bar_as_often_as_said(rate):
    n = clusters_for_bar(rate_samples(rate, 0.3, 64), bar=rate + 0.2)
    rows = map(torch.from_numpy, rate_samples(rate, 0.3, 64, seed=8)[:200, :n])
    assert np.mean([interval(row).high < rate + 0.2 for row in rows]) >= POWER - 3 * 0.035


def test_more_effect_needs_fewer_clusters():
    needed = [clusters_for_difference(normal_samples(effect)) for effect in (0.6, 1, 2, 5)]
    assert needed == sorted(needed, reverse=True) and needed[-1] == fewest_clusters()
    samples = rate_samples(0.02, 0.3, 64)
    bars = [clusters_for_bar(samples, bar) for bar in (0.3, 0.6)]
    assert bars == sorted(bars, reverse=True) and bars[0] > bars[-1]


@pytest.mark.slow
def test_rates_and_a_pilot_from_them_need_as_many_clusters():
    shares = [rate_samples(rate, 0.3, 64, seed)[:, 0] for rate, seed in ((0.9, 5), (0.65, 6))]
    pilot = pilot_samples(torch.from_numpy(shares[0] - shares[1]), mean=0.25)
    assert pilot[:, :20].mean() == pytest.approx(0.25, abs=0.005)
    rates = rate_samples(0.9, 0.3, 64) - rate_samples(0.65, 0.3, 64, seed=1)
    assert clusters_for_difference(pilot) == pytest.approx(clusters_for_difference(rates), abs=1)


def test_samples_have_their_mean_and_correlation():
    samples = rate_samples(0.8, 0.25, 100)
    assert samples.mean() == pytest.approx(0.8, abs=0.002)
    assert samples.var() == pytest.approx(0.16 * (0.25 + 0.75 / 100), rel=0.01)
    pilot = pilot_samples(torch.tensor([0.2, 0.9, 0.9, 1.0]), mean=0.95)  # within its bounds
    assert pilot.max() <= 1 and pilot.mean() == pytest.approx(0.95, abs=0.003)
    assert (rate_samples(1, 0.25, 10) == 1).all() and rate_samples(0.5, 0, 64).var() < 0.25 / 60


@pytest.mark.parametrize("sequential", [False, True])
def test_further_clusters_are_those_with_which_the_interval_excludes_the_bar(sequential):
    values = torch.tensor([0.1, 0.9, 0.25, 0.5, 0.0, 0.25])  # their mean is a third
    more = further_clusters(values, 0.5, 0, 1, sequential=sequential)
    repeated = torch.from_numpy(np.resize(values.numpy(), 6 + more))
    assert interval(repeated, sequential=sequential).high < 0.5
    assert more > further_clusters(values, 0.7, 0, 1, sequential=sequential)
    assert more > further_clusters(values, 0.5, 0, 1) or not sequential
    assert further_clusters(values, 0.5, 0, 1, torch.ones(6), sequential) == more
    weights = torch.where(values >= 0.5, 1.0, 0.1)  # their mean is above 0.5
    assert further_clusters(values, 0.5, 0, 1, weights, sequential) != more


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: pilot_samples(torch.tensor([0.1])), "at least 2 clusters; got 1"),
        (lambda: pilot_samples(torch.tensor([0.1, float("nan")])), "finite values"),
        (lambda: clusters_for_difference(pilot_samples(torch.tensor([-1.0, 1.0]), 0.02)), "1000 clusters decide it"),
    ],
)
def test_impossible_plans_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()

"""Paired tests against scipy, Holm against the closed test."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.intervals import interval
from attacks.evaluation.significance import holm, least_p, mcnemar, paired, paired_shares, sign_flip
from tests.evaluation.test_coverage import VIEWS, held, hits


def some(n, seed=0, shift=0.3):
    return shift + torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_paired_difference_is_that_of_each_picture_in_each_view():
    one, other = some(60).view(12, 5), some(60, seed=1).view(12, 5)
    assert paired(one, other) == interval(one - other)
    level = 100 * some(12, seed=2)[:, None]  # the common level of the arms cancels
    assert paired(one + level, other + level) == pytest.approx(paired(one, other), abs=1e-9)
    with pytest.raises(ValueError, match="pairs"):
        paired(one, other[:, :1])


def test_the_difference_of_shares_of_one_view_equals_newcombe():
    # 50 pairs: on 36 both succeed, on 12 only the first, on 2 only the other (Newcombe 1998, table II, method 10).
    one, other = torch.tensor([1.0] * 48 + [0.0] * 2), torch.tensor([1.0] * 36 + [0.0] * 12 + [1.0] * 2)
    assert paired_shares(one, other, 1) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)
    forward, backward = paired_shares(one, other, 8), paired_shares(other, one, 8)
    assert forward == pytest.approx((-backward.mean, -backward.high, -backward.low), abs=1e-12)
    assert paired_shares(one, one, 8)[0] == 0
    with pytest.raises(ValueError, match="pairs"):
        paired_shares(one, other[:3], 8)


@pytest.mark.parametrize("pictures", [10, 20])
@pytest.mark.parametrize(("rates", "alike"), [((0.98, 0.01), 0.3), ((0.95, 0.9), 0.6)])
def test_differences_of_shares_have_coverage_where_a_bootstrap_has_not(pictures, rates, alike):
    random = np.random.default_rng(0)
    one, other = (torch.from_numpy(hits(random, 400, pictures, p, alike)) for p in rates)
    ours, theirs = ([result(*each) for each in zip(one, other, strict=True)] for result in (of_shares, paired_means))
    truth = rates[0] - rates[1]
    assert held(truth, *zip(*[each[1:] for each in ours], strict=True)) >= 0.93
    assert held(truth, *zip(*[each[1:] for each in theirs], strict=True)) < 0.9
    assert all(-1 <= low <= mean <= high <= 1 and low < high for mean, low, high in ours)


@pytest.mark.parametrize("pictures", [2, 3])
def test_differences_of_shares_of_very_few_pictures_are_wide(pictures):
    # Two pictures are always fully correlated, which alone gives a coverage of 0.80.
    random = np.random.default_rng(0)
    level = random.beta(0.6, 0.4, size=(600, pictures))
    one, other = (torch.from_numpy(random.binomial(VIEWS, each) / VIEWS) for each in (level, level**1.5))
    truth = float((random.beta(0.6, 0.4, 10**6) ** 1.5).mean())
    result = [of_shares(*each) for each in zip(one, other, strict=True)]
    assert held(0.6 - truth, *zip(*[each[1:] for each in result], strict=True)) >= 0.95


def of_shares(one, other):
    return paired_shares(one, other, VIEWS)


def paired_means(one, other):
    return paired(one[:, None], other[:, None])


@pytest.mark.parametrize("n", [1, 2, 8, 12, 40])
def test_least_p_is_the_smallest_p_value(n):
    assert sign_flip(torch.linspace(1, 2, n, dtype=torch.float64)) == pytest.approx(least_p(n), rel=1e-12)


@pytest.mark.parametrize("only", [(0, 0), (0, 5), (1, 9), (4, 4), (30, 51), (700, 800)])
def test_mcnemar_equals_the_binomial_test_of_discordant_pictures(only):
    first, second = only
    one = torch.tensor([1] * first + [0] * second + [1, 1, 0], dtype=torch.bool)
    other = torch.tensor([0] * first + [1] * second + [1, 1, 0], dtype=torch.bool)
    wanted = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(one, other) == pytest.approx(wanted, rel=1e-9) == mcnemar(other, one)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_all_sign_flips_are_enumerated_up_to_twelve_pictures(n):
    values = some(n)
    theirs = scipy.stats.permutation_test((values.numpy(),), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(values) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_rounding_does_not_break_ties_of_sums():
    assert sign_flip(torch.tensor([0.1, 0.2, 0.3, 0.1])) == sign_flip(torch.tensor([1, 2, 3, 1.0]))


def test_random_flips_approximate_all_flips():
    values = some(16, shift=0.4)
    signs = 2 * ((torch.arange(2**16)[:, None] >> torch.arange(16)) % 2) - 1
    wanted = float(((signs.double() @ values).abs() >= float(values.sum().abs()) - 1e-9).double().mean())
    assert sign_flip(values) == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / 10_000) ** 0.5 + 1e-4)


@pytest.mark.parametrize("n", [5, 30])
def test_a_p_value_does_not_depend_on_sign_or_scale(n):
    values = some(n)
    assert sign_flip(values, 3) == sign_flip(-values, 3) == sign_flip(1000 * values, 3)


def test_equal_arms_have_p_one_and_p_is_never_zero():
    assert sign_flip(torch.ones(1)) == sign_flip(torch.zeros(20)) == sign_flip(torch.zeros(3)) == 1
    assert sign_flip(torch.ones(100)) == 1 / 10_001 and sign_flip(torch.ones(10)) == 2 / 1024
    with pytest.raises(ValueError, match="finite"):
        sign_flip(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_the_closed_bonferroni_test(seed):
    p = np.random.default_rng(seed).random(6) ** 3
    p[4] = p[1]
    sets = [group for size in range(1, 7) for group in combinations(range(6), size)]
    wanted = [max(min(1, len(group) * p[list(group)].min()) for group in sets if i in group) for i in range(6)]
    assert holm(p.tolist()) == pytest.approx(wanted, abs=1e-15)


def test_holm_takes_empty_lists_and_refuses_invalid_probabilities():
    assert holm([]) == [] and holm([0.3]) == [0.3] and holm([1, 1]) == [1, 1]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="probabilities"):
            holm([0.5, wrong])

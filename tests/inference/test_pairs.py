"""Sign flips against brute force and scipy, their interval against its inversion, and their agreement."""

from itertools import product

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.inference import fewest_clusters, least_p, pairs, sign_flips

differences = st.lists(
    st.sampled_from([0.0, 0.1, -0.1, 0.25, 1.0]) | st.floats(-1, 1).map(lambda x: round(x, 6)),
    min_size=1,
    max_size=22,
)


def flips_of(values, tests=1):
    """The comparison of arms with these differences."""
    first = torch.tensor(values, dtype=torch.float64)
    return sign_flips(first, torch.zeros_like(first), tests)


def enumeration(values):
    """p by all choices of signs."""
    values = np.asarray(values, dtype=float)
    sums = np.array([*product((-1, 1), repeat=len(values))]) @ values
    return np.mean(np.abs(sums) >= abs(values.sum()) - 1e-12 * np.abs(values).sum())


def ties(n):
    random = np.random.default_rng(n)
    return [0.3 + random.normal(size=n), (0.5 + random.normal(size=n)).round(), random.choice([0, 0.1, 0.3], n)]


@pytest.mark.parametrize("n", [6, 7, 9, 12])
def test_p_is_the_share_of_all_choices_of_signs(n):
    for values in (*ties(n), [-x for x in ties(n)[0]], np.full(n, 0.1), np.zeros(n)):
        result = flips_of(values)
        assert result.p == pytest.approx(enumeration(values), abs=1e-12)
        theirs = scipy.stats.permutation_test(
            (np.round(values, 12),), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="greater"
        )
        assert result.positive == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize("n", [6, 8, 10])
def test_the_interval_holds_the_centres_that_brute_force_does_not_reject(n):
    for values in ties(n):
        low, high = flips_of(values).difference[1:3]
        for centre in np.linspace(values.min() - 0.1, values.max() + 0.1, 60):
            if min(abs(centre - low), abs(centre - high)) > 1e-9:
                assert (enumeration(values - centre) < 0.05) == (not low <= centre <= high)
        assert enumeration(values - low) >= 0.05 and enumeration(values - high) >= 0.05


@settings(max_examples=600, deadline=None)
@given(differences, st.sampled_from([1, 1, 2, 6, 21]))
def test_p_is_below_the_level_exactly_where_the_interval_excludes_zero(values, tests):
    (mean, low, high, kind), p, needed, negative, positive = flips_of(values, tests)
    assert low <= mean <= high and min(negative, positive) > 0 and negative + positive >= 1
    if p is None:
        assert kind == "range" and (low, high) == (min(values), max(values))
        assert len(values) < needed == fewest_clusters(tests)
    else:
        assert kind == "interval" and needed is None and len(values) >= fewest_clusters(tests)
        assert (p < 0.05) == (not low <= 0 <= high)
        assert p == pytest.approx(min(1, 2 * tests * min(negative, positive)))


@settings(max_examples=100, deadline=None)
@given(differences, st.sampled_from([-0.75, 0.5]), st.sampled_from([0.5, 4.0]))
def test_laws_of_a_comparison(values, shift, scale):
    (mean, low, high, _), p, _, negative, positive = flips_of(values)
    mirrored = flips_of([-x for x in values])
    assert mirrored.difference[:3] == pytest.approx((-mean, -high, -low), abs=1e-12) and mirrored.p == p
    assert (mirrored.negative, mirrored.positive) == (positive, negative)
    scaled = flips_of([scale * x for x in values])
    assert scaled.difference[:3] == pytest.approx((scale * mean, scale * low, scale * high), abs=1e-12)
    assert scaled.p == p
    if len(values) <= pairs.EXACT:
        assert flips_of(values[::-1]).p == p
        shift_test = flips_of([x + shift for x in values]).difference
        assert shift_test[:3] == pytest.approx((mean + shift, low + shift, high + shift), abs=1e-9)


@pytest.mark.parametrize("n", [9, 16, 30])
def test_several_tests_multiply_p_and_widen_the_interval(n):
    values = 0.4 + np.random.default_rng(n).normal(size=n)
    results = [flips_of(values, tests) for tests in (1, 2, 6, 12)]
    for tests, result in zip((1, 2, 6, 12), results, strict=True):
        assert result.p is None or result.p == min(1, tests * results[0].p)
    lows, highs = zip(*(result.difference[1:3] for result in results), strict=True)
    assert list(lows) == sorted(lows, reverse=True) and list(highs) == sorted(highs) and lows[1] < lows[0]


@pytest.mark.parametrize("tests", [1, 6, 49, 500])
def test_needed_clusters_are_the_fewest_that_can_be_below_the_level(tests):
    n = fewest_clusters(tests)
    assert flips_of(np.ones(n), tests).p < 0.05
    short = flips_of(np.ones(n - 1), tests)
    assert (short.p, short.needed, short.difference.kind) == (None, n, "range")


def test_random_flips_approximate_all_choices(monkeypatch):
    values = 0.4 + np.random.default_rng(2).normal(size=18)
    sample = flips_of(values)
    monkeypatch.setattr(pairs, "EXACT", 18)
    exact = flips_of(values)
    assert 0.005 < exact.p < 0.2
    assert 0 < abs(sample.p - exact.p) < 4 * (2 * exact.p / pairs.FLIPS) ** 0.5
    assert sample.difference[:3] == pytest.approx(exact.difference[:3], abs=0.02)


@pytest.mark.parametrize("n", [6, 16, 17, 100])
def test_equal_arms_have_p_one_and_no_width(n):
    assert flips_of(np.zeros(n))[:2] == ((0, 0, 0, "interval"), 1)
    assert flips_of(np.full(n, 0.1)).p == flips_of(np.linspace(1, 2, n)).p == least_p(n)  # sums of 0.1 are not apart


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.ones(10), torch.ones(3), r"must be pairs; got shapes \(10,\) and \(3,\)"),
        (torch.ones(10, 2), torch.ones(10, 2), "must be pairs"),
        (torch.ones(0), torch.ones(0), "must be pairs"),
        (torch.tensor([1.0, float("nan")]), torch.ones(2), "must be finite numbers"),
        (torch.tensor([1.0, float("inf")]), torch.ones(2), "must be finite numbers"),
    ],
)
def test_what_is_no_pair_of_arms_is_refused(first, second, message):
    with pytest.raises(ValueError, match=message):
        sign_flips(first, second)

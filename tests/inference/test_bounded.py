"""The interval of a bounded mean: its error by enumeration, an independent slow copy, and its laws."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.inference import bounded, interval, missable_share, rate
from attacks.inference.bounded import LIMIT, Interval, independent_difference, is_above, log_capital, median, quantile

values_of_some_clusters = st.lists(st.sampled_from([0, 0, 1, 0.5, 0.25]) | st.floats(0, 1), min_size=1, max_size=30)


def ends(values, *span, **options):
    return interval(torch.tensor(values, dtype=torch.float64), *span, **options)[:3]


def binary(hits, n):
    return np.array([1.0] * hits + [0.0] * (n - hits))


# --- The error, by enumeration and simulation


@pytest.mark.parametrize("usual", [0, 0.05, 0.3])
@pytest.mark.parametrize("n", [1, 2, 5, 10, 29, 30])
def test_each_end_misses_the_mean_with_at_most_two_and_a_half_percent(n, usual):
    """All n photographs have the `usual` value, but for a share of 1: all outcomes, for many shares."""
    shares = np.r_[np.geomspace(1e-6, 0.02, 40), np.linspace(0.02, 0.98, 97), 1 - np.geomspace(0.02, 1e-6, 40)]
    _, low, high = np.transpose([ends(np.where(binary(hits, n), 1, usual)) for hits in range(n + 1)])
    chances = scipy.stats.binom.pmf(np.arange(n + 1), n, shares[:, None])
    truth = usual + (1 - usual) * shares[:, None]
    for wrong in (low > truth, high < truth):
        assert (chances * wrong).sum(1).max() <= 0.025


@pytest.mark.parametrize("n", [4, 12, 30, 75, 150, 200, 400, 3000])
def test_an_interval_of_hits_holds_clopper_and_pearsons_and_has_a_bounded_width(n):
    """Of values 0 and 1, to hold theirs is an error of 2.5 % for all rates. One hit in many is the hardest case."""
    for hits in {*range(1, min(7, n)), n // 4, n // 2, n - 1}:
        exact = scipy.stats.binomtest(hits, n).proportion_ci(0.95, "exact")
        _, low, high = ends(binary(hits, n))
        assert low <= exact.low and exact.high <= high
        assert high - low <= 2.3 * (exact.high - exact.low)


@pytest.mark.parametrize(("sizes", "tests"), [((6, 9), 1), ((9, 12), 3), ((2, 30), 1)])
def test_a_difference_of_independent_groups_misses_with_at_most_the_error_of_an_end(sizes, tests):
    """Groups of values 0 and 1: all outcomes, for many pairs of rates, rare ones among them."""
    rates = np.r_[np.geomspace(1e-4, 0.1, 8), np.linspace(0.15, 1, 18)]
    first, second = (scipy.stats.binom.pmf(np.arange(n + 1), n, rates[:, None]) for n in sizes)
    hits = [[torch.from_numpy(binary(count, n)) for count in range(n + 1)] for n in sizes]
    results = np.array([[independent_difference(x, y, tests=tests)[:3] for y in hits[1]] for x in hits[0]])
    truth = (rates[:, None] - rates)[..., None, None]
    for wrong in (results[..., 1] > truth + 1e-9, results[..., 2] < truth - 1e-9):
        assert np.einsum("ia,jb,ijab->ij", first, second, wrong).max() <= 0.025 / tests


def test_a_sequence_holds_at_all_looks_at_once():
    random = np.random.default_rng(0)
    for truth, draw in ((0.25, lambda: random.beta(0.5, 1.5, 120)), (0.05, lambda: random.random(120) < 0.05)):
        wrong = 0
        for _ in range(600):
            values = np.sort(draw()).astype(float)  # by difficulty; the order of attack is a shuffled one
            random.shuffle(values)
            wrong += log_capital(truth, values[None], np.ones((1, 120)), True) > LIMIT
        assert wrong / 600 <= 0.025 + 3 * (0.025 * 0.975 / 600) ** 0.5


def test_the_sequence_of_some_values_holds_that_of_more_and_is_wider_than_the_interval():
    values = torch.from_numpy(np.random.default_rng(1).beta(2, 1, 60))
    looks = [interval(values[:n], sequential=True) for n in (5, 20, 60)]
    assert all(a.low <= b.low + 1e-9 and b.high <= a.high + 1e-9 for a, b in pairwise(looks))
    assert looks[-1].high - looks[-1].low > interval(values).high - interval(values).low


def test_the_weighted_mean_is_within_the_error_where_weights_and_values_agree():
    random, wrong = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        heavy = random.random(25) < 0.3  # they fail more often: the weighted mean is (.3 * .6 + .7 * .25 * .2) / .475
        x, w = (random.random(25) < np.where(heavy, 0.6, 0.2)).astype(float), np.where(heavy, 1, 0.25)
        _, low, high = ends(x, weights=torch.from_numpy(w))
        truth = (0.3 * 0.6 + 0.7 * 0.25 * 0.2) / (0.3 + 0.7 * 0.25)
        wrong += low > truth, high < truth
    assert (wrong / 200 <= 0.025 + 3 * (0.025 * 0.975 / 200) ** 0.5).all()


# --- An independent copy


def slow_capital(mean, values, horizon):
    """The logarithm of the capital after each value, by Waudby-Smith & Ramdas (2023), equations 23 to 26."""
    capital, total, squares, capitals = 1.0, mean, mean * (1 - mean), []
    for t, value in enumerate(values, start=1):
        bet = math.sqrt(2 * math.log(40) / (squares / t) / horizon(t))
        capital *= 1 + min(bet, 0.97 / mean) * (value - mean)
        total += value
        squares += (value - total / (t + 1)) ** 2
        capitals.append(math.log(capital))
    return capitals


@pytest.mark.parametrize("n", [1, 2, 9, 30])
def test_the_capital_is_that_of_the_paper(n):
    values = np.random.default_rng(n).beta(0.4, 0.8, n)
    rows, ones = np.stack([values, values[::-1]]), np.ones((2, n))
    for mean in (1e-4, 0.1, 0.4, 0.9):
        final = [slow_capital(mean, row, lambda t: n)[-1] for row in rows]
        assert log_capital(mean, rows, ones, False) == pytest.approx(math.log(np.exp(final).mean()), abs=1e-9)
        running = slow_capital(mean, values, lambda t: t * math.log(t + 1))
        assert log_capital(mean, rows[:1], ones[:1], True) == pytest.approx(max(running), abs=1e-9)


# --- Laws


@settings(max_examples=60, deadline=None)
@given(values_of_some_clusters, st.booleans())
def test_laws_of_an_interval(values, sequential):
    mean, low, high = ends(values, sequential=sequential)
    assert 0 <= low <= mean <= high <= 1 and mean == pytest.approx(np.mean(values), abs=1e-12)
    mirrored = ends([1 - value for value in values], sequential=sequential)
    assert mirrored == pytest.approx((1 - mean, 1 - high, 1 - low), abs=1e-7)
    stretch = ends([5 * value - 2 for value in values], -2, 3, sequential=sequential)
    assert stretch == pytest.approx((5 * mean - 2, 5 * low - 2, 5 * high - 2), abs=1e-6)
    ones = torch.ones(len(values), dtype=torch.float64)
    assert ends(values, weights=ones, sequential=sequential) == (mean, low, high)
    assert sequential or low < high  # never without a width, whatever the values agree on


@pytest.mark.parametrize("n", [5, 30, 100, 400])
def test_the_order_of_the_values_hardly_matters(n):
    random = np.random.default_rng(n)
    for values in (random.beta(2, 2, n), random.random(n) < 0.2, np.where(random.random(n) < 0.1, 1, 0.05)):
        low, high = np.transpose([ends(random.permutation(values).astype(float))[1:] for _ in range(8)])
        assert max(np.ptp(low), np.ptp(high)) < 0.1 * (high - low).mean()


@settings(max_examples=60, deadline=None)
@given(values_of_some_clusters, st.booleans(), st.integers(0, 10))
def test_the_capital_falls_with_the_mean(values, sequential, seed):
    order = np.random.default_rng(seed).permuted(np.tile(values, (3, 1)), axis=1)[: 1 if sequential else 3]
    means = np.r_[np.geomspace(1e-10, 0.01, 15), np.linspace(0.02, 0.99, 60)]
    capitals = [log_capital(mean, order, np.ones_like(order), sequential) for mean in means]
    assert (np.diff(capitals) <= 1e-9).all()


@pytest.mark.parametrize("values", [[0.9] * 3, [0.1, 0.2, 0.9, 0.8], [0.0] * 5, [1, 0.7]])
def test_more_values_alike_give_a_narrower_interval(values):
    widths = [high - low for _, low, high in (ends(values * times) for times in (1, 2, 5, 20, 80))]
    assert widths == sorted(widths, reverse=True) and widths[-1] < 0.35 * widths[0]


def test_weights_count_as_parts_of_a_cluster():
    random = np.random.default_rng(0)
    x, w = random.random(15), random.integers(1, 5, 15) / 4
    mean, low, high = ends(x, weights=torch.from_numpy(w))
    assert mean == pytest.approx(np.average(x, weights=w)) == pytest.approx(np.repeat(x, (4 * w).astype(int)).mean())
    _, low_of_repeats, high_of_repeats = ends(np.repeat(x, (4 * w).astype(int)))
    assert low < low_of_repeats and high_of_repeats < high  # parts of a cluster are not further clusters
    top = int(x.argmax())
    means = [
        ends(x, weights=torch.from_numpy(np.where(np.arange(15) == top, pull, 0.2)))[0] for pull in (0.2, 0.4, 1)
    ]
    assert means == sorted(means) and means[0] == pytest.approx(x.mean()) and means[0] < means[2]


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 12, 30, 100])
@pytest.mark.parametrize("means", [(0.5, 0.05), (0.9, 0.1), (0.02, 0.9), (1, 0)])
def test_strata_of_fixed_sizes_are_missed_as_seldom(n, means):
    """Half of the photographs are from the stratum with ten elevenths of the traffic."""
    heavy = np.arange(n) < n // 2
    weights, rates = np.where(heavy, 1.0, 0.1), np.where(heavy, *means)
    truth, studies = np.average(rates, weights=weights), 300 if max(means) < 1 else 1
    samples = (np.random.default_rng(n).random((studies, n)) < rates).astype(float)
    for side in (0, 1):
        errors = np.mean([is_above(abs(side - x), abs(side - truth), weights) for x in samples])
        assert errors <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / studies) * (studies > 1)


def test_the_views_of_a_single_cluster_are_its_units():
    values = torch.rand(1, 40, dtype=torch.float64)
    assert interval(values) == interval(values[0])
    assert interval(torch.stack([values[0, :20], values[0, 20:]])) == interval(values.view(2, 20).mean(1))
    assert rate(torch.tensor([0.75]), 40) == interval(torch.tensor([1.0] * 30 + [0.0] * 10))
    assert rate(torch.tensor([0.75]), torch.tensor([40])) == rate(torch.tensor([0.75]), 40)


def test_a_verdict_is_that_of_the_interval():
    random = np.random.default_rng(0)
    for n in (4, 15, 60):
        for x in random.beta(0.5, 0.5, (15, n)):
            _, low, high = ends(x)
            bars = np.r_[random.random(5), low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6].clip(1e-9, 1 - 1e-9)
            assert [is_above(x, bar) for bar in bars] == [bar < low for bar in bars]
            assert [is_above(1 - x, 1 - bar) for bar in bars] == [bar > high for bar in bars]


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1, 2], {}, r"`values` must be a tensor \(C,\) or \(C,V\) .*; got a list"),
        (torch.zeros(0), {}, r"`values` must be a tensor .*at least one value; got shape \(0,\)"),
        (torch.zeros(2, 2, 2), {}, r"`values` must be a tensor .*got shape \(2, 2, 2\)"),
        (torch.tensor(1.0), {}, r"`values` must be a tensor .*got shape \(\)"),
        (torch.tensor([0.5, math.nan]), {}, r"`values` must lie in 0..1; got nan"),
        (torch.tensor([0.5, 1.1]), {}, r"`values` must lie in 0..1; got 0.5 to 1.1"),
        (torch.tensor([-0.5, 1.0]), {"high": 2.0}, r"`values` must lie in 0..2; got -0.5 to 1"),
        (torch.ones(2), {"weights": torch.ones(3)}, "`weights` must be .* for each of 2 values"),
        (torch.ones(2), {"weights": torch.tensor([0.5, 0.0])}, "`weights` must be a number in 0..1, not 0"),
        (torch.ones(2), {"weights": torch.tensor([0.5, 1.5])}, "`weights` must be a number in 0..1"),
        (torch.ones(2), {"weights": torch.tensor([0.5, math.nan])}, "`weights` must be a number in 0..1"),
    ],
)
def test_wrong_values_are_an_error_in_one_line(values, options, message):
    with pytest.raises(ValueError, match=message):
        interval(values, **options)


def test_a_float32_beyond_its_span_by_rounding_is_at_its_end():
    assert ends([1 + 1e-7, 0.5]) == ends([1.0, 0.5])


@pytest.mark.parametrize("clusters", [1, 10, 59, 300])
def test_a_missable_share_is_missed_by_all_clusters_in_one_of_twenty_samples(clusters):
    assert scipy.stats.binom.pmf(0, clusters, missable_share(clusters)) == pytest.approx(0.05)
    assert missable_share(clusters) <= 3 / clusters


# --- Medians and quantiles


def test_quantiles_equal_numpy_and_lie_in_their_interval():
    random = np.random.default_rng(0)
    for n in (1, 4, 33, 512):
        values = random.normal(size=n)
        result, low, high, _ = quantile(torch.from_numpy(values), 0.1)
        assert result == pytest.approx(np.quantile(values, 0.1), abs=1e-12) and low <= result <= high
    results = [quantile(torch.from_numpy(row), 0.1) for row in random.random((150, 50))]  # the truth is 0.1
    assert np.mean([low <= 0.1 <= high for _, low, high, _ in results]) >= 0.9


def test_a_median_has_the_order_statistics_of_a_sign_test():
    values = np.random.default_rng(0).exponential(size=15)
    rank = int(scipy.stats.binom.ppf(0.025, 15, 0.5)) - 1
    rising = np.sort(values)
    assert median(torch.from_numpy(values)) == Interval(rising[7], rising[rank], rising[-1 - rank])
    assert median(torch.from_numpy(values[:5])) == Interval(*np.sort(values[:5])[[2, 0, 4]], "range")


def test_orders_do_not_depend_on_the_values_and_are_rotations_in_which_a_value_takes_all_places():
    for n in (3, 20, 64):
        orders, _, _ = bounded._orders(np.arange(float(n)), np.ones(n), False)
        assert (bounded._orders(np.arange(n)[::-1], np.ones(n), False)[0] == n - 1 - orders).all()
        assert 48 < len(orders) <= bounded.ORDERS and len(orders) % n == 0
        assert (np.sort(orders, axis=0) == np.arange(n).repeat(len(orders) // n)[:, None]).all()
    assert len(bounded._orders(np.arange(5000.0), np.ones(5000), False)[0]) == bounded.FEWEST_ORDERS

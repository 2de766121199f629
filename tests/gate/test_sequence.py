"""Confidence sequences: against the capital computed step by step, and coverage at every look."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.gate.decide import ALPHA, BOLDEST, GRID, confidence_sequence


def capital(values, m, sign):
    """The largest capital so far of a gambler on values above (1) or below (-1) m; the formula, a bet at a time."""
    money, peak, total, squares = 1.0, 1.0, 0.5, 0.25
    for t, x in enumerate(values, 1):
        variance = squares / t if t > 1 else 0.25
        bet = math.sqrt(2 * math.log(1 / ALPHA) / (variance * t * math.log1p(t)))
        room = m if sign > 0 else 1 - m
        money *= 1 + sign * (min(bet, BOLDEST / room) if room else bet) * (x - m)
        peak = max(peak, money)
        total += x
        squares += (x - total / (t + 1)) ** 2
    return peak


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9, 1.0])
def test_the_ends_are_where_the_capital_reaches_its_limit(rate):
    values = np.random.default_rng(0).binomial(10, rate, 60) / 10
    lows, highs = confidence_sequence(values)
    step = 1 / (GRID - 1)
    if lows[-1]:
        assert capital(values, lows[-1], 1) >= 1 / ALPHA > capital(values, lows[-1] + step, 1)
    if highs[-1] < 1:
        assert capital(values, highs[-1], -1) >= 1 / ALPHA > capital(values, highs[-1] - step, -1)
    assert lows[-1] > 0 or highs[-1] < 1


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), max_size=40))
def test_ends_only_close_in_and_mirror(values):
    lows, highs = confidence_sequence(np.array(values))
    assert lows[0] == 0 and highs[0] == 1 and len(lows) == len(values) + 1
    assert (np.diff(lows) >= 0).all() and (np.diff(highs) <= 0).all()
    mirrored = confidence_sequence(1 - np.array(values))
    assert np.abs(mirrored[0] - (1 - highs)).max() <= 2 / (GRID - 1)


@pytest.mark.nightly
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_each_side_misses_the_mean_at_any_look_in_at_most_a_fortieth(rate):
    random = np.random.default_rng(1)
    runs = [confidence_sequence(random.beta(rate, 1 - rate, 200)) for _ in range(600)]
    assert np.mean([(low > rate).any() for low, _ in runs]) <= ALPHA + 0.013  # 2 standard errors
    assert np.mean([(high < rate).any() for _, high in runs]) <= ALPHA + 0.013


def test_values_outside_0_to_1_are_refused():
    with pytest.raises(ValueError, match=r"`values` must lie in 0..1; got -0.1"):
        confidence_sequence(np.array([-0.1, 0.5]))

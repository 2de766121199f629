"""The benchmark of workers computes efficiency."""

import pytest

from scripts.benchmarks import workers


def test_efficiency_is_the_serial_time_over_the_total_core_time():
    one, two = [(30, 29), (99, 99), (28, 1)], [(17, 33)]
    times = {1: [workers.Time(*each) for each in one], 2: [workers.Time(*each) for each in two]}
    rows = workers.table(times, "").rows
    assert rows["workers=1"] == (30, 1, 29) and rows["workers=2"] == (17, pytest.approx(30 / (2 * 17)), 33)

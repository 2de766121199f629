"""The benchmark of the ledger reads the states of its units, and computes speed and efficiency."""

import pytest

from attacks.runtime.ledger import Ledger
from scripts.benchmarks import ledger as bench


def test_states_show_the_first_claim_and_the_last_unit(tmp_path):
    assert bench.states(tmp_path) == (0, 0, 0)
    with Ledger(tmp_path / "ledger.sqlite", ["a", "b", "c"], 2) as ledger:
        assert bench.states(tmp_path)[2] == 0
        first = ledger.claim()
        assert bench.states(tmp_path) == (0, 1, 1)
        ledger.done(first)
        second = ledger.claim()
        assert bench.states(tmp_path) == (1, 2, 2)
        ledger.done(second)
        assert bench.states(tmp_path) == (bench.DONE, bench.DONE, 2)


def test_efficiency_is_the_serial_time_over_the_total_core_time():
    one, two = [bench.Time(30, 20, 29), bench.Time(99, 99, 99), bench.Time(28, 18, 1)], [bench.Time(17, 10, 33)]
    rows = bench.table(
        {"one process": one, "two on one ledger": two, "two runs at once": [bench.Time(40, 25, 60)]}, ""
    ).rows
    assert rows["one process"] == (20, 1, 30, 1, 29)
    assert rows["two on one ledger"] == (10, pytest.approx(20 / (2 * 10)), 17, pytest.approx(30 / (2 * 17)), 33)
    assert rows["two runs at once"] == (25, pytest.approx(20 / 25), 40, pytest.approx(30 / 40), 60)

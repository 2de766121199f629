"""The benchmarks of a hash that can only be asked, in small."""

import numpy as np
import pytest

from attacks.solvers.checks import Silent
from scripts.benchmarks import asked, decisions
from scripts.benchmarks.contest import installed


@pytest.mark.slow
def test_it_counts_bits_beside_the_white_box():
    (table,) = asked.run(pictures=1, queries=(40,), size=32)
    assert table.rows["white box"][1] == 1
    assert 0 < table.rows["ours, nes"][0] <= table.rows["white box"][0] + 8
    assert isinstance(table.rows["ART SquareAttack"], str) != installed("art")


@pytest.mark.slow
def test_decisions_are_counted_alike():
    with pytest.warns(Silent, match="no probe has changed the loss"):  # decisions are too coarse for NES
        tables = decisions.run(pictures=1, queries=(60,), size=32)
    assert [table.rows["ours, nes"][1] > 0 for table in tables] == [True, True]
    assert all(isinstance(table.rows["ART HopSkipJump"], str) != installed("art") for table in tables)


def test_a_dhash_compares_neighbouring_means():
    ramp = np.repeat(np.linspace(0, 255, 36).astype(np.uint8)[None, None, :, None], 16, 1).repeat(3, 3)
    assert (decisions.dhash(ramp) == 1).all() and (decisions.dhash(ramp[:, :, ::-1].copy()) == -1).all()

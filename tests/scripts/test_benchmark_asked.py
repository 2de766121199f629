"""The benchmark of a hash that can only be asked, in small."""

import pytest

from scripts.benchmarks import asked
from scripts.benchmarks.contest import installed


@pytest.mark.slow
def test_it_counts_bits_beside_the_white_box():
    (table,) = asked.run(pictures=1, queries=(40,), size=32)
    assert table.rows["white box"][1] == 1
    assert 0 < table.rows["ours, nes"][0] <= table.rows["white box"][0] + 8
    assert isinstance(table.rows["ART SquareAttack"], str) != installed("art")

"""Second patches against first ones, on a few pairs."""

import pytest

from scripts.benchmarks import next_patch


@pytest.mark.nightly
def test_the_second_patch_is_stronger_in_new_photographs():
    (table,) = next_patch.run(inks=2, seeds=2, poses=10, calibration=8)
    first, second, difference, *_ = table.rows["4 pairs"]
    assert difference == pytest.approx(second - first) and difference > 0

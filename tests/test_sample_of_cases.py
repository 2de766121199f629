"""`--cases N` runs a sample of the cases of each test."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import spread


@given(count=st.integers(1, 300), most=st.integers(1, 10))
def test_a_sample_is_never_empty_has_both_ends_and_is_evenly_spread(count, most):
    kept = spread(list(range(count)), most)
    assert len(kept) == len({*kept}) == min(count, most) and kept == sorted(kept)
    assert kept[0] == 0 and (kept[-1] == count - 1 or most == 1)
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps, default=0) - min(gaps, default=0) <= 1

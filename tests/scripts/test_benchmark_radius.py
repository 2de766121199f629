"""The benchmark of smallest radii."""

import pytest

from scripts.benchmarks import radius


@pytest.mark.slow
def test_the_search_keeps_to_three_runs_and_its_tables_have_every_contestant():
    alone, seen = radius.run(norm=("l2",), pictures=2, steps=3, views=2)
    assert "one search" in alone.rows and len(alone.rows) > 1  # a peer, or that there is none
    ours, theirs = seen.rows["one search"], seen.rows["bisection, 8 runs"]
    assert ours[0] <= 3 and theirs[0] == 8
    assert theirs[3] == 1  # the ratio to itself

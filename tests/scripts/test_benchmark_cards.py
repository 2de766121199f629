"""Photographs of a card that are scored, on a few of each kind."""

import pytest

from scripts.benchmarks import cards


@pytest.mark.nightly
def test_photographs_of_the_patch_are_scored_and_those_of_anything_else_are_not():
    prints, harder, hard, screens, other = cards.run(photos=1, kind_photos=4, harder_photos=1, hard_photos=4)
    assert prints.rows["all"][0] == prints.rows["all"][1] == 4
    assert screens.rows["all"][0] == 2
    assert hard.rows["all"][:2] == (4, 4), hard.notes
    assert harder.rows["all"][0] >= 3 and len(other.rows) == 11
    assert other.rows["all"][0] == 0, other.notes

"""Which pictures a shared perturbation is made from, and which it is judged on."""

import itertools

import pytest

from attacks.data.split import FIT, JUDGE, assign_split, rows_at_once

NAMES = [f"{cluster}-{i}" for cluster in range(12) for i in range(2)]
CLUSTERS = [name.split("-")[0] for name in NAMES]


@pytest.mark.parametrize("words", [(), tuple(FIT if int(cluster) < 7 else JUDGE for cluster in CLUSTERS)])
def test_fewer_fit_clusters_are_some_of_more_and_the_judged_ones_stay(words):
    full = assign_split(NAMES, CLUSTERS, 3, words)
    fits = [assign_split(NAMES, CLUSTERS, 3, words, limit) for limit in (1, 2, 5, 6)]
    draws = [{c for c, word in zip(CLUSTERS, split, strict=True) if word == FIT} for split in fits]
    assert [len(clusters) for clusters in draws] == [1, 2, 5, 6]
    assert all(small < large for small, large in itertools.pairwise(draws))
    for split in fits:
        assert [word == JUDGE for word in split] == [word == JUDGE for word in full]
        assert all(word in ("", word_of_all) for word, word_of_all in zip(split, full, strict=True))
    with pytest.raises(ValueError, match="got 8, and there are"):
        assign_split(NAMES, CLUSTERS, 3, words, 8)
    with pytest.raises(ValueError, match="no cluster is held out"):
        assign_split(NAMES[:18], CLUSTERS[:18], 3, (), 2)


def test_as_many_fit_pictures_as_held_out_ones_are_in_memory():
    words = [JUDGE] * 3 + [FIT] * 9 + [""]
    rows = rows_at_once(words, 0)
    assert rows[:3] == [0, 1, 2] and len({*rows}) == 6 and max(rows) < 12 and rows != rows_at_once(words, 1)
    assert rows_at_once(words[:5], 0) == [0, 1, 2, 3, 4] and rows_at_once([FIT] * 4, 0) == [0, 1, 2, 3]

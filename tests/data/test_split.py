"""Which clusters a shared perturbation is made from, and which it is judged on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks.data.listing import list_entries
from attacks.data.scene_table import read_table
from attacks.data.split import FIT, JUDGE, MIN_CLUSTERS, WORDS, assign_split


@given(clusters=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=90), seed=st.integers(0, 2**31))
def test_half_of_the_clusters_are_held_out_whole_or_none(clusters, seed):
    words = assign_split(clusters, clusters, seed)
    sides = {word: {c for c, item in zip(clusters, words, strict=True) if item == word} for word in WORDS}
    assert not sides[FIT] & sides[JUDGE] and len(words) == len(clusters)
    half = len({*clusters}) // 2
    assert len(sides[JUDGE]) == (half if half >= MIN_CLUSTERS else 0)
    assert words == assign_split(clusters, clusters, seed)
    names = [*map(str, range(99))]
    assert assign_split(names, names, seed) != assign_split(names, names, seed + 1)


@given(words=st.lists(st.sampled_from(WORDS), min_size=2, max_size=9), data=st.data())
def test_a_column_overrules_where_it_keeps_clusters_whole(words, data):
    clusters = [str(data.draw(st.integers(0, 4))) for _ in words]
    whole = len({*zip(clusters, words, strict=True)}) == len({*clusters})
    if whole and len({*words}) == 2:
        assert assign_split(clusters, clusters, 0, words) == tuple(words)
    else:
        with pytest.raises(ValueError, match=r"^`data.split` must be (the same for all|fit for some)"):
            assign_split(clusters, clusters, 0, words)


@pytest.mark.parametrize("word", ["fit", "judge", "", "Fit", "train", "fit "])
def test_the_words_of_a_column(tmp_path, word):
    (tmp_path / "list.csv").write_text(f"path,x,y,side\na.png,1,1,fit\nb.png,1,1,{word}\n")
    path = tmp_path / "list.csv"
    for read in (lambda: list_entries(path, "side")[0], lambda: [entry for entry, _ in read_table(path, "side")]):
        if word.strip() in WORDS:
            assert [entry.split for entry in read()] == ["fit", word.strip()]
        else:
            with pytest.raises(ValueError, match=r"line 3: `side`, the column of data.split, must be fit or judge"):
                read()
    assert {entry.split for entry in list_entries(tmp_path / "list.csv")[0]} == {None}
    with pytest.raises(ValueError, match=r"`data.split` names a column of a table"):
        list_entries(tmp_path, "side")

"""Picture sources: folders, lists and tables, and the errors and notes for unreadable files."""

import gc
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attacks.data.pictures
from attacks.data.images import load_image, save_image
from attacks.data.listing import list_entries
from attacks.data.pictures import SLENDER, read_files, square
from attacks.data.split import FIT, JUDGE, MIN_CLUSTERS, WORDS, assign_split
from attacks.data.table import COLUMNS
from attacks.schema.data import FolderConfig
from attacks.study.data import data
from tests.helpers.galleries import all_pictures, noise

SIZE = 20


@pytest.fixture
def mine(tmp_path):
    """Three pictures in a folder, two of the same name in two others."""
    for i, name in enumerate(("c.png", "a.png", "b.png", "p/x.png", "q/x.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_image(tmp_path / name, noise(i))
    return tmp_path


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def shelf_content(shelf):
    return shelf.names, shelf.digests, shelf.read(range(len(shelf)))


FORMS = {
    "list": ("x.txt", "a.png\nb.png\nc.png\n"),
    "comments": ("x.TXT", "# mine\n\n  a.png  \nb.png\n\t\n# more\nc.png"),
    "CRLF": ("x.txt", "a.png\r\nb.png\r\nc.png\r\n"),
    "CR": ("x.txt", "a.png\rb.png\rc.png"),
    "byte order mark": ("x.txt", "\ufeffa.png\nb.png\nc.png"),
    "other paths": ("x.txt", "./a.png\np/../b.png\nc.png"),
    "table": ("x.csv", "path\na.png\nb.png\nc.png\n"),
    "columns": ("x.csv", 'size,path,note\n1,a.png,"one, two"\n2,"b.png",\n\n3,c.png,"two\nlines"\n'),
    "table with byte order mark": ("x.csv", "\ufeffpath\r\na.png\r\nb.png\r\nc.png\r\n"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_list_of_paths_gives_the_same_shelf_as_the_folder(mine, form):
    name, text = FORMS[form]
    for result, expected in zip(
        shelf_content(read_files(write(mine / name, text), SIZE)), shelf_content(read_files(mine, SIZE)), strict=True
    ):
        assert torch.equal(result, expected) if isinstance(result, torch.Tensor) else result == expected


def test_paths_are_relative_to_their_file_or_absolute(mine, tmp_path, monkeypatch):
    (mine / "lists").mkdir()
    monkeypatch.chdir("/")
    relative = write(mine / "lists" / "x.txt", f"../a.png\n{mine / 'b.png'}\n")
    assert [entry.path for entry in list_entries(relative)[0]] == [mine / "a.png", mine / "b.png"]


def test_pictures_of_equal_file_names_get_different_names(mine):
    pair = write(mine / "x.txt", "p/x.png\na.png\nq/x.png\n")
    assert [entry.name for entry in list_entries(pair)[0]] == ["p/x.png", "a.png", "q/x.png"]


def test_identities_and_clusters_are_read_from_the_table(mine):
    table = write(mine / "x.csv", "cluster,identity,path\nwalk,anna,a.png\n,,b.png\n walk , anna ,c.png\n")
    entries = list_entries(table)[0]
    assert [entry.label for entry in entries] == ["anna", None, "anna"]
    assert [entry.cluster for entry in entries] == ["walk", None, "walk"]
    walk, original, repeat = data(folder(table))[0].clusters
    assert walk == repeat != original == "b.png"


def test_weights_are_those_of_the_table_over_the_largest_of_the_queries(mine):
    table = "path,cluster,weight\na.png,walk,{}\nb.png,,{}\nc.png,walk,{}\n"
    for scale in (1, 1e-3):
        file = write(mine / "x.csv", table.format(*(scale * x for x in (2, 5, 2))))
        queries = data(folder(file))[0]
        assert queries.weights == pytest.approx((0.4, 1, 0.4)) and queries.only([2, 1]).weights[1] == 1
        assert data(FolderConfig(path=str(file), size=SIZE, count=1))[0].weights == (1,)
    with pytest.raises(ValueError, match=r"`weight` must be the same .*cluster; a\.png has 2 and c\.png 3: give"):
        data(folder(write(mine / "x.csv", table.format(2, 5, 3))))
    assert data(folder(write(mine / "x.csv", "path\na.png\nb.png\n")))[0].weights == ()


def test_pictures_are_spread_over_the_clusters_of_the_table(mine):
    table = write(mine / "x.csv", "path,cluster\na.png,walk\nb.png,walk\nc.png,walk\np/x.png,b.png\nq/x.png,\n")
    queries, _, _ = data(FolderConfig(path=str(table), size=SIZE, count=3))
    assert len(set(queries.clusters)) == 3


def test_subfolder_names_are_identities(mine, tmp_path_factory):
    result, notes = list_entries(mine)
    assert [entry.name for entry in result] == ["a.png", "b.png", "c.png"]
    assert {entry.label for entry in result} == {None}
    assert re.search("2 folders are ignored", *notes)
    for name in "abc":
        (mine / f"{name}.png").unlink()
    result, notes = list_entries(mine)
    assert [(entry.name, entry.label) for entry in result] == [("p/x.png", "p"), ("q/x.png", "q")]
    assert not notes


WRONG = {
    "no column": ("x.csv", "file,identity\na.png,1\n", r"x\.csv` line 1: .*column `path`.*got file, identity"),
    **{
        f"{name} twice": ("x.csv", f"path,{name},{name}\na.png,1,2\n", rf"line 1: the column `{name}` is there twice")
        for name in COLUMNS
    },
    **{
        f"{name} for {column}": ("x.csv", f"path,{name}\na.png,1\n", rf"line 1: .*`{name}`; did you mean {column}\?")
        for column in ("identity", "cluster", "weight", "split", "target", "mask")
        for name in (column.title(), f"{column}s")
    },
    **{
        f"word {text}": ("x.csv", f"path,split\na.png,fit \nb.png,{text}\n", r"line 3: `split` must be fit or judge")
        for text in ("Fit", "train")
    },
    "a lacking weight": ("x.csv", "path,weight\na.png,\nb.png,2\n", r"csv line 2: `weight` .*and 2 in x\.csv line 3"),
    "a lacking word": (
        "x.csv",
        "path,split\na.png,fit\nb.png,\n",
        r"csv line 3: `split` .*, and fit in x\.csv line 2",
    ),
    **{
        f"weight {text}": ("x.csv", f"path,weight\na.png,1\nb.png,{text}\n", rf"line 3: `weight` must .*got '{text}'")
        for text in ("much", "nan", "inf", "0", "-1")
    },
    "semicolons": ("x.csv", "path;identity\na.png;1\n", r"line 1: .*separated by commas; got path;identity"),
    "too many cells": ("x.csv", "path,identity\na.png,1\nb,c.png,2\n", r"line 3: 3 cells under a header of 2"),
    "too few cells": ("x.csv", "path,identity\n\na.png\n", r"line 3: 1 cells under a header of 2"),
    "an empty cell": ("x.csv", "path,identity\n,anna\n", r"line 2: the cell `path` is empty"),
    "an open quote": ("x.csv", 'path\n"a.png\nb.png\n', r"line \d: .*unexpected end"),
    "only a header": ("x.csv", "path\n", r"names no picture"),
    "empty": ("x.txt", "", r"names no picture"),
    "only comments": ("x.txt", "# a.png\n\n", r"names no picture"),
    "duplicate": ("x.txt", "a.png\nb.png\n./a.png\n", r"line 3 names `.*a\.png` again, after x\.txt line 1"),
    "a long line": ("x.txt", "a.png\n" + "b" * 10**6, r"line 2: a line of 1000000 characters is no path"),
    "a long cell": ("x.csv", "path\na.png\n" + "b" * 10**6, r"line 3: a line of 1000000 characters is no path"),
    "a missing file": ("x.txt", "a.png\nnowhere.png\n", r"x\.txt line 2: .*nowhere\.png` does not exist"),
    "a folder": ("x.csv", "path\np\n", r"x\.csv line 2: .*/p` is a folder"),
    "a long name": ("x.txt", "a.png\n" + "b" * 3000, r"x\.txt line 2: .*File name too long|cannot be read"),
    "a list in a list": ("x.txt", "a.png\ny.txt\n", r"x\.txt line 2: .*y\.txt` cannot be read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_have_one_line_with_the_position(mine, case):
    name, text, message = WRONG[case]
    write(mine / "y.txt", "b.png")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        read_files(write(mine / name, text), SIZE)
    assert "\n" not in str(error.value)


NO_TEXT = {
    "not UTF-8": (b"path\na.png\n\xff\xfe\n", 3),
    "zero byte": (b"path\n\x00a.png\n", 2),
    "binary": (bytes(range(256))[::-1] * 20, 1),
    "latin-1": ("path\nä\n".encode("latin1"), 2),
}


@pytest.mark.parametrize("name", ["x.txt", "x.csv"])
@pytest.mark.parametrize("case", NO_TEXT)
def test_undecodable_text_is_refused_with_its_line_number(mine, name, case):
    raw, line = NO_TEXT[case]
    (mine / name).write_bytes(raw)
    with pytest.raises(ValueError, match=rf"{name}` line {line}:") as error:
        read_files(mine / name, SIZE)
    assert "\n" not in str(error.value) and str(error.value).isprintable()


def break_some(folder):
    """Adds unreadable files: no pictures, one truncated, one too slender; returns their names."""
    (folder / "bad.png").write_bytes(b"\x89PNG not really")
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:200])
    save_image(folder / "slender.png", noise(9, 2, 2 * SLENDER + 1))
    (folder / "link.png").symlink_to(folder / "nowhere.png")
    return ["bad.png", "cut.png", "link.png", "slender.png"]


def test_broken_files_are_refused_by_name(mine):
    (mine / "bad.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"bad\.png` cannot be read.*data\.unreadable=skip"):
        read_files(mine, SIZE)
    break_some(mine)
    message = r"^4 of 7 pictures cannot be read: bad\.png, cut\.png, link\.png, \.\.\."
    with pytest.raises(ValueError, match=message) as error:
        read_files(mine, SIZE)
    assert "\n" not in str(error.value)


def test_broken_files_are_left_out_with_a_note(mine):
    expected, bad = shelf_content(read_files(mine, SIZE)), break_some(mine)
    shelf = read_files(mine, SIZE, "skip")
    assert shelf.names == expected[0] and torch.equal(shelf_content(shelf)[2], expected[2])
    assert [note.partition(":")[0] for note in shelf.missing] == bad
    assert set(shelf.missing) <= set(shelf.notes)
    assert "too slender" in shelf.missing[-1]
    for name in "abc":
        (mine / f"{name}.png").unlink()
    with pytest.raises(ValueError, match=r"none of 4 pictures can be read; the first: .*bad\.png"):
        read_files(mine, SIZE, "skip")


def test_a_changed_picture_file_is_refused(mine):
    shelf = read_files(mine, SIZE)
    first = shelf.read([1])
    save_image(mine / "b.png", noise(99))
    assert torch.equal(shelf.read([1]), first)  # as it was, and as the digest of the run says
    shelf.forget()
    assert len(shelf.read([0, 2])) == 2
    with pytest.raises(ValueError, match=r"`b\.png` has changed"):
        shelf.read([1])


@pytest.mark.slow
def test_pictures_are_decoded_once_into_the_levels_of_their_squares(mine, monkeypatch):
    alive = []

    def counted(path):
        alive.append(sum(type(item) is torch.Tensor and item.is_floating_point() for item in gc.get_objects()))
        return load_image(path)

    monkeypatch.setattr(attacks.data.pictures, "load_image", counted)
    for i in range(8):
        save_image(mine / f"{i}.png", noise(20 + i, SIZE, SIZE + 2))
    shelf = read_files(mine, SIZE)
    assert len(alive) == 11 and max(alive) <= alive[0] + 2 * torch.get_num_threads()
    shelf.read(range(8))
    assert len(alive) == 11
    shelf.forget()
    for start in range(0, 8, 4):
        shelf.read(range(start, start + 4))
    assert len(alive) == 19


def test_slender_pictures_are_cropped_up_to_a_limit():
    assert square(noise(0, 2, 2 * SLENDER), 4).shape == (3, 4, 4)
    with pytest.raises(ValueError, match="101x2 is too slender"):
        square(noise(0, 2, 2 * SLENDER + 1), 4)


def folder(path, **more):
    return FolderConfig(path=str(path), size=SIZE, **{key: value and str(value) for key, value in more.items()})


def test_queries_have_one_row_in_any_gallery(mine):
    for other in (mine, mine / "a.png", mine / "p"):
        queries, gallery, truth = data(folder(mine, gallery=other))
        assert [gallery.names[row] for row in truth] == list(queries.names) == ["a.png", "b.png", "c.png"]
        assert len(set(gallery.digests)) == len(gallery) == (4 if other.name == "p" else 3)
        assert torch.equal(all_pictures(gallery)[truth], queries.images)


def test_classes_need_no_gallery(mine):
    queries, gallery, truth = data(folder(mine), has_gallery=False)
    assert gallery.names == queries.names and truth.tolist() == [0, 1, 2]
    assert len(set(queries.notes)) == len(queries.notes)


def test_notes_have_conversions_of_queries_and_ignored_gallery_folders(mine, tmp_path_factory):
    queries, _, _ = data(FolderConfig(path=str(mine), gallery=str(mine), size=SIZE + 1, count=1))
    assert [note.partition(":")[0] for note in queries.notes] == [str(mine), "a.png"]
    separate = tmp_path_factory.mktemp("alone")
    (mine / "a.png").rename(separate / "a.png")
    queries, _, _ = data(folder(separate, gallery=mine))
    assert any("2 folders are ignored" in note for note in queries.notes)


def test_files_left_out_of_the_gallery_are_noted(mine):
    (mine / "p" / "bad.png").write_bytes(b"no")
    queries, _, _ = data(folder(mine, gallery=mine / "p", unreadable="skip"))
    assert any(note.startswith("bad.png: left out") for note in queries.notes)
    with pytest.raises(ValueError, match=r"bad\.png"):
        data(folder(mine, gallery=mine / "p"))


def test_wrong_settings_are_refused(mine):
    with pytest.raises(ValueError, match=r"`data\.unreadable` must be refuse or skip"):
        data(folder(mine, unreadable="ignore"))
    with pytest.raises(ValueError, match=r"`data\.cache` must"):
        data(folder(mine, cache=mine / "a.png"))


@given(clusters=st.lists(st.integers(0, 30).map(str), min_size=1, max_size=90), seed=st.integers(0, 2**31))
def test_half_of_the_whole_clusters_are_held_out_or_no_cluster(clusters, seed):
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
    is_consistent = len({*zip(clusters, words, strict=True)}) == len({*clusters})
    if is_consistent and len({*words}) == 2:
        assert assign_split(clusters, clusters, 0, words) == tuple(words)
    else:
        with pytest.raises(ValueError, match=r"^`split` must be (the same for all|fit for some)"):
            assign_split(clusters, clusters, 0, words)

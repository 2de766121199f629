"""Tables of scenes; errors have one line with the position."""

import pytest

from attacks.data.scenes import BUNDLED_TABLE, read_scenes, read_table
from tests.helpers.scenery import CORNERS, box, noise, photo, read, table

QUAD = box(4, 6, 20, 22)
LINE = ",".join(map(str, QUAD))
HEAD = ",".join(["path", *CORNERS])


@pytest.fixture
def mine(tmp_path):
    for i, name in enumerate(("a.png", "b.png")):
        noise(tmp_path / name, i)
    photo(tmp_path / "small.png", [[1.0] * 8] * 8)
    photo(tmp_path / "dark.png", [[0.2] * 40] * 40)
    photo(tmp_path / "corner.png", [[float(x > 30) for x in range(40)]] * 40)
    return tmp_path


def test_a_table_lists_the_places_of_each_photograph(mine):
    columns = ("path", *CORNERS, "mask", "identity", "cluster")
    first = ["a.png", *QUAD, "corner.png", "anna", ""]
    rows = [first, ["b.png", *[""] * 8, "dark.png", "", ""], ["a.png", *QUAD, "", "", "street"]]
    (entry, places), second = read_table(table(mine / "x.csv", *rows, columns=columns))
    assert (entry.path, entry.name, entry.label, entry.cluster) == (mine / "a.png", "a.png", "anna", "street")
    corners = tuple(tuple(QUAD[i : i + 2]) for i in range(0, 8, 2))
    assert [place[1:] for place in places] == [(corners, mine / "corner.png"), (corners, None)]
    assert (second.entry.label, second.placements[0][1:]) == (None, (None, mine / "dark.png"))


def test_bundled_photographs_have_valid_places():
    shelf, result, notes = read(BUNDLED_TABLE)
    assert len(shelf) == 4 and not notes
    assert result.cover is not None and result.cover.flatten().tolist().count(0) == 3  # one has two places
    assert ((result.quads >= 0) & (result.quads <= 1)).all()
    assert read_scenes("bundled", 40)[0].digests == shelf.digests


WRONG = {
    "no path": (f"file{HEAD[4:]}\na.png,{LINE}\n", r"line 1: unknown column `file`; known"),
    "semicolons": (f"{HEAD}\n".replace(",", ";"), r"line 1: unknown column `path;x1.*separated by commas"),
    "path missing": (f"{HEAD[5:]}\n{LINE}\n", r"line 1: the column `path` is missing"),
    "column twice": ("path,mask,mask\n", r"line 1: the column `mask` is there twice"),
    "no places": ("path,identity\na.png,anna\n", r"line 2: nothing says where the patch lies"),
    "missing corner": ("path,x1,y1,x2,y2,x3,y3,x4\na.png,1,1,9,1,9,9,1\n", r"line 2: it has x1.* but no y4"),
    "an empty cell": (f"{HEAD}\na.png,4,,20,6,20,22,4,22\n", r"line 2: it has .* but no y1"),
    "empty cells": (f"{HEAD},mask\na.png,,,,,,,,,\n", r"line 2: nothing says where the patch lies"),
    "not a number": (f"{HEAD}\na.png,{LINE}\nb.png,4,6,2O,6,20,22,4,22\n", r"x\.csv` line 3: `x2` must be .*'2O'"),
    "not finite": (f"{HEAD}\na.png,nan{LINE[1:]}\n", r"line 2: `x1` must be a number; got 'nan'"),
    "only a header": (f"{HEAD}\n", r"names no photograph"),
    "empty": ("", r"names no photograph"),
    "two identities": (f"{HEAD},identity\na.png,{LINE},anna\na.png,{LINE},bert\n", r"line 3: .*two identities, anna"),
    "two clusters": (f"{HEAD},cluster\na.png,{LINE},one\na.png,{LINE},two\n", r"line 3: .*two clusters, one and two"),
    "missing photo": (f"{HEAD}\nnowhere.png,{LINE}\n", r"x\.csv line 2: .*nowhere\.png` does not exist"),
    "folded": (f"{HEAD}\na.png,4,6,20,22,20,6,4,22\n", r"line 2: the quad in `a\.png` folds over"),
    "collinear": (f"{HEAD}\na.png,4,6,12,6,20,6,4,22\n", r"line 2: the quad in `a\.png` .*three corners in a line"),
    "outside": (f"{HEAD}\na.png,4,6,41,6,20,22,4,22\n", r"line 2: the corner \(41, 6\) lies beyond `a\.png`, 40x40"),
    "relative corners": (
        f"{HEAD}\na.png,0.1,0.1,0.9,0.1,0.9,0.9,0.1,0.9\n",
        r"line 2: corners are in pixels .*40x40, no shares",
    ),
    "missing mask": ("path,mask\na.png,nowhere.png\n", r"line 2: `mask`: .*nowhere\.png` does not exist"),
    "a small mask": (
        "path,mask\na.png,small.png\n",
        r"line 2: `mask` must be as large as .*40x40; small\.png has 8x8",
    ),
    "a dark mask": ("path,mask\na.png,dark.png\n", r"line 2: `mask` dark\.png is dark all over"),
    "mask dark in the quad": (f"{HEAD},mask\na.png,{LINE},corner.png\n", r"line 2: `mask` is dark all over the quad"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_table_gives_a_one_line_error(mine, text, message):
    (mine / "x.csv").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        read(mine / "x.csv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "message"), [("a.png", "must be a .csv"), ("none.csv", "is no file")])
def test_other_files_are_refused(mine, name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_scenes(str(mine / name), 40)

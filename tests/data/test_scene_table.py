"""Tables of scenes: both formats are equivalent; errors have one line with the position."""

import math

import pytest

from attacks.data.scene_table import read_table
from attacks.data.scenes import BUNDLED_TABLE, Print, placements_in, read_scenes
from tests.helpers.scenery import CORNERS, box, document, noise, photo, table

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


def places(path, sheet=None):
    shelf, photos = read_scenes(str(path), 40)
    return shelf, *placements_in(photos, 40, sheet or Print((8, 8), 50))


def test_csv_and_json_give_the_same_scenes(mine):
    columns = ("path", *CORNERS, "x", "y", "degrees", "mask", "mm_per_pixel", "identity", "cluster")
    rows = [
        ["a.png", *QUAD, "", "", "", "corner.png", 1.5, "anna", ""],
        ["b.png", *[""] * 8, 20, 21, "", "", 2, "", ""],
        ["a.png", *[""] * 8, 9, 8, 30, "corner.png", 1.5, "", "street"],
    ]
    corners = [QUAD[i : i + 2] for i in range(0, 8, 2)]
    content = {
        "a.png": {
            "quads": [corners],
            "middles": [[9, 8, 30]],
            "mask": "corner.png",
            "mm_per_pixel": 1.5,
            "identity": "anna",
            "cluster": "street",
        },
        "b.png": {"middles": [[20, 21]], "mm_per_pixel": 2},
    }
    forms = table(mine / "x.csv", *rows, columns=columns), document(mine / "x.json", content)
    result = []
    for form in forms:
        read = read_table(form)
        result.append(
            [
                (e.path, e.name, e.label, e.cluster, [(s.quad, s.middle, s.mask, s.mm_per_pixel) for s in spots])
                for e, spots in read
            ]
        )
    assert result[0] == result[1]
    (path, name, identity, cluster, spots), second = result[0]
    assert (path, name, identity, cluster) == (mine / "a.png", "a.png", "anna", "street")
    assert spots[0] == (tuple(map(tuple, corners)), None, mine / "corner.png", 1.5)
    assert spots[1][:2] == (None, (9, 8, 30)) and second[2:] == (None, None, [(None, (20, 21, 0), None, 2)])


def test_bundled_photographs_have_valid_places():
    shelf, result, notes = places(BUNDLED_TABLE)
    assert len(shelf) == 4 and not notes
    assert result.cover is not None and result.cover.flatten().tolist().count(0) == 3  # one has two places
    assert ((result.quads >= 0) & (result.quads <= 1)).all()
    assert read_scenes("bundled", 40)[0].digests == shelf.digests


WRONG = {
    "no path": (f"file{HEAD[4:]}\na.png,{LINE}\n", r"line 1: unknown column `file`; known"),
    "semicolons": (f"{HEAD}\n".replace(",", ";"), r"line 1: unknown column `path;x1.*separated by commas"),
    "path missing": (f"{HEAD[5:]}\n{LINE}\n", r"line 1: the column `path` is missing"),
    "column twice": ("path,mask,mask\n", r"line 1: the column `mask` is there twice"),
    "no places": ("path,identity\na.png,anna\n", r"line 1: nothing says where the patch lies"),
    "missing corner": ("path,x1,y1,x2,y2,x3,y3,x4\na.png,1,1,9,1,9,9,1\n", r"line 2: it has x1.* but no y4"),
    "an empty cell": (f"{HEAD}\na.png,4,,20,6,20,22,4,22\n", r"line 2: it has .* but no y1"),
    "empty cells": (f"{HEAD},mask\na.png,,,,,,,,,\n", r"line 2: nothing says where the patch lies"),
    "not a number": (f"{HEAD}\na.png,{LINE}\nb.png,4,6,2O,6,20,22,4,22\n", r"x\.csv` line 3: `x2` must be .*'2O'"),
    "not finite": (f"{HEAD}\na.png,nan{LINE[1:]}\n", r"line 2: `x1` must be a number; got 'nan'"),
    "only a header": (f"{HEAD}\n", r"names no photograph"),
    "empty": ("", r"names no photograph"),
    "two identities": (f"{HEAD},identity\na.png,{LINE},anna\na.png,{LINE},bert\n", r"line 3: .*two identities, anna"),
    "two clusters": (f"{HEAD},cluster\na.png,{LINE},one\na.png,{LINE},two\n", r"line 3: .*two clusters, one and two"),
    "a scale of 0": (f"{HEAD},mm_per_pixel\na.png,{LINE},0\n", r"line 2: `mm_per_pixel` must be above 0; got 0"),
    "corners and middle": (f"{HEAD},x,y\na.png,{LINE},9,9\n", r"line 2: it has both four corners and a middle"),
    "turned quad": (f"{HEAD},degrees\na.png,{LINE},9\n", r"line 2: `degrees` turns .*middle"),
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
    "missing scale": ("path,x,y\na.png,20,20\n", r"line 2: a middle .* give `mm_per_pixel`"),
    "too wide": ("path,x,y,mm_per_pixel\na.png,20,20,1\n", r"line 2: the corner \(-5, -5\) lies beyond"),
}


WRONG_JSON = {
    "invalid JSON": ('{"a.png":\n{"quads"\n}', r"x\.json` is not JSON .*line 3"),
    "a list": ("[]", r"must hold an object"),
    "empty object": ("{}", r"names no photograph"),
    "not an object": ('{"a.png": [1]}', r"`a\.png`: must be an object"),
    "unknown key": ('{"a.png": {"quad": []}}', r"`a\.png`: unknown key `quad`; known are quads"),
    "three corners": ('{"a.png": {"quads": [[[4,6],[20,6],[20,22]]]}}', r"quad 1 must be four corners"),
    "one quad": ('{"a.png": {"quads": [[4,6],[20,6],[20,22],[4,22]]}}', r"quad 1 must be four corners"),
    "string": ('{"a.png": {"quads": [[["x",6],[20,6],[20,22],[4,22]]]}}', r"quad 1: `x1` must be a number; got 'x'"),
    "NaN": ('{"a.png": {"quads": [[[NaN,6],[20,6],[20,22],[4,22]]]}}', r"quad 1: `x1` must be a number; got nan"),
    "a long number": ('{"a.png": {"middles": [[1' + "0" * 400 + ",6]]}}", r"middle 1: `x` must be a number"),
    "short middle": ('{"a.png": {"middles": [[1]]}}', r"middle 1 must be \[x, y\]"),
    "numeric cluster": ('{"a.png": {"cluster": 3}}', r"`cluster` must be a text"),
    "numeric mask": ('{"a.png": {"mask": 3}}', r"`mask` must be a text"),
    "duplicate": ('{"a.png": {"mask": "b.png"}, "a.png": {"mask": "b.png"}}', r"duplicate key `a\.png`"),
    "deep nesting": ("[" * 10**5, "is not JSON"),
    "no place": ('{"a.png": {"identity": "anna"}}', r"nothing says where the patch lies"),
}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [*(("x.csv", *case) for case in WRONG.values()), *(("x.json", *case) for case in WRONG_JSON.values())],
    ids=[*WRONG, *(f"json {name}" for name in WRONG_JSON)],
)
def test_a_wrong_table_gives_a_one_line_error(mine, name, text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        places(document(mine / name, text))
    assert "\n" not in str(error.value)


def test_a_centre_needs_the_print_width(mine):
    path = table(mine / "x.csv", ["a.png", 20, 20, 2], columns=("path", "x", "y", "mm_per_pixel"))
    for width, message in ((None, "`perturbation.width_mm`"), (0, "must be above 0"), (math.nan, "must be above 0")):
        with pytest.raises(ValueError, match=message):
            places(path, Print((8, 8), width))


@pytest.mark.parametrize(("name", "message"), [("a.png", "must be a .csv or .json"), ("none.csv", "is no file")])
def test_other_files_are_refused(mine, name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_scenes(str(mine / name), 40)

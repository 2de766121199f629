"""The files of a run's folder are not trusted: any broken content is refused in one line."""

import copy
import dataclasses
import json
from functools import reduce
from operator import getitem

import numpy as np
import pytest
import torch

from attacks.perturbations.patch.card import SIDES, Box, card, parse_card
from attacks.physical.rectify import from_corners, natural_size, rectify
from attacks.physical.score import digital
from attacks.physical.sheet import read_patch
from attacks.physical.simulation.simulate import simulate
from tests.helpers.card_simulation import card_dots, printed_run, smooth
from tests.helpers.photographs import stored_scores
from tests.helpers.prints import physical
from tests.helpers.wrong import refused

WRONG = [None, "x", "../../x", "a\nb: c", -1, 1e308, float("nan"), float("inf"), 10**400, [], {}, True, [[]]]
QUAD = [[0.2, 0.2], [0.8, 0.2], [0.8, 0.8], [0.2, 0.8]]
VALUES = {"masks": [["0" * 16], [None]], "width_mm": 90.0, "target": "c", "printer": {"medium": "glass"}}
PLACEMENT = physical(("a", "b"), [[QUAD], [QUAD]], (8, 8), (4, 4), **VALUES)
PLACEMENT = json.loads(json.dumps(dataclasses.asdict(PLACEMENT)))


def faulty_versions(content, path=()):
    """The content with each of its leaves, and each of its branches, replaced by each of the above."""
    node = reduce(getitem, path, content)
    for value in WRONG if path else []:
        result = copy.deepcopy(content)
        reduce(getitem, path[:-1], result)[path[-1]] = value
        yield path, value, result
    for key in list(node) if isinstance(node, dict) else range(min(2, len(node))) if isinstance(node, list) else []:
        yield from faulty_versions(content, (*path, key))


def test_broken_cards_are_refused():
    content = json.loads(json.dumps(dataclasses.asdict(card(80, 60, "vp-00000003  eot"))))
    assert parse_card(content) == card(80, 60, "vp-00000003  eot")
    for path, value, result in faulty_versions(content):
        if path == ("words",) and value in ("x", "../../x", "a\nb: c"):
            continue
        with pytest.raises((KeyError, TypeError, ValueError)):
            parse_card(result)
            raise AssertionError(f"{path} = {value!r} was taken")
    for key, value in (("x", 95), ("width", 500), ("height", 0)):  # beyond the card, or nothing
        refused("on the card", parse_card, content | {"patch": content["patch"] | {key: value}})
    refused("four different tags", parse_card, content | {"tags": content["tags"][:1] * 4})


@pytest.mark.parametrize("side", [0, -1, 1e-300, 1e300, float("nan"), float("inf"), SIDES[1] + 1])
def test_a_card_of_an_impossible_size_is_refused(side):
    refused(r"mm; got", card, side, 50)


@pytest.mark.slow
def test_broken_placements_are_refused(tmp_path):
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(PLACEMENT))
    assert json.loads(json.dumps(dataclasses.asdict(read_patch(tmp_path)))) == PLACEMENT
    harmless = [("target", None), *(("target", text) for text in ("x", "../../x", "a\nb: c")), ("fixed", True)]
    harmless += [("grey", True), ("card", True), *((key, None) for key in ("masks", "width_mm", "printer"))]
    for location, value, result in faulty_versions(PLACEMENT):
        text, outside = location[0] == "pictures" and value == "x", location[0] == "quads" and len(location) == 5
        if location[0] in ("shape", "gamut"):  # no reader computes with them
            continue
        if text or (location[0], value) in harmless or (outside and value == -1):
            continue
        path.write_text(json.dumps(result))
        with pytest.raises(ValueError, match=r"not what a run of this|not JSON"):
            read_patch(tmp_path)
            raise AssertionError(f"{location} = {value!r} was taken")
    path.write_text("[" * 100_000)
    refused("not JSON", read_patch, tmp_path)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/b", "..", ".", "", "a\nb", "a\0", "a\\b"])
def test_a_picture_name_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    content = PLACEMENT | {"pictures": [name], "quads": [[QUAD]]}
    (tmp_path / "placement.json").write_text(json.dumps(content))
    refused("that of a file", read_patch, tmp_path)


COSINE, SUCCESS = torch.full((2, 3), 0.5), torch.tensor([[True, False, True]] * 2)


@pytest.mark.parametrize(
    ("cosine", "success", "arms"),
    [
        (COSINE, SUCCESS, ("clean", "noise")),
        (COSINE[:1], SUCCESS[:1], ("eot",)),
        (COSINE[:, :0], SUCCESS[:, :0], ("eot",)),
        (COSINE[0], SUCCESS[0], ("eot",)),
        (COSINE * 3, SUCCESS, ("eot",)),
        (COSINE * torch.nan, SUCCESS, ("eot",)),
        (COSINE, SUCCESS.int(), ("eot",)),
        (COSINE[:, :2], SUCCESS, ("eot",)),
        (COSINE, SUCCESS[:, :2], ("eot",)),
    ],
)
def test_broken_scores_are_refused(tmp_path, cosine, success, arms):
    refused(r"scores\.safetensors", digital, tmp_path, 2, [0, 1], "eot")
    stored_scores(tmp_path, COSINE, SUCCESS)
    assert digital(tmp_path, 2, [1], "eot")["eot"].cosine.tolist() == [0.5] * 3
    stored_scores(tmp_path, cosine, success, arms)
    refused(r"scores\.safetensors", digital, tmp_path, 2, [0, 1], "eot")


def test_the_simulation_reads_whole_pictures_of_a_limited_size(tmp_path):
    run = printed_run(tmp_path / "run", card_dots(smooth(20, 20)))
    clean = run / "pictures" / "clean" / "bench.png"
    content = clean.read_bytes()
    side = (60_000).to_bytes(4, "big")
    for png in (b"no picture", content[:-20], content[:16] + side + side + content[24:]):
        clean.write_bytes(png)
        refused("cannot be read", simulate, run, tmp_path / "out", 1, size=(64, 64))
    sheet = run / "print" / "sheet.json"
    content = json.loads(sheet.read_text())
    for dpi in (0, 10**400, "300", 1e308, float("inf")):
        sheet.write_text(json.dumps(content | {"dpi": dpi}))
        refused("not what print_patch writes", simulate, run, tmp_path / "new", 1, size=(64, 64))


def test_far_corners_take_little_memory():
    box = Box(0, 0, 10, 10)
    homography = from_corners(box.corners, 1e5 * np.array([[0, 0], [1, 0], [1, 1], [0, 1]]))
    photo = np.full((20, 30, 3), 90, np.uint8)
    assert rectify(photo, homography, box, natural_size(homography, box)).shape == (1024, 1024, 3)

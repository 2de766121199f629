"""What the run declares as hidden, a pole before the patch: left out of all comparisons, and missed where it is not
there."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attacks.commands import main
from attacks.perturbations.patch.card import card as card_of
from attacks.perturbations.patch.card import card_words
from attacks.perturbations.patch.card_raster import card_picture
from attacks.perturbations.patch.physical_patch import pack_mask
from attacks.physical.photo_measure import Expected, at_points, measure_photo
from attacks.physical.photos import PhotoFile
from attacks.physical.rectify import from_corners
from attacks.physical.resemblance import GRID, HiddenPart, resemblance
from attacks.physical.simulation.camera import print_raster
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Ranges, Shot, draw_shot
from attacks.physical.simulation.simulate import behind
from attacks.physical.views import PrintRecord
from tests.helpers.prints import ID, QUAD, physical
from tests.helpers.runs import call

SIDE, DPI, SIZE = 128, 100, (480, 640)
RANDOM = np.random.default_rng
TEXTURE = RANDOM(0).integers(0, 256, (16, 16, 3)).astype(np.float32)
CARD = card_of(100, 100, card_words(ID, "eot"))
POLE = np.broadcast_to((np.arange(SIDE) >= 56) & (np.arange(SIDE) < 72), (SIDE, SIDE))  # a quarter of the patch
PATCH = physical(("scene",), ((QUAD,),), (SIDE, SIDE), masks=((pack_mask(~POLE),),))
SHEET = PrintRecord(CARD, ID, "eot", "0", DPI)


def scene(colour):
    """A photograph with a pole in it."""
    with Image.open(Path("attacks/data/photos/astronaut.png")) as file:
        picture = np.array(file.convert("RGB").resize((SIDE, SIDE)))
    picture[POLE] = colour
    return picture


def take(picture, shot, patch=PATCH):
    """The card in the scene, behind what `patch` says."""
    light = print_raster(card_picture(CARD, TEXTURE, DPI), 0.8)
    ink = behind(light, SHEET, patch, 0, 0)
    return take_photograph(picture, QUAD, CARD, ink, DPI, shot, SIZE, RANDOM(1)).pixels


def measurement_of(pixels, picture, patch=PATCH):
    expected = Expected(patch, "eot", CARD, {"eot": TEXTURE})
    return measure_photo(PhotoFile(Path("x"), "x", 0), pixels, picture, expected)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_lies_in_a_declared_part_changes_what_is_compared(seed):
    random, inside = RANDOM(seed), np.ones((GRID, GRID), bool)
    look = random.uniform(0.1, 0.9, (GRID, GRID, 3))
    left, right = sorted(random.choice(range(4, 28), 2, replace=False))
    region = np.zeros_like(inside)
    region[:, left : right + 4] = True
    results = []
    for content in (look, 1 - look, np.zeros_like(look), np.ones_like(look), random.uniform(0, 1, look.shape)):
        view = np.where(region[..., None], content, look) ** 2.2  # encoded as the look is
        view = np.rint(255 * np.where(view > 0.0031308, 1.055 * view ** (1 / 2.4) - 0.055, 12.92 * view))
        results.append(resemblance(view.astype(np.uint8), inside, {"eot": look}, "eot", HiddenPart(region)))
    present, *rest = results
    for other in rest:
        assert dataclasses.replace(other, missing_share=0.0) == dataclasses.replace(present, missing_share=0.0)
    assert present.correlation > 0.99 and present.hidden_share == 0
    assert present.missing_share > 0.95 and all(other.missing_share < 0.3 for other in rest)


def test_points_behind_the_pole_are_those_of_the_mask_from_any_pose():
    corners = np.array(QUAD) * SIDE
    for seed in range(5):
        view_of = from_corners(corners, corners * 3 + RANDOM(seed).uniform(-40, 40, (4, 2)))  # picture to photograph
        ground = view_of @ from_corners(CARD.patch.corners, corners)
        shares = RANDOM(seed).uniform(-0.2, 1.2, (200, 2))
        x = (0.25 + 0.5 * shares[:, 0]) * SIDE
        points = np.array([CARD.patch.x, CARD.patch.y]) + shares * [CARD.patch.width, CARD.patch.height]
        assert np.array_equal(at_points(POLE, view_of, ground, points), (x >= 56) & (x < 72))


def test_a_photograph_shows_the_scene_before_the_card():
    picture, shot = scene((200, 60, 60)), Shot(degrees=8)
    whole_scene = dataclasses.replace(PATCH, masks=((pack_mask(np.zeros_like(POLE)),),))
    bare, card, pair = (take(picture, shot, patch).astype(int) for patch in (whole_scene, physical(), PATCH))
    assert (np.minimum(abs(pair - bare), abs(pair - card)).max(2) > 2).mean() < 0.01  # but for the pole's edge
    assert 0.02 < (abs(pair - card).max(2) > 8).mean() < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "colour"), [(0, (30, 30, 30)), (2, (230, 230, 230)), (4, (200, 60, 60))])
def test_a_photograph_with_the_declared_pole_is_scored_and_one_without_it_is_named(first, colour):
    picture, no_region = scene(colour), physical(("scene",), ((QUAD,),), (SIDE, SIDE))
    for seed in (first, first + 1):
        shot = draw_shot(Ranges(), RANDOM(seed))
        present, absent = (take(picture, shot, patch) for patch in (PATCH, no_region))
        result = measurement_of(present, picture)
        assert result.evidence.refusal is None and result.evidence.patch.missing_share < 0.3
        assert 12 <= result.swatches.valid.all(1).sum() < 32  # the pole crosses the chart
        assert "what should stand before the patch is not there" in measurement_of(absent, picture).evidence.refusal
        assert measurement_of(present, picture, no_region).evidence.refusal is not None


@pytest.mark.parametrize("front", [0.25, 0.5, 0.9])
def test_a_flat_patch_is_told_from_what_stands_before_it_by_colour(front):
    inside, region, look = np.ones((GRID, GRID), bool), np.zeros((GRID, GRID), bool), np.full((GRID, GRID, 3), 0.5)
    look[:8] = RANDOM(0).uniform(0.1, 0.9, (8, GRID, 3))
    region[10:, 8:24] = True
    view = np.full((GRID, GRID, 3), round(255 * 0.5**1.006), np.uint8)  # all of it as printed: nothing stands there
    hidden = HiddenPart(region, np.full_like(look, front))
    result = resemblance(view, inside, {"eot": look}, "eot", hidden)
    assert result.missing_share == (1 if abs(front - 0.5) > 0.18 else 0)


@pytest.mark.slow
def test_mask_shape_and_two_places_from_the_attack_to_the_score(tmp_path, monkeypatch):
    picture = scene((60, 60, 60)).repeat(4, 0).repeat(4, 1)
    Image.fromarray(picture).save(tmp_path / "a.png")
    Image.fromarray(np.uint8(255 * ~POLE).repeat(4, 0).repeat(4, 1)).save(tmp_path / "mask.png")
    head = "path," + ",".join(f"{axis}{i}" for i in (1, 2, 3, 4) for axis in "xy") + ",mask\n"
    lower, upper = "a.png,180,270,360,270,360,450,180,450", "a.png,200,30,380,30,380,210,200,210"
    (tmp_path / "scenes.csv").write_text(f"{head}{lower},mask.png\n{upper},mask.png\n")
    run, photos = tmp_path / "run", tmp_path / "photos"
    words = "config=patch data=scenes data.size=128 data.gallery=bundled perturbation.shape=circle printer=generic "
    words += "perturbation.card=true perturbation.width_mm=100 sanity=none attack.gradients=12 evaluate.views=32 "
    words += f"evaluate.refine=0 data.path={tmp_path}/scenes.csv hydra.run.dir={run}"
    assert call(monkeypatch, *words.split()) == 0
    for command in (["print"], ["simulate", photos, "--count", 8, "--size", "640x512"], ["score", photos]):
        assert main([command[0], str(run), *map(str, command[1:])]) == 0
    content = json.loads((run / "photos" / "photos.json").read_text())
    assert len(content["photos"]) >= 6 and "places: the attack fills up to 2" in " ".join(content["notes"])
    prediction, photograph_rate = content["prediction"]["poses"], content["photographs"]
    assert abs(prediction["cosine"]["mean"] - photograph_rate["cosine"]["mean"]) < 0.06
    assert abs(prediction["success"]["mean"] - photograph_rate["success"]["mean"]) < 0.25

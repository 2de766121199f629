"""Which photographs are scored as the run's patch: the measures behind the rules, and the rules on simulated ones."""

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from attacks.perturbations.patch.card import Box, card, tag_numbers
from attacks.physical import scene_place
from attacks.physical.colour_fit import Swatches, scene_cells
from attacks.physical.photo_measure import PUREST, Evidence
from attacks.physical.rectify import pose, project
from attacks.physical.resemblance import GRID, Resemblance, correlation, expected_look, purity, resemblance
from attacks.physical.scene_place import SCENE, SceneMatch, ScenePlace, find, place, scene_correlation
from attacks.physical.simulation.camera import print_raster
from attacks.physical.simulation.shots import Shot
from scripts.benchmarks.cards import CardPrint, draw_case, examination, take_photo

CARD = card(80, 80, "vp-01234567  eot")
RANDOM = np.random.default_rng
TRUE = Resemblance(0.95, "", 0.0, 0.0, 0.0)
MATCH = SceneMatch(40, np.eye(3), 0.0, 1.0, 1.0, 0.0)
PLACE = ScenePlace(None, 0.9, False, 0.0, 1.1, MATCH)
#: A chart of which nothing is seen.
UNSEEN = Swatches(np.zeros((32, 3)), np.zeros((32, 3), bool))


def chart(strength, gains=(1.0, 1.0, 1.0), slope=(0.0, 0.0), contrast=1.0):
    """The chart printed with some ink (0: a screen), in light that falls off over the card, through a tone curve."""
    colours = np.array([[swatch.colour for swatch in CARD.chart]], np.uint8)
    middles = np.array([[item.box.x, item.box.y] for item in CARD.chart]) / [CARD.width, CARD.height] - 0.5
    light = print_raster(colours, strength)[0] * np.array(gains) * 2.0 ** (middles @ np.array(slope))[:, None]
    return Swatches(light**contrast, light < 0.99)


@pytest.mark.parametrize("seed", range(5))
def test_a_correlation_is_that_of_numpy(seed):
    a, b = RANDOM(seed).random((2, 400, 1))
    b = b + seed * a
    assert correlation(a, b) == pytest.approx(np.corrcoef(a[:, 0], b[:, 0])[0, 1], abs=1e-4)
    assert correlation(a, 3 * a + 1) == pytest.approx(1, abs=1e-4)
    assert correlation(a, np.ones_like(a)) == 0


@pytest.mark.parametrize("contrast", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("slope", [(0.0, 0.0), (0.8, -0.5)])
def test_purity_is_that_of_a_screen_or_of_ink_in_any_light(slope, contrast):
    light = {"gains": (0.7, 0.6, 0.5), "slope": slope, "contrast": contrast}
    assert purity(chart(0.0, **light), CARD) == pytest.approx(1, abs=0.01)
    assert purity(chart(0.5, **light), CARD) < PUREST - 0.05
    assert purity(chart(1.0, **light), CARD) < 0.7
    assert purity(UNSEEN, CARD) is None


@pytest.mark.parametrize("ink", [0.3, 1.0])
def test_a_print_resembles_only_its_own_texture(ink):
    original, other = RANDOM(0).integers(0, 256, (2, GRID, GRID, 3)).astype(np.float32)
    full = np.ones((GRID, GRID), bool)

    def output(texture):
        patch = print_raster(texture.astype(np.uint8), ink) * 0.6
        patch = (np.where(patch > 0.0031308, 1.055 * patch ** (1 / 2.4) - 0.055, 12.92 * patch) * 255).round()
        swatches = Swatches(chart(ink).light * 0.6, np.ones((32, 3), bool))
        looks = {"eot": expected_look(original, swatches, CARD), "noise": expected_look(other, swatches, CARD)}
        return resemblance(patch.astype(np.uint8), full, looks, "eot")

    true = output(original)
    assert true.correlation > 0.95 and true.better == "" and true.hidden_share == 0
    assert output(other).better == "the patch of the arm noise"
    assert output(np.rot90(original)).better == "its patch turned by 270 degrees"
    assert output(original[:, ::-1]).better == "its patch mirrored"
    cover = original.copy()
    cover[: GRID // 2, : GRID // 2] = 128
    assert output(cover).hidden_share == pytest.approx(0.25, abs=0.05)
    blank = output(np.full_like(original, 200))
    assert abs(blank.correlation) < 0.1 and blank.better == ""
    stranger = RANDOM(1).integers(0, 256, (GRID, GRID, 3)).astype(np.float32)
    assert output(stranger).correlation < 0.3 and output(stranger).better == ""


@pytest.mark.parametrize("area", [0.03, 0.07, 0.12, 0.3])
def test_the_hidden_share_is_that_of_the_area_and_its_edge_wherever_it_lies(area):
    random = RANDOM(5)
    original = cv2.GaussianBlur(random.uniform(0, 255, (4 * GRID, 4 * GRID, 3)).astype(np.float32), (0, 0), 6)
    original = np.clip(4 * (original - 127) + 127, 0, 255)
    look, full = expected_look(original, UNSEEN, CARD), np.ones((GRID, GRID), bool)
    radius, (rows, columns) = math.sqrt(area / math.pi), (np.mgrid[: 4 * GRID, : 4 * GRID] + 0.5) / (4 * GRID)
    for _ in range(12):
        x, y = random.uniform(radius, 1 - radius, 2)
        cover = original.copy()
        cover[np.hypot(columns - x, rows - y) < radius] = 255
        share = resemblance(cover.astype(np.uint8), full, {"eot": look}, "eot").hidden_share
        assert 1.15 * area < share < 1.35 * area + 0.01


def test_glare_on_less_than_a_tenth_does_not_outweigh_the_rest_of_a_pale_print():
    random = RANDOM(6)
    original, other = random.uniform(80, 150, (2, GRID, GRID, 3)).astype(np.float32)
    full, looks = np.ones((GRID, GRID), bool), {"eot": expected_look(original, UNSEEN, CARD)}
    for texture, minimum, maximum in ((original, 0.95, 1.0), (other, -0.3, 0.3)):
        view = texture.copy()
        view[4:12, 6:14] = 255  # 6 %, and its edge
        output = resemblance(view.astype(np.uint8), full, looks, "eot")
        likeness = correlation(*(item.reshape(-1, 3) for item in (expected_look(view, UNSEEN, CARD), looks["eot"])))
        assert minimum <= output.correlation <= maximum and likeness < 0.5


def test_a_place_that_is_only_noisy_is_not_hidden_and_one_that_is_flat_is():
    random = RANDOM(7)
    original = random.uniform(100, 200, (GRID, GRID, 3)).astype(np.float32)
    noisy, flat = original.copy(), original.copy()
    noisy[:16] += random.normal(0, 30, (16, GRID, 3))
    flat[:16] = original[:16].mean((0, 1))
    looks, full = {"eot": expected_look(original, UNSEEN, CARD)}, np.ones((GRID, GRID), bool)
    shares = [resemblance(item.astype(np.uint8), full, looks, "eot").hidden_share for item in (noisy, flat)]
    assert shares[0] < 0.02 and shares[1] == pytest.approx(0.5, abs=0.06)


UPRIGHT = np.array([[1.0, 0, 80], [0, 1.0, 75], [0, 0, 1]])
IDENTITY = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])


def spots(seed, size):
    """A picture (256,256,3) of round spots of about `size` pixels, in random colours."""
    smooth = cv2.GaussianBlur(RANDOM(seed).uniform(0, 1, (256, 256, 3)), (0, 0), size)
    return (255 * np.clip(0.5 + 2.5 * size * (smooth - 0.5), 0, 1)).astype(np.uint8)


SCENE_PICTURE = spots(3, 2.0)


def about_the_patch(matrix, moved=(0.0, 0.0)):
    """A change (2,2) of the card round the middle of its patch, then moved by shares of its side, as a homography."""
    box = CARD.patch
    middle = np.array([box.x + box.width / 2, box.y + box.height / 2])
    return np.vstack([np.c_[matrix, middle - matrix @ middle + box.width * np.array(moved)], [0, 0, 1]])


def lay_card(change, photo=SCENE_PICTURE, picture=SCENE_PICTURE):
    """The photograph is the picture itself; the card on it is changed, and says so of its scene."""
    card_in_photo = UPRIGHT @ change
    return place(photo, picture, card_in_photo @ np.linalg.inv(UPRIGHT) @ IDENTITY, CARD, card_in_photo)


@pytest.mark.parametrize(
    ("degrees", "long", "short"),
    [(0, 1, 1), (7, 1.1, 1.05), (7, 1.5, 1), (90, 1, 1), (-90, 1.3, 1.3), (180, 0.7, 1.3)],
)
def test_how_a_card_lies_is_measured_by_the_features_of_its_scene(degrees, long, short):
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix, shift = np.array([[c, -s], [s, c]]) @ np.diag([long, short]), (0.03, -0.04)
    output = lay_card(about_the_patch(matrix, shift))
    match = output.match
    assert abs((match.turned - degrees + 180) % 360 - 180) < 0.5
    assert match.stretched == pytest.approx(max(long / short, short / long), rel=0.01)
    assert match.larger == pytest.approx(math.sqrt(long * short), rel=0.01)
    assert match.away == pytest.approx(np.hypot(*np.linalg.solve(matrix, shift)), abs=0.003)
    assert np.abs(project(match.scene, [[0, 0], [256, 256]]) - project(IDENTITY, [[0, 0], [256, 256]])).max() < 1
    assert output.belongs == (abs(degrees) < 10 and max(long, short) < 1.2)


def test_a_scene_with_a_misjudged_plane_belongs_unlike_another_scene():
    keystone = np.array([[1, 0, 0], [0, 1, 0], [4e-4, -3e-4, 1]])  # round the middle of the picture
    to, back = (np.array([[1, 0, d], [0, 1, d], [0, 0, 1]]) for d in (128, -128))
    scene = to @ keystone @ back @ IDENTITY
    correlation_value = scene_correlation(scene_cells(SCENE_PICTURE, SCENE_PICTURE, scene, CARD, UPRIGHT))
    output = place(SCENE_PICTURE, SCENE_PICTURE, scene, CARD, UPRIGHT)
    assert correlation_value < SCENE and output.belongs and output.correlation > 0.95
    other = spots(4, 2.0)
    output = lay_card(np.eye(3), other)
    assert not output.belongs and output.correlation < SCENE
    view = pose(np.diag([3.0, 1.5, 1]), Box(0, 0, 100, 100))
    assert (view.degrees, view.angle) == pytest.approx((0, 60))


def test_matches_count_only_with_a_correlated_scene(monkeypatch):
    chance = SceneMatch(20, IDENTITY @ about_the_patch(np.diag([1.5, 1.0])), 0.0, 1.5, 1.0, 0.0)
    monkeypatch.setattr(scene_place, "find", lambda *_: chance)
    assert lay_card(np.eye(3)).match is None
    monkeypatch.setattr(scene_place, "find", lambda *_: replace(chance, scene=IDENTITY))
    wide = lay_card(about_the_patch(np.diag([1.5, 1.0])))
    assert wide.match is not None and not wide.belongs and wide.correlation > 0.95
    right = SceneMatch(6, IDENTITY, 0.0, 1.0, 1.0, 0.0)
    monkeypatch.setattr(scene_place, "find", lambda *_: right)
    assert lay_card(np.eye(3)).belongs and lay_card(np.eye(3), spots(4, 2.0)).match is None


def test_many_matches_count_without_a_comparison(monkeypatch):
    monkeypatch.setattr(scene_place, "scene_cells", lambda *_: None)
    for matches, belongs in ((6, False), (40, True)):
        monkeypatch.setattr(scene_place, "find", lambda *_, matches=matches: replace(MATCH, matches=matches))
        assert lay_card(np.eye(3)).belongs == belongs


def test_a_scene_without_matches_is_known_if_it_correlates(monkeypatch):
    monkeypatch.setattr(scene_place, "find", lambda *_: None)
    picture = spots(0, 20.0)
    forth, far = (lay_card(about_the_patch(np.eye(2), shift), picture, picture) for shift in ((0.0, 0.0), (0.4, 0.0)))
    assert forth.belongs and Evidence(TRUE, 0.7, forth).refusal is None
    assert not far.belongs and "another scene" in Evidence(TRUE, 0.7, far).refusal


@pytest.mark.parametrize("slope", [0.0, 3.3e-3, 3.7e-3])
def test_a_scene_is_found_before_the_horizon(slope):
    # The horizon is 303 or 270 pixels from the left edge: nearer than the widest margin, and than the next.
    tilt = np.array([[1, 0, 0], [0, 1, 0], [-slope, 0, 1]])
    photo = cv2.warpPerspective(SCENE_PICTURE, tilt, (700, 700), borderValue=(90, 90, 90))
    output = find(photo, SCENE_PICTURE, tilt @ IDENTITY, CARD, tilt @ UPRIGHT)
    assert output is not None and output.fault is None and output.away < 0.05


@pytest.mark.parametrize("mirrored", [False, True])
def test_matches_that_agree_on_a_mirrored_scene_do_not_count(monkeypatch, mirrored):
    reference = RANDOM(8).uniform(0, 512, (40, 2))  # the picture, twice as large
    output = (reference * [-1, 1] + [512, 0] if mirrored else reference) + 128  # and a quarter of it round it
    monkeypatch.setattr(scene_place, "_match_features", lambda *_: np.stack([reference, output], 1))
    monkeypatch.setattr(scene_place, "_blocks", lambda *_: np.empty((0, 2, 2)))
    match = find(SCENE_PICTURE, SCENE_PICTURE, IDENTITY, CARD, UPRIGHT)
    assert match is None if mirrored else match.fault is None


def test_a_smooth_scene_is_known_by_its_blocks():
    picture = spots(0, 20.0)
    forth, wide = (lay_card(about_the_patch(np.diag([times, 1.0])), picture, picture) for times in (1.0, 1.45))
    assert forth.belongs and forth.match.stretched == pytest.approx(1, abs=0.02) and not wide.belongs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": {"correlation": 0.3}}, "not the run's"),
        ({"patch": {"better": "its patch mirrored"}}, "mirrored"),
        ({"patch": {"hidden_share": 0.2}}, "20.0% of the patch is covered"),
        ({"patch": {"hidden_share": 0.2, "glare": 0.2}}, "glare"),
        ({"patch": {"cut": 0.6}}, "beyond the edge"),
        ({"place": {"match": None}}, "another scene"),
        ({"place": {"match": replace(MATCH, turned=90.0)}}, "turned by 90.0 degrees clockwise"),
        ({"place": {"match": replace(MATCH, turned=-11.0)}}, "turned by 11.0 degrees counterclockwise"),
        ({"place": {"match": replace(MATCH, stretched=1.45)}}, "1.450 times as long"),
        ({"place": {"match": replace(MATCH, larger=0.7)}}, "0.700 times as large"),
        ({"place": {"match": replace(MATCH, away=0.3)}}, "30.0% of its side away"),
        ({"place": {"too_little": True, "correlation": None, "match": None}}, "too little of the scene"),
        ({"place": {"correlation": None, "match": None, "degrees": -90.0}}, "turned by -90.0 degrees"),
        ({"place": {"stretch": 2.5}}, "2.500 times"),
    ],
)
def test_each_rule_leaves_a_photograph_out(change, message):
    assert Evidence(TRUE, 0.7, PLACE).refusal is None and Evidence(TRUE, None, None).refusal is None
    output = {"patch": TRUE, "purity": 0.7, "place": PLACE}
    for name, value in change.items():
        output[name] = replace(output[name], **value) if isinstance(value, dict) else value
    assert message in Evidence(**output).refusal


def test_cards_of_other_arms_and_runs_share_few_tags():
    cards = [tag_numbers(f"vp-{i:08x}  {arm}") for i in range(60) for arm in ("eot", "noise")]
    assert all(number % 4 == i for numbers in cards for i, number in enumerate(numbers))
    assert max(len({*a} & {*b}) for k, a in enumerate(cards) for b in cards[:k]) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("sag", [0.1, -0.1])
def test_the_scene_round_a_bent_card_is_compared_where_the_card_lies(sag):
    random = RANDOM(1)
    case = draw_case(random)
    shot = Shot(yaw=20, pitch=10, sag=sag, curl=20, blur=0.6)
    reason, measurement = examination(case, take_photo(case, CardPrint(shot=shot), random))
    assert reason is None and measurement.evidence.place.correlation > 0.9

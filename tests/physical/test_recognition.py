"""Which photographs are scored as the run's patch: the measures behind the rules, and the rules on simulated ones."""

import dataclasses
import math

import cv2
import numpy as np
import pytest

from attacks.perturbations.patch.card import card, numbers_of
from attacks.physical.colour_fit import Swatches, nominal, scene_cells
from attacks.physical.detect import LIGHT
from attacks.physical.recognition import PUREST, Evidence
from attacks.physical.resemblance import GRID, Resemblance, correlation, printed_as, purity, resemblance
from attacks.physical.scene_place import SCENE, Place, place, scene_correlation, stretch
from attacks.physical.simulation.camera import printed
from attacks.physical.simulation.shots import Shot
from scripts.benchmarks.card_kinds import SOURCES, Print, drawn, examined, taken
from tests.helpers.photographed import clutter

CARD = card(80, 80, "vp-01234567  eot")
RANDOM = np.random.default_rng
TRUE = Resemblance(0.95, "", 0.0, 0.0, 0.0)
THERE = Place(None, 0.9, 0, False, 0.0, 1.1)


def chart(strength, gains=(1.0, 1.0, 1.0), slope=(0.0, 0.0), contrast=1.0):
    """The chart printed with some ink (0: a screen), in light that falls off over the card, through a tone curve."""
    colours = np.array([[swatch.colour for swatch in CARD.chart]], np.uint8)
    middles = np.array([[each.box.x, each.box.y] for each in CARD.chart]) / [CARD.width, CARD.height] - 0.5
    light = printed(colours, strength)[0] * np.array(gains) * 2.0 ** (middles @ np.array(slope))[:, None]
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
def test_a_screen_is_pure_in_any_light_and_ink_is_not(slope, contrast):
    light = {"gains": (0.7, 0.6, 0.5), "slope": slope, "contrast": contrast}
    assert purity(chart(0.0, **light), CARD) == pytest.approx(1, abs=0.01)
    assert purity(chart(0.5, **light), CARD) < PUREST - 0.05
    assert purity(chart(1.0, **light), CARD) < 0.7
    dark = Swatches(np.zeros((32, 3)), np.zeros((32, 3), bool))
    assert purity(dark, CARD) is None


@pytest.mark.parametrize("ink", [0.3, 1.0])
def test_a_print_of_its_own_texture_resembles_it_and_any_other_does_not(ink):
    own, other = RANDOM(0).integers(0, 256, (2, GRID, GRID, 3)).astype(np.float32)
    everywhere = np.ones((GRID, GRID), bool)

    def seen(texture):
        patch = printed(texture.astype(np.uint8), ink) * 0.6
        patch = (np.where(patch > 0.0031308, 1.055 * patch ** (1 / 2.4) - 0.055, 12.92 * patch) * 255).round()
        swatches = Swatches(chart(ink).light * 0.6, np.ones((32, 3), bool))
        looks = {arm: printed_as(texture, swatches, CARD) for arm, texture in (("eot", own), ("noise", other))}
        return resemblance(patch.astype(np.uint8), everywhere, looks, "eot", True)

    assert seen(own).correlation > 0.95 and seen(own).better == "" and seen(own).hidden == 0
    assert seen(other).better == "the patch of the arm noise"
    assert seen(np.rot90(own)).better == "its patch turned by 270 degrees"
    assert seen(own[:, ::-1]).better == "its patch mirrored"
    covered = own.copy()
    covered[: GRID // 2, : GRID // 2] = 128
    assert seen(covered).hidden == pytest.approx(0.25, abs=0.05)
    assert abs(seen(np.full_like(own, 200)).correlation) < 0.1


@pytest.mark.parametrize("area", [0.03, 0.07, 0.12, 0.3])
def test_the_hidden_share_is_that_of_the_area_and_its_edge_wherever_it_lies(area):
    random = RANDOM(5)
    own = cv2.GaussianBlur(random.uniform(0, 255, (4 * GRID, 4 * GRID, 3)).astype(np.float32), (0, 0), 6)
    own = np.clip(4 * (own - 127) + 127, 0, 255)
    look, everywhere = printed_as(own, None, None), np.ones((GRID, GRID), bool)
    radius, (rows, columns) = math.sqrt(area / math.pi), (np.mgrid[: 4 * GRID, : 4 * GRID] + 0.5) / (4 * GRID)
    for _ in range(12):
        x, y = random.uniform(radius, 1 - radius, 2)
        covered = own.copy()
        covered[np.hypot(columns - x, rows - y) < radius] = 255
        hidden = resemblance(covered.astype(np.uint8), everywhere, {"eot": look}, "eot", True).hidden
        assert 1.15 * area < hidden < 1.35 * area + 0.01


def test_a_scene_that_is_drawn_apart_by_less_than_a_cell_is_still_the_scene():
    fine = cv2.GaussianBlur(RANDOM(6).uniform(0, 1, (256, 256, 3)), (0, 0), 1.6)
    picture = (255 * np.clip(0.5 + 4 * (fine - 0.5), 0, 1)).astype(np.uint8)
    upright = np.array([[0.7, 0, 85], [0, 0.7, 80], [0, 0, 1]])
    identity = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])

    def photo(apart):  # the left half moves to the left, the right half to the right
        y, x = np.mgrid[:256, :256].astype(np.float32)
        return cv2.remap(picture, x + np.where(x < 128, apart, -apart).astype(np.float32), y, cv2.INTER_LINEAR)

    strictly = scene_correlation([scene_cells(photo(2.8), picture, identity, CARD, upright)])
    near, far = (place(photo(apart), picture, identity, CARD, upright) for apart in (2.8, 9.0))
    assert strictly < SCENE and near.belongs and not far.belongs
    to, back = (np.array([[1, 0, d * CARD.width / 2], [0, 1, d * CARD.height / 2], [0, 0, 1]]) for d in (1, -1))
    for times in (1.35, 1.5, 1.7):
        wide = upright @ to @ np.diag([times, 1, 1]) @ back
        laid = place(picture, picture, wide @ np.linalg.inv(upright) @ identity, CARD, wide)
        assert laid.stretched > 1 or not laid.belongs
    assert not place(np.ascontiguousarray(photo(0)[::-1]), picture, identity, CARD, upright).belongs


def test_a_turned_or_stretched_card_and_another_scene_are_told_apart():
    """The photograph is the picture itself; the card is laid turned, or its print is stretched."""
    picture = (255 * clutter((256, 256), 3)).astype(np.uint8)
    upright = np.array([[1.2, 0, 70], [0, 1.2, 60], [0, 0, 1]])
    identity = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    x, y = CARD.width / 2, CARD.height / 2
    to, back = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]]), np.array([[1, 0, -x], [0, 1, -y], [0, 0, 1]])
    for quarters in range(4):
        c, s = round(math.cos(quarters * math.pi / 2)), round(math.sin(quarters * math.pi / 2))
        turned = to @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ back
        laid = upright @ turned  # the card's mm to the photograph's pixels
        scene = laid @ np.linalg.inv(upright) @ identity  # as if it lay upright
        found = place(picture, picture, scene, CARD, laid)
        assert found.quarters == quarters and found.belongs == (quarters == 0)
    wide = upright @ to @ np.diag([1.45, 1, 1]) @ back
    assert place(picture, picture, wide @ np.linalg.inv(upright) @ identity, CARD, wide).stretched > 1
    other = (255 * clutter((256, 256), 4)).astype(np.uint8)
    assert place(other, picture, identity, CARD, upright).correlation < SCENE
    assert stretch(np.diag([3.0, 1.5, 1]), (100, 100)) == pytest.approx((0, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": {"correlation": 0.3}}, "not the run's"),
        ({"patch": {"better": "its patch mirrored"}}, "mirrored"),
        ({"patch": {"hidden": 0.2}}, "20.0% of the patch is covered"),
        ({"patch": {"hidden": 0.2, "glare": 0.2}}, "glare"),
        ({"patch": {"cut": 0.6}}, "beyond the edge"),
        ({"purity": 0.99}, "a screen or a file"),
        ({"place": {"correlation": 0.1}}, "another scene"),
        ({"place": {"quarters": 2}}, "turned by 180 degrees"),
        ({"place": {"unseen": True, "correlation": None}}, "too little of the scene"),
        ({"place": {"correlation": None, "degrees": -90.0}}, "turned by -90 degrees"),
        ({"place": {"stretched": 1.45}}, "1.45 times"),
        ({"place": {"stretch": 2.5}}, "2.50 times"),
    ],
)
def test_each_rule_leaves_a_photograph_out(change, message):
    assert Evidence(TRUE, 0.7, THERE).refusal is None and Evidence(TRUE, None, None).refusal is None
    seen = {"patch": TRUE, "purity": 0.7, "place": THERE}
    for name, value in change.items():
        seen[name] = dataclasses.replace(seen[name], **value) if isinstance(value, dict) else value
    assert message in Evidence(**seen).refusal


def test_cards_of_other_arms_and_runs_share_few_tags():
    cards = [numbers_of(f"vp-{i:08x}  {arm}") for i in range(60) for arm in ("eot", "noise")]
    assert all(number % 4 == i for numbers in cards for i, number in enumerate(numbers))
    assert max(len({*a} & {*b}) for k, a in enumerate(cards) for b in cards[:k]) <= 2
    assert nominal(CARD).max() == LIGHT[255]


@pytest.mark.slow
@pytest.mark.parametrize("sag", [0.1, -0.1])
def test_the_scene_round_a_bent_card_is_compared_where_the_card_lies(sag):
    random = RANDOM(1)
    case = drawn(SOURCES["limits"], random)
    shot = Shot(yaw=20, pitch=10, sag=sag, curl=20, blur=0.6)
    reason, evidence = examined(case, taken(case, Print(shot=shot), random))
    assert reason is None and evidence.place.correlation > 0.9

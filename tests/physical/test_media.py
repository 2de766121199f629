"""Media other than paper in simulated photographs: a screen's pixels and refresh, cloth, glass; and what scoring
makes of them."""

import dataclasses
import math

import cv2
import numpy as np
import pytest
from scipy.optimize import fsolve

from attacks.commands import main
from attacks.physical.colour_fit import Swatches
from attacks.physical.resemblance import GRID, expected_look, resemblance
from attacks.physical.simulation import media
from attacks.physical.simulation.shots import MEDIA, Ranges, Shot, draw_shot
from attacks.physical.simulation.simulate import simulate
from attacks.study import printer
from tests.helpers.card_simulation import CARD, RANDOM, card_dots, flat, printed_run, take_photo

SIZE = (CARD.width, CARD.height)


def test_the_simulator_and_the_configuration_have_the_same_media():
    assert tuple(MEDIA) == printer.MEDIA
    paper, rest = draw_shot(Ranges(), RANDOM(3)), {f.name for f in dataclasses.fields(Shot)}
    for medium, ranges in MEDIA.items():
        shot = draw_shot(Ranges(**ranges), RANDOM(3))
        assert {name for name in rest if getattr(shot, name) != getattr(paper, name)} == {*ranges}, medium


@pytest.mark.parametrize("pitch", [1.7, 3.0, 5.3, 6.0])
def test_stripes_keep_the_light_of_a_screen(pitch):
    """Each colour lights a third of each pixel, three times as bright, and stripes do not overlap."""
    light = media.add_stripes(np.ones((2, 5300, 3), np.float32), pitch)
    assert light.mean((0, 1)) == pytest.approx(1, abs=2 * pitch / 5300) and light.max() <= 3 + 1e-3
    if pitch % 3 == 0:
        assert {*np.rint(light[0]).ravel()} == {0.0, 3.0} and (light.sum(2) == pytest.approx(3, abs=1e-3))


def test_a_screen_shows_white_and_is_purer_than_ink():
    white, red = media.screen_light(np.uint8([[[255, 255, 255], [255, 0, 0]]]))[0]
    assert white == pytest.approx([1, 1, 1], abs=0.01) and 0.85 < red[0] / white[0] < 0.95


def test_a_mosaic_keeps_what_is_smooth_and_makes_fringes_of_stripes():
    ramp = np.stack([np.linspace(0.1, 0.9, 64, dtype=np.float32)[None] * np.ones((48, 1), np.float32)] * 3, -1)
    assert np.abs(media.demosaic(ramp.copy()) - ramp)[1:-1, 1:-1].max() < 1e-6
    x = np.arange(256) + np.zeros((32, 1))  # a little more than two pixels a period: red and blue beat, green not
    waves = np.stack([0.5 + 0.3 * np.cos(math.pi * x * 0.97)] * 3, -1).astype(np.float32)
    spectrum = np.abs(np.fft.rfft(media.demosaic(waves.copy())[8], axis=0))[1:20].max(0)
    assert spectrum[0] > 20 * spectrum[1] and spectrum[2] > 20 * spectrum[1]


@pytest.mark.parametrize("seed", range(5))
def test_the_place_of_a_point_on_cloth_equals_that_of_a_solver(seed):
    """The truth, by iteration, against SciPy's solver; and a cloth without folds is stretched by what was asked."""
    cloth = media.cloth_of(Shot(fold=0.02, stretch=0.05, seed=seed), SIZE)
    points = RANDOM(seed).uniform(0, 1, (6, 2)) * SIZE
    solution = [fsolve(lambda at, goal=point: cloth.card(at[None])[0] - goal, point) for point in points]
    np.testing.assert_allclose(cloth.lay(points), solution, atol=1e-6)
    assert 0.002 < np.abs(cloth.card(points) - points).max() / CARD.width < 0.06
    stretch = media.cloth_of(Shot(stretch=0.05, seed=seed), SIZE)
    assert np.linalg.svd(np.linalg.inv(stretch.linear))[1] == pytest.approx([1.05, 1.0])


@pytest.mark.parametrize("sag", [0.0, 0.05])
def test_a_photograph_shows_the_corners_of_a_cloth_at_their_truth(sag):
    """A card whose patch is black: its centre of mass is that of the quadrilateral of curved sides."""
    dots = np.full((1300, 1300, 3), 1, np.float32)
    (left, top), _, (right, low), _ = np.rint(np.array(CARD.patch.corners) * 10).astype(int)
    dots[top:low, left:right] = 0
    shot = Shot(fold=0.01, stretch=0.04, sag=sag, seed=4)
    black, white = (take_photo(ink, shot, (400, 400), np.zeros((9, 9, 3), np.uint8)) for ink in (dots, flat(1)))
    dark = (white.pixels[..., 1].astype(float) - black.pixels[..., 1]) > 100
    for x, y in np.array(black.patch):
        near = dark[max(0, round(y) - 4) : round(y) + 5, max(0, round(x) - 4) : round(x) + 5].mean()
        assert 0.1 < near < 0.45, "a corner of a square has a quarter of its surroundings"


def test_glass_adds_light_to_the_card_alone_and_a_refresh_changes_it_by_rows():
    shot = Shot(reflection=0.2, seed=1)
    (dark, plain) = (take_photo(flat(0.1), s, (200, 200)) for s in (shot, Shot(seed=1)))
    off = dark.pixels.astype(int) - plain.pixels
    corners = np.array(plain.card)
    inside = np.zeros((200, 200), bool)
    (left, top), (right, low) = corners.min(0) + 2, corners.max(0) - 2
    inside[round(top) : round(low), round(left) : round(right)] = True
    assert off[inside].min() >= -1 and off[inside].max() > 20
    inside[round(top) - 5 : round(low) + 5, round(left) - 5 : round(right) + 5] = True
    assert np.abs(off[~inside]).max() == 0
    corners = np.array([[0, 0], [99, 0], [99, 99], [0, 99.0]])
    bands = media.add_front(flat(0.5)[:100, :100], corners, Shot(refresh=0.2))
    inner = bands[3:-3, 3:-3]
    assert np.ptp(inner, axis=1).max() < 1e-6 and 0.4 - 1e-6 <= inner.min() < inner.max() <= 0.6 + 1e-6


def test_the_medium_of_a_run_is_that_of_its_simulator(tmp_path, error_line):
    run = printed_run(tmp_path / "run", card_dots(RANDOM(1).integers(0, 256, (20, 20, 3), np.uint8)))
    place = run / "placement.json"
    place.write_text(place.read_text().replace('"medium": "paper"', '"medium": "glass"'))
    (photo,) = simulate(run, tmp_path / "glass", 1, size=(96, 128))
    assert main(["simulate", str(run), str(tmp_path / "same"), "--count", "1", "--size", "128x96"]) == 0
    assert photo.read_bytes() == next((tmp_path / "same").glob("*.jpg")).read_bytes()
    assert (
        main(["simulate", str(run), str(tmp_path / "s"), *["--count", "1", "--size", "128x96", "--medium", "screen"]])
        == 0
    )
    assert photo.read_bytes() != next((tmp_path / "s").glob("*.jpg")).read_bytes()
    place.write_text(place.read_text().replace("glass", "wood", 1))
    assert "`printer.medium` must be one of paper" in error_line("simulate", run, tmp_path / "wood", "--count", 1)


def test_on_cloth_a_fold_hides_nothing_and_a_cover_its_area():
    coarse = cv2.resize(RANDOM(8).uniform(0, 255, (40, 40, 3)).astype(np.float32), (256, 256))
    swatches = Swatches(np.zeros((32, 3)), np.zeros((32, 3), bool))
    looks, full = {"eot": expected_look(coarse, swatches, CARD)}, np.ones((GRID, GRID), bool)
    y, x = np.mgrid[:256, :256].astype(np.float32)
    wave = 7 * np.sin(2 * np.pi * (x + y) / 256)  # seven eighths of a cell
    fold = cv2.remap(coarse, x + wave, y - wave, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    cover = fold.copy()
    cover[:128, :128] = RANDOM(9).uniform(0, 255, 3)

    def share(photo, slack):
        return resemblance(photo.astype(np.uint8), full, looks, "eot", slack=slack).hidden_share

    assert share(fold, 0) > 0.1 > 0.02 > share(fold, 1)
    assert share(cover, 1) == pytest.approx(0.25, abs=0.06)

"""Colours from photographs of the chart beside a patch or alone, and the camera's exposure, separated from those of
printer and paper."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.commands import main
from attacks.perturbations.patch.card import card
from attacks.perturbations.patch.card_raster import card_picture
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.physical import colour_fit
from attacks.physical.chart import CELLS, PAPER, chart_card, measured_printer
from attacks.physical.colour_fit import Swatches, colour_difference, colour_terms, fit_colours, scene_cells
from attacks.physical.photo_measure import Expected, measure_photo
from attacks.physical.photos import PhotoFile
from attacks.physical.rectify import from_corners
from attacks.physical.scoring import colours_of_photos
from attacks.physical.simulation.camera import print_raster, to_light
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Ranges, Shot, draw_shot
from tests.helpers.photographs import card_light, clutter, encoded, place_card, render_photo
from tests.helpers.prints import physical
from transforms.colour.spaces import to_linear

CARD = card(80, 80, words="card 7")
SOURCE = colour_fit.nominal(CARD)
ALL_VALID = np.ones((len(SOURCE), 3), bool)


def polynomial(degree, seed=0):
    rng = np.random.default_rng(seed)
    coefficients = rng.uniform(-0.04, 0.04, (3, {1: 4, 2: 10}[degree]))
    coefficients[[0, 1, 2], [1, 2, 3]] += 0.7
    coefficients[:, 0] += 0.05
    return coefficients


@pytest.mark.parametrize("degree", [1, 2])
def test_the_fit_recovers_a_polynomial(degree):
    true = polynomial(degree)
    light = colour_terms(SOURCE, degree) @ true.T
    result = fit_colours(SOURCE, Swatches(light, ALL_VALID))
    assert result.degree == degree and result.swatches == 32
    assert np.abs(result.coefficients - true).max() < 2e-3
    assert result.nominal_error > 3 and result.held_out_error < 0.05


def test_a_saturated_swatch_does_not_spoil_the_fit():
    """Twice the light: values are clipped at 1, and a fit that included them would be far too flat."""
    true = np.array([[0, 2.0, 0, 0], [0, 0, 2.0, 0], [0, 0, 0, 2.0]])
    light = np.clip(colour_terms(SOURCE, 1) @ true.T, 0, 1)
    result = colour_fit.least_squares_map(SOURCE, Swatches(light, light < 0.99), 1)
    assert np.abs(result - true).max() < 0.01
    assert np.abs(colour_fit.least_squares_map(SOURCE, Swatches(light, ALL_VALID), 1) - true).max() > 0.3


def test_few_swatches_are_fitted_with_degree_one_or_refused():
    light = colour_terms(SOURCE, 2) @ polynomial(2).T
    short, *suite = (Swatches(light, ALL_VALID & (np.arange(32) < count)[:, None]) for count in (7, 8, 15))
    with pytest.raises(ValueError, match=r"`swatches` must be at least 8 .* found 7"):
        fit_colours(SOURCE, short)
    assert [fit_colours(SOURCE, value).degree for value in suite] == [1, 1]


def test_held_out_swatches_are_not_fitted():
    """Noise alone: a fit of degree 2 is better on the fitted swatches, and worse on the held-out ones."""
    light = np.clip(SOURCE * 0.7 + 0.05 + 0.05 * np.random.default_rng(1).standard_normal(SOURCE.shape), 0, 1)
    value = Swatches(light, ALL_VALID)
    output = colour_terms(SOURCE, 2) @ colour_fit.least_squares_map(SOURCE, value, 2).T
    assert fit_colours(SOURCE, value).held_out_error > 1.1 * colour_difference(output, light).mean()


def test_the_middle_of_every_swatch_is_measured():
    pose = place_card(CARD, width=300, degrees=200, jitter=0.2, size=(560, 560))
    pixels = render_photo(card_light(CARD), pose, (560, 560), light_at=0.6, noise=0.01, points=2)
    result = colour_fit.measure_swatches(pixels, pose, CARD)
    assert result.valid.all()
    assert colour_difference(result.light, 0.6 * SOURCE).max() < 1.5
    pixels = render_photo(card_light(CARD), pose, (560, 560), light_at=1.7, points=2)
    bright = colour_fit.measure_swatches(pixels, pose, CARD)
    assert (bright.valid == (1.7 * SOURCE < 1)).all()


def test_a_swatch_beyond_the_edge_is_not_measured():
    pose = place_card(CARD, width=300, size=(420, 420), shift=(60, 0))
    result = colour_fit.measure_swatches(np.full((420, 420, 3), 99, np.uint8), pose, CARD)
    right = [swatch.box.x + swatch.box.width > 92 for swatch in CARD.chart]
    assert result.valid.any() and not result.valid[right].any()


def test_photographs_are_scaled_to_one_exposure():
    light = colour_terms(SOURCE, 2) @ polynomial(2).T
    stops = np.array([-1.0, 0.5, 0.0, 0.2, -0.3])
    shots = [Swatches(light * 2**stop, light * 2**stop < 1) for stop in stops]
    common, result = colour_fit.pool(shots, [None] * 5)
    assert np.allclose(np.log2(result), stops[:, None], atol=1e-6) and common.valid.all()
    assert np.allclose(common.light, light)
    assert (colour_fit.pool(shots[:1], [None])[1] == 1).all()


def test_the_exposure_measured_on_the_scene_is_removed_from_the_colours():
    """Gains, whether all photographs share them or not, are not part of the printer's map. A photograph without a
    measured gain is scaled to the others by its chart, each channel by itself."""
    light = 0.4 * colour_terms(SOURCE, 2) @ polynomial(2).T
    gains = np.array([0.5, 0.45, 0.55])[None] * np.array([1, 1.3, 0.8, 0.9])[:, None]
    shots = [Swatches(light * gain, ALL_VALID) for gain in gains]
    for reference in (list(gains), [*gains[:2], None, gains[3]]):
        common, result = colour_fit.pool(shots, reference)
        assert np.allclose(result, gains, rtol=1e-6) and np.allclose(common.light, light)


def test_light_equals_that_of_the_transforms_and_the_file_names_its_kind():
    levels = torch.arange(256, dtype=torch.float64) / 255
    assert np.allclose(colour_fit.LIGHT, to_linear(levels), atol=1e-6)
    file = fit_colours(SOURCE, Swatches(SOURCE, ALL_VALID)).to_dict()
    assert np.shape(file.pop("coefficients")) == (3, {1: 4, 2: 10}[file.pop("degree")])
    assert file == {"schema": 1, "kind": "polynomial", "light": "linear"}


# --- The exposure

DPI, SIDE = 75, 64
QUAD = ((0.35, 0.3), (0.7, 0.3), (0.7, 0.65), (0.35, 0.65))
TEXTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.float32)
EXPECTED = Expected(physical(("scene",), ((QUAD,),), (SIDE, SIDE), id="vp-00000007"), "eot", CARD, {"eot": TEXTURE})
STOPS = -1.0


def picture(seed):
    """A scene of many colours, bright and dark."""
    light = (clutter((8 * SIDE, 8 * SIDE), seed)[::8, ::8] - 0.2) ** 2 * 2 + 0.03
    return np.rint(encoded(light) * 255).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def shots():
    """Photographs of the printed card in its scene, all of them a stop too dark; and the values drawn."""
    ink = print_raster(card_picture(CARD, TEXTURE, DPI), 0.5)
    ranges = Ranges(stops=(STOPS - 0.2, STOPS + 0.2), contrast=(0.95, 1.05), red=(0.1, 0.3))
    shots = [draw_shot(ranges, np.random.default_rng(seed)) for seed in range(5)]
    size, rng = (420, 560), np.random.default_rng(9)
    return [(take_photograph(picture(0), QUAD, CARD, ink, DPI, shot, size, rng).pixels, shot) for shot in shots]


def measure(shots, of=0):
    return [
        measure_photo(PhotoFile(Path("x"), f"{i}.jpg", 0), pixels, picture(of), EXPECTED)
        for i, (pixels, _) in enumerate(shots)
    ]


@pytest.fixture(scope="module")
def measurements(shots):
    return measure(shots)


def off(fit):
    """The mean difference of colour between a map and the ink itself."""
    inks = print_raster(np.array([[swatch.colour for swatch in CARD.chart]], np.uint8), 0.5)[0]
    return colour_difference(colour_terms(SOURCE, fit.degree) @ fit.coefficients.T, inks).mean()


@pytest.mark.slow
def test_colour_map_and_exposure_are_separated(shots, measurements):
    colours = colours_of_photos(measurements, CARD)
    assert off(colours.fit) < 3 and colours.comparisons == len(shots) and not colours.notes
    assert list(colours.stops.values()) == pytest.approx([shot.stops for _, shot in shots], abs=0.2)
    for gain, (_, shot) in zip(colours.gains.values(), shots, strict=True):
        assert np.log2(gain[0] / gain[1]) == pytest.approx(shot.red, abs=0.1)


@pytest.mark.slow
def test_another_scene_does_not_measure_the_exposure(shots, measurements):
    other_scene = colours_of_photos(measure(shots[:3], of=1), CARD)
    assert other_scene.comparisons == 0 and len(other_scene.notes) == 1 and off(other_scene.fit) > 6
    assert np.median(list(other_scene.stops.values())) == pytest.approx(0, abs=1e-9)
    for reference, suite in ((2, False), (3, True)):
        blind = [dataclasses.replace(item, gain=None) for item in measurements]
        part = [*measurements[:reference], *blind[reference:]]
        colours = colours_of_photos(part, CARD)
        assert bool(colours.comparisons) == suite and (off(colours.fit) < 3) == suite


def lay_card(gain, inside=200, seed=0):
    """The picture of the run as a photograph, unmoved, in another light, with a card of one level."""
    reference = picture(seed)
    light = (((reference / 255 + 0.055) / 1.055) ** 2.4) * gain
    photo = np.rint(encoded(np.clip(light, 0, 1)) * 255).astype(np.uint8)
    scene = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    homography = scene @ from_corners(CARD.patch.corners, np.array(QUAD) * SIDE)
    corners = np.array([[0, 0, 1], [CARD.width, CARD.height, 1]]) @ homography.T
    (left, top), (right, low) = np.rint(corners[:, :2] / corners[:, 2:]).astype(int)
    photo[max(top, 0) : low + 1, max(left, 0) : right + 1] = inside
    return photo, reference, scene, CARD, homography


@pytest.mark.parametrize("gain", [(0.4, 0.5, 0.45), (1, 1, 1), (3.0, 2.0, 2.5)])
@pytest.mark.parametrize("inside", [0, 120, 255])
def test_gains_measure_the_light_for_any_content_of_the_card(gain, inside):
    assert colour_fit.gains(scene_cells(*lay_card(np.array(gain), inside))) == pytest.approx(gain, rel=0.03)


def test_gains_are_none_without_comparable_pixels():
    photo, reference, scene, original, homography = lay_card(1.0)
    flat = np.full_like(reference, 120)
    black, white = (np.full_like(reference, level) for level in (0, 255))
    for other in (picture(1), reference[:, ::-1].copy(), flat, black, white):
        assert colour_fit.gains(scene_cells(photo, other, scene, original, homography)) is None
    assert colour_fit.gains(scene_cells(flat, flat, scene, original, homography)) is None
    near = np.diag([6.0, 6, 1]) @ scene  # only the card is left in the photograph
    near[:2, 2] -= 6 * SIDE * np.array([0.38, 0.33])
    shift = near @ np.linalg.inv(scene) @ homography
    assert colour_fit.gains(scene_cells(photo, reference, near, original, shift)) is None


# --- The chart alone: printed, photographed, and measured

CHART_QUAD = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))


def photo(path, **options):
    raster = card_picture(chart_card(), np.full((1, 1, 3), 255, np.float32), 100)
    shot = Shot(**{"degrees": 4, "blur": 0.6, "read": 0.001} | options)
    scene, light, rng = np.full((64, 64, 3), 90, np.uint8), print_raster(raster, 1.0), np.random.default_rng(0)
    result = take_photograph(scene, CHART_QUAD, chart_card(), light, 100, shot, (640, 720), rng)
    Image.fromarray(result.pixels).save(path)
    return path


@pytest.mark.slow
def test_a_photograph_of_the_chart_gives_the_ink_in_any_light(tmp_path):
    """The truth is the simulator's ink, relative to its paper."""
    colours = np.random.default_rng(1).integers(0, 256, (1, 400, 3)).astype(np.uint8)
    paper = print_raster(np.full((1, 1, 3), 255, np.uint8), 1.0)
    true = (PAPER * print_raster(colours, 1.0) / paper)[0].astype(np.float64)
    light = to_light(colours[0] / np.float32(255)).astype(np.float64)
    for lamp in ({"stops": -0.3}, {"stops": -1.2, "red": 0.3, "blue": -0.3, "gradient": 0.3}):
        out = tmp_path / "printer.json"
        fit = measured_printer([photo(tmp_path / "a.png", **lamp)], out)
        assert colour_difference(light, true).mean() > 10
        assert colour_difference(colour_terms(light, fit.degree) @ fit.coefficients.T, true).mean() < 2.5
        np.testing.assert_allclose(read_colour_map(str(out)), fit.table(), atol=1e-6)


def test_the_chart_holds_each_colour_once_and_white_in_every_part():
    card = chart_card()
    grid = card.chart[-(CELLS**2) :]
    colours = [item.colour for item in grid if item.colour != (255,) * 3]
    assert len(colours) == len(set(colours)) == CELLS**2 - 17
    for item in grid:
        inside = item.box.x >= card.patch.x and item.box.x + item.box.width <= card.patch.x + card.patch.width
        assert inside and item.box.y + item.box.height <= card.patch.y + card.patch.height
    white = np.array([[item.box.x, item.box.y] for item in grid if item.colour == (255,) * 3])
    middle = np.array([card.width / 2, card.height / 2])
    assert all(((white > middle) == quarter).all(1).sum() >= 3 for quarter in ([0, 0], [0, 1], [1, 0], [1, 1]))


@pytest.mark.slow
def test_the_commands_print_and_measure_the_chart(tmp_path, capsys):
    assert main(["print", "--chart", "--dpi", "150", "--paper", "letter", "--out", str(tmp_path / "chart")]) == 0
    assert sorted(path.name for path in (tmp_path / "chart").iterdir()) == ["card.png", "sheet.pdf", "sheet.png"]
    with Image.open(tmp_path / "chart" / "sheet.png") as sheet:
        sheet.point(lambda value: round(0.8 * value)).save(tmp_path / "photo.png")
    out = tmp_path / "printer.json"
    assert main(["score", "--chart", str(tmp_path / "photo.png"), "--out", str(out)]) == 0
    assert "printer=measured printer.colour=" in capsys.readouterr().out
    assert json.loads(out.read_text())["kind"] == "polynomial"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        (["print", "run", "--chart"], "drop RUN"),
        (["print"], "RUN"),
        (["score", "run"], "PHOTOS"),
        (["score", "--chart", "white.png"], "less exposure"),
        (["score", "--chart", "nothing.png"], "0 of the chart's 4 fiducials"),
    ],
)
def test_errors_are_one_line(arguments, about, tmp_path, monkeypatch, error_line):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (200, 200)).save("nothing.png")
    raster = card_picture(chart_card(), np.full((1, 1, 3), 255, np.float32), 100)
    Image.fromarray(np.pad(raster, ((20, 20), (20, 20), (0, 0)), constant_values=255)).save("white.png")
    assert about in error_line(*arguments)

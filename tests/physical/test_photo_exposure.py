"""The camera's exposure, separated from the colours of printer and paper."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from attacks.perturbations.patch.card import card
from attacks.perturbations.patch.card_raster import card_picture
from attacks.physical.colour_fit import colour_difference, colour_terms, gains, nominal, scene_cells
from attacks.physical.photo_measure import Expected, measure_photo
from attacks.physical.photos import PhotoFile
from attacks.physical.rectify import from_corners
from attacks.physical.scoring import colours_of_photos
from attacks.physical.simulation.camera import print_raster
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Ranges, draw_shot
from attacks.physical.views import PlacementRecord
from tests.helpers.photographs import clutter, encoded

CARD, DPI, SIDE = card(80, 80, words="card 7"), 75, 64
QUAD = ((0.35, 0.3), (0.7, 0.3), (0.7, 0.65), (0.35, 0.65))
PLACEMENT = PlacementRecord(("scene",), (SIDE, SIDE), (16, 16), ((QUAD,),), None, True)
TEXTURE = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.float32)
EXPECTED = Expected("vp-00000007", "eot", CARD, {"eot": TEXTURE})
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
        measure_photo(PhotoFile(Path("x"), f"{i}.jpg", 0), pixels, picture(of), EXPECTED, PLACEMENT, "photo")
        for i, (pixels, _) in enumerate(shots)
    ]


@pytest.fixture(scope="module")
def measurements(shots):
    return measure(shots)


def off(fit):
    """The mean difference of colour between a map and the ink itself."""
    inks = print_raster(np.array([[swatch.colour for swatch in CARD.chart]], np.uint8), 0.5)[0]
    return colour_difference(colour_terms(nominal(CARD), fit.degree) @ fit.coefficients.T, inks).mean()


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
        part = [
            dataclasses.replace(item, gain=item.gain if i < reference else None)
            for i, item in enumerate(measurements)
        ]
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
    assert gains(scene_cells(*lay_card(np.array(gain), inside))) == pytest.approx(gain, rel=0.03)


def test_gains_are_none_without_comparable_pixels():
    photo, reference, scene, original, homography = lay_card(1.0)
    flat = np.full_like(reference, 120)
    for other in (
        picture(1),
        reference[:, ::-1].copy(),
        flat,
        np.zeros_like(reference),
        np.full_like(reference, 255),
    ):
        assert gains(scene_cells(photo, other, scene, original, homography)) is None
    assert gains(scene_cells(flat, flat, scene, original, homography)) is None
    near = np.diag([6.0, 6, 1]) @ scene  # only the card is left in the photograph
    near[:2, 2] -= 6 * SIDE * np.array([0.38, 0.33])
    shift = near @ np.linalg.inv(scene) @ homography
    assert gains(scene_cells(photo, reference, near, original, shift)) is None

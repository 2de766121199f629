"""The card through a lens and over bent paper: the fit against the exact model of the simulation."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from attacks.perturbations.patch.card import card
from attacks.perturbations.patch.card_raster import card_picture
from attacks.physical.detect import LIGHT, detect, grey_picture
from attacks.physical.rectify import POINTS, card_edges, edge_lines, fit_homography, project
from attacks.physical.simulation import shots
from attacks.physical.simulation.camera import print_raster
from attacks.physical.simulation.optics import CameraLens, sheet_light
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import PRESETS, Shot, draw_shot
from attacks.physical.surface import flattened, ideal_photo
from attacks.physical.surface_fit import locate, shared_lens

CARD, SIZE = card(100, 100, "card 7"), (480, 640)
QUAD = ((0.27, 0.3), (0.73, 0.3), (0.73, 0.76), (0.27, 0.76))


def place_card(shot):
    """The exact lens and sheet of a photograph."""
    corners = shots.map_points(shots.from_shares((64, 64)), QUAD)
    layer = shots.four_point_homography(CARD.patch.corners, corners)
    eye = np.asarray(shots.frame(SIZE) @ shots.view_homography(shot))
    return CameraLens(shot.k1, SIZE), sheet_light(shot, eye, layer, (CARD.width, CARD.height))


def take_photo(shot, texture=40):
    light = print_raster(card_picture(CARD, np.full((8, 8, 3), texture, np.float32), 120), 0)
    scene = np.full((64, 64, 3), 120, np.uint8)
    return take_photograph(scene, QUAD, CARD, light, 120, shot, SIZE, np.random.default_rng(0))


def locate_card(made):
    return locate(grey_picture(made.pixels), CARD, detect(made.pixels, CARD).corners)


def off(found, made):
    return np.linalg.norm(found.surface.project(CARD.patch.corners) - made.patch, axis=1).max()


@pytest.mark.parametrize("sag", [-0.1, 0.0, 0.06])
@pytest.mark.parametrize("k1", [-0.2, 0.0, 0.15])
def test_the_way_back_through_lens_and_sheet_is_the_inverse_of_the_way_there(k1, sag):
    lens, paper = place_card(Shot(yaw=20, pitch=-15, degrees=30, k1=k1, sag=sag, curl=70))
    points = np.random.default_rng(0).uniform(0, CARD.width, (200, 2))
    np.testing.assert_allclose(paper.card(lens.ideal(lens.project(paper.project(points)))), points, atol=1e-7)


def test_a_sheet_keeps_its_lengths_and_has_its_sag():
    """Seen straight from above its edge on, through the camera's own coordinates."""
    _, paper = place_card(Shot(sag=0.08, curl=0))
    plan = replace(paper, camera=np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]))  # right, and height
    x = np.linspace(0, CARD.width, 2001)
    profile = plan.project(np.stack([x, 0 * x], 1))
    steps = np.linalg.norm(np.diff(profile, axis=0), axis=1)
    np.testing.assert_allclose(steps, x[1], rtol=1e-6)
    assert np.ptp(profile[:, 1]) / CARD.width == pytest.approx(0.08, abs=5e-4)
    assert profile[0, 1] == pytest.approx(0, abs=1e-9) and profile[1000, 1] == profile[:, 1].max()


def test_a_lens_is_that_of_brown():
    lens = CameraLens(-0.1, (300, 400))
    assert lens.focal == pytest.approx(1.2 * math.hypot(300, 400) / 2)
    right = np.array([[lens.focal, 0.0]])
    np.testing.assert_allclose(lens.project(lens.centre + right), lens.centre + 0.9 * right)


def test_a_flat_card_and_a_plain_lens_stay_a_homography():
    result = take_photo(Shot(yaw=15, pitch=-10, blur=0.6))
    match, tags = locate_card(result), detect(result.pixels, CARD).corners
    assert off(match, result) < 0.15  # the truth of the simulator
    plane = fit_homography(CARD, tags)
    assert match.surface.is_plane and match.tags == plane.tags and not match.flags
    corners = np.array(CARD.patch.corners)
    np.testing.assert_allclose(match.surface.project(corners), project(plane.homography, corners), atol=1e-8)
    np.testing.assert_allclose(*(h / h[2, 2] for h in (match.surface.homography, plane.homography)), atol=1e-8)
    assert flattened(result.pixels, match.surface, CARD)[0] is result.pixels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shot", "bound"),
    [
        (Shot(yaw=20, k1=-0.2, blur=0.6), 0.25),
        (Shot(yaw=-20, pitch=10, sag=0.1, curl=25, blur=0.6), 0.4),
        (Shot(yaw=10, pitch=20, sag=-0.08, curl=110, k1=0.15, blur=0.6), 0.5),
        (Shot(yaw=-15, pitch=-17, sag=0.033, curl=107, k1=0.192, scale=1.2, blur=0.8), 0.25),
    ],
    ids=["lens", "raised", "both", "both, not from the bend alone"],
)
def test_lens_and_bend_are_recovered(shot, bound):
    result = take_photo(shot)
    match = locate_card(result)
    flat = project(plane_if_flat(detect(result.pixels, CARD).corners), CARD.patch.corners)
    plane = np.linalg.norm(flat - result.patch, axis=1).max()
    assert off(match, result) < bound < plane and not match.flags
    assert bool(match.surface.is_bent) == bool(shot.sag) and bool(match.surface.k1) == bool(shot.k1)
    assert match.surface.bend == pytest.approx(shot.sag, abs=0.02)
    assert match.surface.k1 == pytest.approx(shot.k1, abs=0.05)
    # The scene under the card, half a card beyond its edges: a plane through the middle of a bent card is far off.
    frame = CARD.width * np.array([[-0.5, -0.5], [1.5, -0.5], [1.5, 1.5], [-0.5, 1.5]])
    scene = project(place_card(shot)[1].camera[:, [0, 1, 3]], frame)
    ground, through_it = (project(h, frame) for h in (match.surface.resting, match.surface.homography))
    assert np.linalg.norm(ground - scene, axis=1).max() < 3.5
    assert not shot.sag or np.linalg.norm(through_it - scene, axis=1).max() > 25


@pytest.mark.slow
def test_a_hidden_tag_is_extrapolated_from_what_is_near():
    """The corner is first guessed some 10 pixels off, where none of its edges is within reach."""
    result = take_photo(Shot(yaw=-20, pitch=10, sag=0.05, curl=70, k1=-0.15, blur=0.6))
    tag = detect(result.pixels, CARD).corners[CARD.tags[0].number]
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    width = np.linalg.norm(tag[0] - tag[2])
    result.pixels[np.hypot(x - tag[:, 0].mean(), y - tag[:, 1].mean()) < 0.6 * width] = (120, 60, 60)
    match = locate_card(result)
    assert len(detect(result.pixels, CARD).corners) == 3
    assert off(match, result) < 0.5 and not match.flags


@pytest.mark.slow
@pytest.mark.parametrize(("far", "all_of_them"), [(0, True), (4, True), (40, False)])
def test_lines_lie_on_edges_of_the_card_wherever_they_are_expected(far, all_of_them):
    """The lower half is expected `far` pixels to the right; an edge that is out of reach gives no line."""
    result = take_photo(Shot(blur=0.6))
    light, edges = LIGHT[grey_picture(result.pixels)], card_edges(CARD, [tag.number for tag in CARD.tags])
    output = partial(project, fit_homography(CARD, detect(result.pixels, CARD).corners).homography)

    def expected(points):
        points = np.asarray(points, float)
        return output(points) + np.where(points[..., 1:] > CARD.height / 2, [far, 0], 0)

    places, lines = edge_lines(light, CARD, edges, expected)
    wrong = np.abs((np.c_[output(places), np.ones(len(places))] * lines).sum(1)) > 1
    assert wrong.mean() < 0.06
    assert (len(places) == len(edges) * len(POINTS)) == all_of_them


def plane_if_flat(tags):
    """The homography of all tags, or one that is far off."""
    try:
        return fit_homography(CARD, tags).homography
    except ValueError:
        return np.eye(3)


@pytest.mark.slow
def test_the_flattened_card_and_the_ideal_photograph_show_the_card_and_its_scene():
    result = take_photo(Shot(yaw=15, sag=0.08, curl=40, k1=-0.15, blur=0.4), texture=200)
    match = locate_card(result)
    picture, flat = flattened(result.pixels, match.surface, CARD)
    for swatch in CARD.chart[::5]:
        x, y = project(flat, [swatch.box.x + swatch.box.width / 2, swatch.box.y + swatch.box.height / 2]).round()
        assert np.abs(picture[int(y), int(x)] - np.array(swatch.colour, float)).max() < 12
    x, y = project(match.surface.homography, [CARD.width / 2, CARD.height / 2]).round()
    assert np.abs(ideal_photo(result.pixels, match.surface)[int(y), int(x)].astype(int) - 200).max() < 12


def test_photographs_of_one_camera_share_its_lens():
    random = np.random.default_rng(0)

    def lenses(k1, count=12):
        return [(k1 + 0.03 * float(e), 0.03) for e in random.standard_normal(count)]

    assert shared_lens(lenses(-0.1)) == pytest.approx(-0.1, abs=0.03)
    assert shared_lens(lenses(0.0)) == 0 and shared_lens(lenses(-0.1, 2)) is None
    assert shared_lens([*lenses(-0.2, 6), *lenses(0.2, 6)]) is None


@pytest.mark.slow
def test_a_known_lens_is_used():
    result = take_photo(Shot(yaw=20, k1=-0.1, blur=0.6))
    match = locate(grey_picture(result.pixels), CARD, detect(result.pixels, CARD).corners, k1=-0.1)
    assert match.surface.k1 == -0.1 and match.lens is None and off(match, result) < 0.25


def test_hard_photographs_have_every_factor():
    shots = [draw_shot(PRESETS["hard"], np.random.default_rng(i)) for i in range(60)]
    for name in ("k1", "sag", "clutter", "covered", "glare", "sharpen", "local", "detail"):
        values = [getattr(shot, name) for shot in shots]
        assert np.ptp(values) > 0.5 * np.ptp(getattr(PRESETS["hard"], name)), name
    kind = draw_shot(PRESETS["kind"], np.random.default_rng(3))
    assert kind.k1 == kind.sag == kind.glare == kind.clutter == 0

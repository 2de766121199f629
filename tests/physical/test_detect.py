"""The tags of a card in rendered photographs, where every corner is known, and from tags back to millimetres."""

from functools import partial

import cv2
import numpy as np
import pytest
import torch

from attacks.perturbations.patch.card import Box
from attacks.physical.detect import detect, grey_picture
from attacks.physical.rectify import fit_homography, from_corners, natural_size, pose, project, rectify
from attacks.physical.surface_fit import locate
from tests.helpers.photographs import card_light, lattice, map_points, numbered_card, place_card, render_photo
from tests.helpers.wrong import refused
from transforms import Affine, Compose, Viewpoint
from transforms.sampling.homography import invert

CARD = numbered_card(28)
LIGHT = card_light(CARD)
POINTS = lattice(CARD)


def shot(light=LIGHT, **options):
    """A photograph (480,640,3), and where each tag's corners are in it."""
    photo = {key: options.pop(key) for key in ("blur", "noise", "light_at") if key in options}
    pose = place_card(CARD, **{"width": 220, "size": (480, 640), **options})
    pixels = render_photo(light, pose, options.get("size", (480, 640)), points=2, **photo)
    return pixels, {tag.number: map_points(pose, tag.box.corners) for tag in CARD.tags}


def worst(detected, true):
    return max(np.linalg.norm(corners - true[number], axis=1).max() for number, corners in detected.items())


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [0, 65, 180, 250])
def test_all_corners_are_detected_in_order_at_any_rotation(degrees):
    pixels, true = shot(degrees=degrees, jitter=0.15, seed=degrees)
    output = detect(pixels, CARD)
    assert list(output.corners) == [28, 29, 30, 31] and not output.foreign and not output.duplicates
    assert worst(output.corners, true) < 0.4


def test_blur_does_not_move_the_edges():
    """In encoded values light spreads into the dark: a tag would seem smaller by more than half a pixel."""
    for blur in (0.5, 1.5):
        pixels, true = shot(blur=blur, degrees=10)
        output = detect(pixels, CARD).corners
        assert len(output) == 4
        sizes = [cv2.contourArea(np.float32(q[number])) ** 0.5 for q in (output, true) for number in sorted(true)]
        assert np.abs(np.subtract(sizes[:4], sizes[4:])).max() < 0.3


@pytest.mark.parametrize("light_at", [0.05, 0.2])
def test_tags_are_detected_in_a_dark_photograph(light_at):
    pixels, true = shot(light_at=light_at, noise=0.005)
    output = detect(pixels, CARD).corners
    assert len(output) == 4 and worst(output, true) < 1


@pytest.mark.slow
def test_tags_of_another_card_are_listed_as_foreign():
    other = numbered_card(32)
    pixels = render_photo(card_light(other), place_card(other, width=260, size=(480, 640)), (480, 640), points=2)
    output = detect(pixels, CARD)
    assert output.corners == {} and output.foreign == (32, 33, 34, 35)


def test_tags_that_appear_twice_are_not_used():
    pixels, _ = shot(width=180)
    output = detect(np.concatenate([pixels, pixels], axis=1), CARD)
    assert output.corners == {} and output.duplicates == (28, 29, 30, 31)


@pytest.mark.slow
def test_a_hidden_tag_or_one_beyond_the_edge_is_not_detected():
    pixels, _ = shot(light=card_light(CARD, hidden=(30,)))
    assert list(detect(pixels, CARD).corners) == [28, 29, 31]
    pixels, true = shot(shift=(200, 0))
    assert min(true[29][:, 0].max(), true[30][:, 0].max()) > 640
    assert list(detect(pixels, CARD).corners) == [28, 31]


def test_no_tag_is_detected_in_noise_and_clutter():
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (240, 320, 3), np.uint8)
    blocks = np.kron(rng.integers(0, 2, (30, 40, 1), np.uint8) * 255, np.ones((8, 8, 3), np.uint8))
    for pixels in (noise, blocks.astype(np.uint8)):
        assert detect(pixels, CARD).corners == {}


@pytest.mark.slow
@pytest.mark.parametrize("width", [700, 220])
def test_tags_are_detected_in_twelve_megapixels(width):
    """The card fills it, or is a part too small to be resolved in a reduced copy."""
    side = (1300, 1300) if width > 500 else (440, 440)
    pose = place_card(CARD, width=width, degrees=20, jitter=0.1, size=side)
    part = render_photo(LIGHT, pose, side, points=1, blur=1.0, noise=0.0)
    pixels, corner = np.full((3000, 4000, 3), 120, np.uint8), np.array([1100, 2300])
    pixels[corner[0] : corner[0] + side[0], corner[1] : corner[1] + side[1]] = part
    output = detect(pixels, CARD).corners
    assert len(output) == 4
    assert worst(output, {tag.number: map_points(pose, tag.box.corners) + corner[::-1] for tag in CARD.tags}) < 0.6


# --- Rectification


def off(result, true):
    """The largest error over the patch in pixels of a patch 300 wide, of a homography."""
    back = project(np.linalg.inv(true), project(result, POINTS))
    return np.linalg.norm(back - POINTS, axis=1).max() * 300 / CARD.patch.width


@pytest.mark.slow
def test_rectification_is_exact_to_half_a_pixel():
    """Over random poses, lights and blurs; the printed figures of 24 are cited in the module."""
    rng, light, errors = np.random.default_rng(5), LIGHT, []
    for i in range(24):
        options = {"degrees": rng.uniform(-180, 180), "jitter": rng.uniform(0, 0.25), "seed": i}
        true = place_card(CARD, width=rng.uniform(220, 300), size=(640, 640), **options)
        blur, lit = rng.uniform(0.4, 1.2), rng.uniform(0.4, 0.95)
        pixels = render_photo(light, true, (640, 640), blur=blur, light_at=lit, noise=0.01, seed=i, points=2)
        layout = fit_homography(CARD, detect(pixels, CARD).corners)
        errors.append(off(layout.homography, true))
    median, high, worst = np.percentile(errors, [50, 95, 100])
    print(f"rectification, px of 300: median {median:.3f}, 95 % {high:.3f}, worst {worst:.3f}")
    assert median < 0.15 and worst <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [(28,), (28, 29), (29, 31)])
def test_without_a_tag_the_edges_of_the_swatches_refine_the_fit(hidden):
    light = card_light(CARD, hidden=hidden)
    for seed in (0, 1):
        true = place_card(CARD, width=240, degrees=25 * seed - 10, jitter=0.2, size=(500, 500), seed=seed)
        pixels = render_photo(light, true, (500, 500), blur=0.9, light_at=0.7, noise=0.01, seed=seed, points=2)
        tags = detect(pixels, CARD).corners
        error = off(fit_homography(CARD, tags).homography, true)
        result = locate(grey_picture(pixels), CARD, tags)
        corners = np.array(CARD.patch.corners)
        moved = np.abs(result.surface.project(corners) - project(true, corners)).max()
        assert len(result.tags) == 4 - len(hidden) and moved < min(0.4, error)


def exact(true, numbers=range(28, 32)):
    return {tag.number: map_points(true, tag.box.corners) for tag in CARD.tags if tag.number in numbers}


def test_the_fit_of_exact_corners_is_the_homography():
    true = place_card(CARD, degrees=130, jitter=0.3, seed=3)
    for numbers in ((28, 29, 30, 31), (29, 31), (28, 29)):
        layout = fit_homography(CARD, exact(true, numbers))
        assert layout.tags == numbers and layout.worst < 1e-4
        assert off(layout.homography, true) < 1e-3


def test_a_tag_inconsistent_with_the_others_is_left_out():
    true = place_card(CARD, degrees=20, jitter=0.2, seed=1)
    tags = exact(true)
    tags[29] = tags[29] + [40, -15]
    layout = fit_homography(CARD, tags)
    assert layout.tags == (28, 30, 31) and off(layout.homography, true) < 1e-3


def test_tags_inconsistent_with_one_card_are_refused():
    tags = exact(place_card(CARD))
    for fit in (fit_homography, partial(locate, np.full((480, 640), 200, np.uint8))):
        refused("at least 2 of the card's; found 30", fit, CARD, {30: tags[30]})
        refused("do not lie as on the card", fit, CARD, {28: tags[29], 29: tags[28]})


def test_the_pose_equals_that_of_the_stages():
    """A picture seen through Viewpoint and then Affine has the pose that they were given."""
    view = Compose([Viewpoint(40, 30, 170, (1, 2), (20, 60)), Affine(translate=(-0.2, 0.2))])
    u = torch.rand(20, view.dims, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    viewpoint, affine = view.stages
    push = invert(viewpoint.matrix(u[:, :5]) @ affine.matrix(u[:, 5:])).numpy()
    for matrix, (yaw, pitch, roll, distance, fov), shift in zip(
        push, viewpoint.values(u[:, :5]).numpy(), affine.values(u[:, 5:]).numpy(), strict=True
    ):
        result = pose(matrix, Box(-1, -1, 2, 2))
        assert [result.yaw, result.pitch, result.degrees, result.distance] == pytest.approx(
            [yaw, pitch, roll, distance]
        )
        assert result.to_dict()["shift"] == pytest.approx(shift[3:])
        assert np.cos(np.deg2rad(result.angle)) == pytest.approx(np.prod(np.cos(np.deg2rad([yaw, pitch]))))
        assert result.recession * np.tan(np.deg2rad(fov / 2)) == pytest.approx(result.matrix[2, :2])
        repeat = pose(matrix @ np.diag([0.2, 0.2, 1]), Box(-5, -5, 10, 10))  # in other units
        assert np.allclose(repeat.matrix, result.matrix) and repeat.distance == pytest.approx(result.distance)


@pytest.mark.slow
def test_a_rectified_patch_equals_the_texture():
    texture = cv2.GaussianBlur(np.random.default_rng(2).integers(0, 256, (40, 40, 3), np.uint8), (0, 0), 2)
    true = place_card(CARD, width=400, degrees=200, jitter=0.2, seed=2)
    pixels = render_photo(card_light(CARD, texture), true, (720, 960), blur=0, noise=0)
    for size in ((40, 40), (80, 80)):
        output = rectify(pixels, true, CARD.patch, size).astype(float)
        view = cv2.resize(texture, size, interpolation=cv2.INTER_NEAREST).astype(float)
        inner = (slice(2, -2), slice(2, -2))
        assert np.abs(output - view)[inner].mean() < 4
    assert natural_size(true, CARD.patch)[1] == pytest.approx(400, rel=0.1)


def test_shrinking_averages_a_patch():
    """Thin stripes become grey, without aliasing."""
    pixels = np.zeros((800, 800, 3), np.uint8)
    pixels[:, ::2] = 255
    true = from_corners(CARD.patch.corners, [[-0.5, -0.5], [799.5, -0.5], [799.5, 799.5], [-0.5, 799.5]])
    assert np.abs(rectify(pixels, true, CARD.patch, (50, 50)).astype(int) - 128).max() <= 2

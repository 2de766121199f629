"""The tags of a card in photographs that were rendered, so that every corner is known."""

import cv2
import numpy as np
import pytest

from attacks.physical.detect import detect
from tests.helpers.photographs import card_light, map_points, numbered_card, place_card, render_photo

CARD = numbered_card(28)
LIGHT = card_light(CARD)


def shot(**options):
    """A photograph (480,640,3), and where each tag's corners are in it."""
    photo = {key: options.pop(key) for key in ("blur", "noise", "light_at") if key in options}
    pose = place_card(CARD, **{"width": 220, "size": (480, 640), **options})
    pixels = render_photo(options.pop("light", LIGHT), pose, options.get("size", (480, 640)), points=2, **photo)
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
    pixels = render_photo(
        card_light(CARD, hidden=(30,)), place_card(CARD, width=220, size=(480, 640)), (480, 640), points=2
    )
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

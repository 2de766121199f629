"""Laws of every stage, and what each one means on a photograph."""

import itertools
from dataclasses import FrozenInstanceError, fields

import cv2
import numpy as np
import pytest
import skimage.transform
import torch
import torch.nn.functional as F

from transforms import Affine, Brightness, Compose, Contrast, Downscale, Perspective
from transforms.compose import Geometry, Homography
from transforms.sampling.homography import transform

AFFINE = Affine(degrees=30, scale=(0.4, 1.5), shear=(-5, 10), translate=0.1)
# (stage, lowest values, highest values, size of the views of 80 x 120 images)
STAGES = {
    "affine": (AFFINE, (-30, 0.4, -5, -0.1, -0.1), (30, 1.5, 10, 0.1, 0.1), (80, 120)),
    "perspective": (Perspective(0.3), (-0.3,) * 8, (0.3,) * 8, (80, 120)),
    "brightness": (Brightness((-0.3, 0.2)), (-0.3,), (0.2,), (80, 120)),
    "contrast": (Contrast((0.5, 1.8)), (0.5,), (1.8,), (80, 120)),
    "downscale": (Downscale(20), (), (), (20, 30)),
    "downscale range": (Downscale((10, 30)), (10,), (30,), (30, 45)),
    "compose": (
        Compose([Perspective(0.1), AFFINE, Downscale(40), Brightness(0.1)]),
        (-0.1,) * 8 + (-30, 0.4, -5, -0.1, -0.1, -0.1),
        (0.1,) * 8 + (30, 1.5, 10, 0.1, 0.1, 0.1),
        (40, 60),
    ),
    "bicubic": (Compose([Perspective(0.3)], kernel="bicubic"), (-0.3,) * 8, (0.3,) * 8, (80, 120)),
}
every_stage = pytest.mark.parametrize("name", STAGES)
double = torch.float64


def draw(stage, n, dtype=torch.float32):
    """Points of the unit cube; draws are float32 whatever the images are."""
    return torch.rand(n, stage.dims, dtype=dtype)


@pytest.fixture
def photos(photo):
    return torch.cat([photo, photo.flip(-1), 1 - photo]).float()


@every_stage
def test_values_run_over_the_ranges_and_views_have_their_size(name, photos):
    stage, low, high, size = STAGES[name]
    assert stage(photos, draw(stage, 3)).shape == (3, 3, *size)
    low, high = torch.tensor([low], dtype=double), torch.tensor([high], dtype=double)
    torch.testing.assert_close(stage.values(torch.zeros_like(low)), low)
    torch.testing.assert_close(stage.values(torch.full_like(high, 1 - 2**-24)), high, rtol=0, atol=1e-5)
    inside = stage.values(torch.rand(64, stage.dims, dtype=double))
    assert inside.shape == (64, stage.dims)
    assert (inside >= low).all() and (inside <= high).all()


@every_stage
def test_is_frozen(name):
    stage = STAGES[name][0]
    with pytest.raises(FrozenInstanceError):
        setattr(stage, fields(stage)[0].name, 1)


def at(**values):
    """An `Affine` fixed at these values, and the point to call it with."""
    stage = Affine(**{name: (value, value) for name, value in values.items()})
    return stage, torch.rand(1, 5, dtype=double)


def test_a_positive_angle_turns_clockwise_as_displayed(photo):
    stage, u = at(degrees=25)
    # scikit-image counts counter-clockwise, with the row axis pointing down as displayed.
    oracle = skimage.transform.rotate(photo[0].permute(1, 2, 0).numpy(), -25, order=1, cval=0.5)
    np.testing.assert_allclose(stage(photo, u)[0].permute(1, 2, 0).numpy(), oracle, rtol=0, atol=1e-10)


def test_scale_two_shows_the_centre_twice_as_large(photo):
    stage, u = at(scale=2)
    oracle = F.interpolate(photo[..., 20:60, 30:90], scale_factor=2, mode="bilinear", align_corners=False)
    view = stage(photo, u)[..., 1:-1, 1:-1]  # the crop does not know what lies beyond its edge
    torch.testing.assert_close(view, oracle[..., 1:-1, 1:-1], rtol=0, atol=1e-12)


def test_translate_moves_right_and_down_by_a_share_of_the_shorter_side(photo):
    stage, u = at(translate=0.1)
    view = stage(photo, u)
    torch.testing.assert_close(view[..., 8:, 8:], photo[..., :-8, :-8], rtol=0, atol=1e-12)
    torch.testing.assert_close(view[..., :8, :], torch.full((1, 3, 8, 120), 0.5, dtype=double))


def test_affine_is_shear_then_scale_then_rotation_then_shift_about_the_centre(photo):
    stage, u = at(degrees=20, scale=1.2, shear=15, translate=0.05)
    c, s = np.cos(np.radians(20)), np.sin(np.radians(20))
    turn, slant = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), np.eye(3)
    slant[0, 1] = np.tan(np.radians(15))
    to_centre, back = np.eye(3), np.eye(3)
    to_centre[:2, 2], back[:2, 2] = (-59.5, -39.5), (59.5 + 4, 39.5 + 4)  # 5 % of 80 pixels
    matrix = back @ turn @ np.diag([1.2, 1.2, 1]) @ slant @ to_centre
    image = photo[0].permute(1, 2, 0).float().contiguous().numpy()
    oracle = cv2.warpAffine(image, matrix[:2], (120, 80), flags=cv2.INTER_LINEAR, borderValue=(0.5,) * 3)
    np.testing.assert_allclose(stage(photo, u)[0].permute(1, 2, 0).numpy(), oracle, rtol=0, atol=2e-4)


def test_perspective_brings_the_corners_of_the_square_to_their_places():
    stage, u = Perspective(0.3), torch.rand(16, 8, dtype=double)
    square = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=double)
    seen_at = square + stage.values(u).reshape(16, 4, 2)
    torch.testing.assert_close(transform(stage.matrix(u), seen_at)[0], square.expand(16, 4, 2))


def test_no_point_of_the_square_falls_behind_the_camera():
    stage = Perspective(0.49)
    u = torch.tensor(list(itertools.product([0.0, 1 - 2**-24], repeat=8)), dtype=double)
    square = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=double)
    # w is linear, so that the corners, where they are seen, stand for the whole square.
    _, w = transform(stage.matrix(u), square + stage.values(u).reshape(-1, 4, 2))
    assert (w > 0).all()


def test_brightness_adds_and_clamps(photo):
    view = Brightness((0.3, 0.3))(photo, torch.rand(1, 1))
    torch.testing.assert_close(view, (photo + 0.3).clamp(max=1))


def test_contrast_stretches_about_mid_grey_and_clamps(photo):
    view = Contrast((1.8, 1.8))(photo, torch.rand(1, 1))
    torch.testing.assert_close(view, (1.8 * photo - 0.4).clamp(0, 1))


@pytest.mark.parametrize(("stage", "kinds"), [(AFFINE, 2), (Perspective(), 2), (Brightness(), 0), (Downscale(8), 0)])
def test_kind_of_stage_decides_what_fuses(stage, kinds):
    assert isinstance(stage, Geometry) + isinstance(stage, Homography) == kinds

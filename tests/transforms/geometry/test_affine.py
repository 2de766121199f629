"""Homographies: crop, mirror, camera pose and corner jitter, against torchvision, torch.flip and OpenCV."""

import itertools
import math

import cv2
import numpy as np
import pytest
import skimage.transform
import torch
from torchvision.transforms.v2 import functional as tv

from transforms.compose import Compose
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.viewpoint import Viewpoint
from transforms.sampling.homography import homography, invert, transform

double = torch.float64
LAST = 1 - 2**-24
SQUARE = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=double)
WIDE = Viewpoint(yaw=50, pitch=(-20, 40), roll=180, distance=(1.0, 2.0), fov=(10, 70))


def frame_corners(size):
    half = torch.tensor([size[1], size[0]], dtype=double) / min(size)
    return SQUARE * half


def window(crop, u, size):
    """The points at the corners of the frame, in the stage frame."""
    return transform(crop.framed(size).matrix(u), frame_corners(size).expand(len(u), -1, -1))[0]


def extremes(dims):
    return torch.tensor(list(itertools.product([0.0, 0.5, LAST], repeat=dims)), dtype=double)


def fixed(stage, **values):
    return stage(**{name: (value, value) for name, value in values.items()})


# --- Affine


def test_positive_angle_turns_clockwise_as_displayed(photo):
    # scikit-image counts counter-clockwise, with the row axis pointing down as displayed.
    oracle = skimage.transform.rotate(photo[0].permute(1, 2, 0).numpy(), -25, order=1, cval=0.5)
    view = fixed(Affine, degrees=25)(photo, torch.rand(1, 5, dtype=double))
    np.testing.assert_allclose(view[0].permute(1, 2, 0).numpy(), oracle, rtol=0, atol=1e-10)


def test_affine_is_shear_then_scale_then_rotation_then_shift_about_the_centre(photo):
    stage = fixed(Affine, degrees=20, scale=1.2, shear=15, translate=0.05)
    c, s = np.cos(np.radians(20)), np.sin(np.radians(20))
    turn, slant = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), np.eye(3)
    slant[0, 1] = np.tan(np.radians(15))
    to_centre, back = np.eye(3), np.eye(3)
    to_centre[:2, 2], back[:2, 2] = (-59.5, -39.5), (59.5 + 4, 39.5 + 4)  # 5 % of 80 pixels
    matrix = back @ turn @ np.diag([1.2, 1.2, 1]) @ slant @ to_centre
    image = photo[0].permute(1, 2, 0).float().contiguous().numpy()
    oracle = cv2.warpAffine(image, matrix[:2], (120, 80), flags=cv2.INTER_LINEAR, borderValue=(0.5,) * 3)
    view = stage(photo, torch.rand(1, 5, dtype=double))
    np.testing.assert_allclose(view[0].permute(1, 2, 0).numpy(), oracle, rtol=0, atol=2e-4)


# --- Crop


@pytest.mark.parametrize("size", [(80, 120), (120, 80), (64, 64), (10, 300)], ids=str)
def test_crop_lies_inside_the_picture_with_the_described_area_and_aspect(size):
    for ratio in ((3 / 4, 4 / 3), (1 / 3, 1.0), (0.05, 20), (1.2, 2.0)):
        crop = Crop((0.1, min(1.0, 1 / ratio[0])), ratio)
        u = torch.cat([extremes(4), torch.rand(500, 4, dtype=double)])
        corners, half = window(crop, u, size), frame_corners(size)[2]
        assert (corners.abs() <= half + 1e-12).all()
        width, height = (corners[:, 2] - corners[:, 0]).unbind(-1)
        area, aspect, right, down = crop.values(u).unbind(-1)
        torch.testing.assert_close(width * height, area * 4 * half.prod())
        torch.testing.assert_close(width / height, aspect * half[0] / half[1])
        slack = 2 * half - torch.stack([width, height], -1)
        torch.testing.assert_close(corners[:, 0] + half, slack * torch.stack([right, down], -1), rtol=0, atol=1e-12)
        assert (aspect >= ratio[0] * (1 - 1e-9)).all() and (aspect <= ratio[1] * (1 + 1e-9)).all()


def test_crop_of_whole_pixels_equals_torchvision(photo):
    top, left, height, width = 10, 42, 40, 48  # of 80 x 120
    crop = fixed(Crop, scale=height * width / 9600, ratio=(width / 120) / (height / 80))
    u = torch.tensor([[0.3, 0.3, left / (120 - width), top / (80 - height)]], dtype=double)
    view = Compose([crop], antialias=False)(photo, u)
    oracle = tv.resized_crop(photo, top, left, height, width, [80, 120], antialias=False)
    inner = (..., slice(2, -2), slice(2, -2))  # torchvision has no data beyond the edge of the crop
    torch.testing.assert_close(view[inner], oracle[inner], rtol=0, atol=1e-10)


# --- Flip


@pytest.mark.parametrize(("vertical", "axis"), [(False, -1), (True, -2)])
def test_flip_is_torch_flip_with_the_given_probability(photo, vertical, axis):
    u = torch.tensor([[0.0], [0.29], [0.3], [LAST]], dtype=double)
    views = Flip(0.3, vertical)(photo.expand(4, -1, -1, -1), u)
    torch.testing.assert_close(views[:2], photo.flip(axis).expand(2, -1, -1, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(views[2:], photo.expand(2, -1, -1, -1), rtol=0, atol=1e-12)
    assert Flip(0.3).values(u).flatten().tolist() == [1, 1, 0, 0] and Flip.discrete == (0,)


# --- Viewpoint


def opencv_view(points, yaw, pitch, roll, distance, fov):
    """Where OpenCV's camera sees points of the print, from the pose as rotation vectors (its y points down too)."""
    turns = [(0, 0, roll), (-pitch, 0, 0), (0, -yaw, 0)]  # a positive angle about x or y brings right or top nearer
    pose = np.linalg.multi_dot([cv2.Rodrigues(np.radians(turn))[0] for turn in turns])
    focal = 1 / math.tan(math.radians(fov) / 2)
    flat = np.concatenate([points, np.zeros((len(points), 1))], axis=1)
    camera = np.diag([focal, focal, 1.0])
    pixels, _ = cv2.projectPoints(flat, pose, np.array([0, 0, distance * focal]), camera, None)
    return torch.tensor(pixels[:, 0])


def test_viewpoint_equals_the_opencv_camera():
    u = torch.cat([extremes(5)[::5], torch.rand(50, 5, dtype=double)])
    points = torch.cat([SQUARE, 2 * torch.rand(20, 2, dtype=double) - 1])
    views = invert(WIDE.matrix(u))
    for row, pose in zip(views, WIDE.values(u).tolist(), strict=True):
        oracle = opencv_view(points.numpy(), *pose)
        torch.testing.assert_close(transform(row[None], points[None])[0][0], oracle, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "stage",
    [
        WIDE,
        Viewpoint(yaw=(20, 60), pitch=(50, 80), roll=90, distance=(1.5, 2), fov=(20, 80)),
        Viewpoint(yaw=-70, pitch=(-60, -50), distance=(0.6, 1), fov=(40, 40)),
    ],
)
def test_least_distance_is_where_the_first_corner_reaches_the_camera(stage):
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=double)] * 2)
    u = torch.cat([grid, torch.tensor([[0.5, 0.0, 1.0]], dtype=double).expand(len(grid), 3)], 1)  # near, wide angle
    depth = transform(invert(stage.matrix(u)), SQUARE.expand(len(u), -1, -1))[1].amin()
    assert depth > 0
    # Depth there is 1 - least / distance. Just beyond that, the stage is refused.
    limit = float((1 - depth) * stage.distance[0])
    with pytest.raises(ValueError, match="`distance` must be above"):
        Viewpoint(stage.yaw, stage.pitch, stage.roll, (0.99 * limit, 2), stage.fov)
    Viewpoint(stage.yaw, stage.pitch, stage.roll, (1.01 * limit, 3), stage.fov)


# --- Perspective


@pytest.mark.parametrize("jitter", [0.1, 0.3, 0.49])
def test_no_corner_jitter_makes_a_degenerate_quad(jitter):
    stage = Perspective(jitter)
    edges = torch.tensor(list(itertools.product([0.0, LAST], repeat=8)), dtype=double)
    u = torch.cat([edges, torch.rand(10_000, 8, dtype=double)])
    seen_at = SQUARE + stage.values(u).unflatten(-1, (4, 2))
    matrix = homography(seen_at, SQUARE)  # raises on a degenerate quad
    assert matrix.isfinite().all()
    back = transform(stage.matrix(u), seen_at)[0]
    torch.testing.assert_close(back, SQUARE.expand_as(back), rtol=0, atol=1e-7)

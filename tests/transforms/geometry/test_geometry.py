"""Homographies and bends against torchvision, OpenCV, SciPy and solid geometry."""

import itertools
import math

import cv2
import numpy as np
import pytest
import skimage.transform
import torch
import torch.nn.functional as F
from scipy.interpolate import RBFInterpolator
from scipy.ndimage import map_coordinates
from torch.autograd import gradcheck
from torchvision.transforms.v2 import functional as tv

from tests.helpers.sampling import mostly_slow
from transforms.compose import UNSEEN, Compose, Framed
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.distortion import Cylinder, DenseGrid, Lens, RollingShutter, ThinPlate
from transforms.geometry.viewpoint import Viewpoint
from transforms.sampling.homography import homography, invert, transform

double = torch.float64
LAST = 1 - 2**-24
SQUARE = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=double)
WIDE = Viewpoint(yaw=50, pitch=(-20, 40), roll=180, distance=(1.0, 2.0), fov=(10, 70))


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
        half = torch.tensor([size[1], size[0]], dtype=double) / min(size)
        corners = transform(crop.framed(size).matrix(u), (SQUARE * half).expand(len(u), -1, -1))[0]
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


BENDS = {
    "lens": Lens(0.6, 0.3),
    "cylinder": Cylinder((60, 200), turn=20, tilt=30, distance=(2, 6)),
    "flat to round": Cylinder((0, 360), tilt=60, distance=(1, 4)),
    "thin plate": ThinPlate(0.2),
    "fine thin plate": ThinPlate(0.1, grid=5),
    "shutter": RollingShutter(0.2, (0.0, 0.1), (0, 3)),
    "dense grid": DenseGrid([[[-0.3, -3], [0.5, -0.3]], [[-0.7, 0.4], [0.4, 60]]], (0, 10)),
}
MAPS = BENDS | {
    "crop": Crop((0.01, 1), (0.1, 10)),
    "camera": Viewpoint(yaw=50, pitch=(-20, 40), roll=180, distance=(1.0, 2.0), fov=(10, 70)),
    "flip": Flip(),
    "perspective": Perspective(0.49),
}


def lattice(size=(80, 120)):
    """The stage points of a frame's pixels, (1,h,w,2)."""
    y, x = ((torch.arange(n, dtype=double) + 0.5 - n / 2) * 2 / min(size) for n in size)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]


def in_frame(stage, size=(80, 120)):
    return stage.framed(size) if isinstance(stage, Framed) else stage


def edges(stage, dtype):
    """The ends and the middle of every range, together and one by one."""
    rows = [[v] * stage.dims for v in (0.0, 0.5, LAST)]
    rows += [[v if j == i else 0.5 for j in range(stage.dims)] for i in range(stage.dims) for v in (0.0, LAST)]
    return torch.tensor(rows[:24], dtype=dtype)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("border", mostly_slow(["reflect", "constant", "replicate", "reflect101"], 4))
def test_gradients_are_finite_at_the_ends_of_every_range(name, border, photo):
    stage, wild = MAPS[name], Perspective(0.49)  # whose horizon sends points far out
    for dtype, stages in itertools.product((torch.float32, double), ([stage], [stage, stage, wild])):
        pipeline = Compose(stages, border=border)
        u = torch.cat([edges(s, dtype)[torch.arange(9) % len(edges(s, dtype))] for s in pipeline.stages], dim=1)
        images = photo[..., ::4, ::4].to(dtype).repeat(len(u), 1, 1, 1).requires_grad_()
        u.requires_grad_()
        views = pipeline(images, u)
        views.square().sum().backward()
        for result in (views, images.grad, u.grad):
            assert result.isfinite().all() if result is not None else stages == [Flip()]
        assert (images.grad.flatten(1).norm(dim=1) > 0).all()


@pytest.mark.parametrize("name", BENDS)
def test_gradcheck_of_the_points(name):
    stage = in_frame(BENDS[name])
    points = (1.6 * torch.rand(2, 3, 4, 2, dtype=double) - 0.8).requires_grad_()
    u = (0.1 + 0.8 * torch.rand(2, stage.dims, dtype=double)).requires_grad_()
    assert gradcheck(stage.pull, (points, u))


# --- All of them at once


def test_all_stages_fuse_into_one_sample_of_the_composed_pulls(photo):
    bends = BENDS | {"dense grid": DenseGrid([[[-0.4, -0.6], [0.5, -0.4]], [[-0.6, 0.4], [0.4, 0.6]]])}
    stages = [Crop(), *bends.values(), Viewpoint(20, 20, 10), Lens(-0.1), Flip(), Perspective(0.1), Affine(10)]
    pipeline = Compose(stages, antialias=False)
    u = torch.rand(2, pipeline.dims, dtype=double)
    views = pipeline(torch.cat([photo, photo.flip(-1)]), u)
    assert pipeline.resamples() == 1
    points, visible = lattice(), torch.ones(2, 80, 120, dtype=torch.bool)
    for stage, part in reversed(list(zip(stages, u.split([s.dims for s in stages], -1), strict=True))):
        points = in_frame(stage).pull(points, part)  # the last stage maps output points first
        visible &= points.abs().amax(-1) < UNSEEN
    assert 0.3 < visible.double().mean() < 1
    for row, image in enumerate((photo, photo.flip(-1))):
        x, y = points[row].unbind(-1)
        places = np.stack([y.numpy() * 40 + 39.5, x.numpy() * 40 + 59.5])
        oracle = map_coordinates(image[0, 0].numpy(), places, order=1, mode="grid-constant", cval=0.5)
        oracle[~visible[row].numpy()] = 0.5
        np.testing.assert_allclose(views[row, 0], oracle, rtol=0, atol=1e-10)


# --- Lens


@pytest.mark.parametrize("k", [(0.3, 0.0), (-0.15, 0.0), (0.2, -0.03), (-0.1, 0.1)], ids=str)
def test_lens_equals_opencv_distortion(k):
    stage = Lens(*((v, v) for v in k))
    camera = np.array([[40, 0, 59.5], [0, 40, 39.5], [0, 0, 1.0]])
    maps = cv2.initUndistortRectifyMap(camera, np.array([*k, 0, 0]), None, camera, (120, 80), cv2.CV_32FC1)
    oracle = (torch.tensor(np.stack(maps, -1), dtype=double) - torch.tensor([59.5, 39.5])) / 40
    sources = stage.pull(lattice(), torch.rand(1, 2, dtype=double))[0]
    visible = sources[..., 0] < UNSEEN
    assert visible.double().mean() > 0.6
    torch.testing.assert_close(sources[visible], oracle[visible], rtol=0, atol=1e-4)


def test_lens_view_ends_at_the_first_fold():
    radius = torch.linspace(0, 10, 10001, dtype=double)
    points = torch.stack([radius, torch.zeros_like(radius)], -1)[None, None]
    for k1, k2 in itertools.product([-1, -0.4, -0.1, 0, 0.2, 1], repeat=2):
        grows = 1 + 3 * k1 * radius**2 + 5 * k2 * radius**4 > 0
        oracle = grows.long().cumprod(0).bool()
        visible = Lens((k1, k1), (k2, k2)).pull(points, torch.rand(1, 2, dtype=double))[0, 0, :, 0] < UNSEEN
        assert (visible != oracle).sum() <= 1, (k1, k2)


# --- Cylinder


def label_on_a_bottle(arc, turn, tilt, distance, half_width):
    """Points of a label in the output plane and whether they are seen, by rotation matrices and projection."""
    radius = half_width / math.radians(arc / 2)
    x, y = np.meshgrid(np.linspace(-half_width, half_width, 61), np.linspace(-1.2, 1.2, 21))
    angle = x / radius + math.radians(turn)
    points = np.stack([radius * np.sin(angle), y, radius * (1 - np.cos(angle))], -1)
    normals = np.stack([np.sin(angle), np.zeros_like(angle), -np.cos(angle)], -1)
    lean = cv2.Rodrigues(np.array([-math.radians(tilt), 0, 0]))[0]  # the top (y < 0) goes away (z > 0)
    points, normals = points @ lean.T, normals @ lean.T
    to_camera = np.array([0, 0, -distance]) - points
    facing = (normals * to_camera).sum(-1) / np.linalg.norm(to_camera, axis=-1)
    seen_at = points[..., :2] * distance / (points[..., 2:] + distance)
    return np.stack([x, y], -1), seen_at, facing


@pytest.mark.parametrize(
    "pose",
    [(90, 0, 0, 4), (180, 60, 0, 3), (40, -20, 25, 4), (340, 100, -30, 6), (1e-3, 0, 40, 2), (170, 0, 60, 1.5)],
    ids=str,
)
@pytest.mark.parametrize("size", [(80, 120), (90, 60)], ids=str)
def test_cylinder_inverts_the_projection_of_a_bottle(pose, size):
    stage = in_frame(Cylinder(*((v, v) for v in pose)), size)
    label, seen_at, facing = label_on_a_bottle(*pose, size[1] / min(size))
    sources = stage.pull(torch.tensor(seen_at)[None], torch.rand(1, 4, dtype=double))[0].numpy()
    front = facing > 0.1
    assert front.mean() > 0.2
    np.testing.assert_allclose(sources[front], label[front], rtol=0, atol=1e-9)
    back = facing < -0.1  # a hidden point is not the visible one at its position
    assert (np.abs(sources[back] - label[back]).max(-1) > 0.05).all()


@pytest.mark.parametrize("tilt", [0, 40, -60])
def test_rays_that_miss_the_cylinder_see_the_border(tilt):
    arc, distance = 200, 3
    points = lattice((120, 80))
    stage = in_frame(Cylinder((arc, arc), 0, (tilt, tilt), distance), (120, 80))
    is_hidden = stage.pull(points, torch.rand(1, 4, dtype=double))[0, ..., 0].numpy() == UNSEEN
    radius, lean = 1 / math.radians(arc / 2), cv2.Rodrigues(np.array([-math.radians(tilt), 0, 0]))[0]
    rays = np.concatenate([points[0].numpy(), np.full((120, 80, 1), distance)], -1)
    axis, start = lean @ [0, 1, 0], np.array([0, 0, -distance]) - lean @ [0, 0, radius]
    normals = np.cross(rays, axis)
    gap = np.abs((normals * start).sum(-1)) / np.linalg.norm(normals, axis=-1)  # from the axis to the ray
    assert is_hidden[gap > radius].all() and not is_hidden[gap < 0.99 * radius].any()
    assert 0.1 < is_hidden.mean() < 0.9


# --- ThinPlate


@pytest.mark.parametrize("grid", [2, 3, 5])
def test_thin_plate_equals_the_scipy_spline(grid):
    stage = ThinPlate(0.15, grid)
    u = torch.rand(2, stage.dims, dtype=double)
    at = np.stack(np.meshgrid(np.linspace(-1, 1, grid), np.linspace(-1, 1, grid)), -1).reshape(-1, 2)
    points = lattice((20, 30))
    sources = stage.pull(points, u)
    for row in range(2):
        offset = stage.values(u)[row].reshape(-1, 2).numpy()
        oracle = RBFInterpolator(at, offset, kernel="thin_plate_spline", degree=1)(points.reshape(-1, 2).numpy())
        np.testing.assert_allclose((sources[row] - points[0]).reshape(-1, 2), oracle, rtol=0, atol=1e-10)
        exact = stage.pull(torch.tensor(at)[None, None], u[row : row + 1])[0, 0]
        np.testing.assert_allclose(exact, at + offset, rtol=0, atol=1e-12)


def test_thin_plate_has_a_gradient_after_inference_mode(photo):
    stage = ThinPlate(0.1234)
    with torch.inference_mode():
        stage(photo, torch.rand(1, stage.dims, dtype=double))
    u = torch.rand(1, stage.dims, dtype=double, requires_grad=True)
    stage(photo, u).sum().backward()
    assert (u.grad != 0).all()


# --- DenseGrid


def test_a_dense_grid_equals_grid_sample_and_remap_and_has_their_gradient(photo):
    """A wild one, at every place of a view; and one that shrinks is antialiased as the same `Affine` is."""
    grid, u = (2 * torch.rand(1, 80, 120, 2, dtype=double) - 1).requires_grad_(), torch.zeros(1, 1)
    views = Compose([DenseGrid(grid[0])], antialias=False, border="replicate")(photo, u)
    theirs = F.grid_sample(photo, grid, padding_mode="border", align_corners=False)
    torch.testing.assert_close(views, theirs, rtol=0, atol=1e-9)
    slopes = [torch.autograd.grad((view**3).sum(), grid)[0] for view in (views, theirs)]
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-6)
    places = (((grid.detach()[0] + 1) * torch.tensor([60, 40]) - 0.5).float()).numpy()
    remapped = cv2.remap(photo[0].permute(1, 2, 0).float().numpy(), places, None, cv2.INTER_LINEAR, borderMode=1)
    assert np.abs(views.detach()[0].permute(1, 2, 0).numpy() - remapped).max() < 0.03  # its 1/32 of a pixel
    shrunk = DenseGrid(3 * lattice()[0] / torch.tensor([1.5, 1]))(photo, u)
    torch.testing.assert_close(shrunk, Affine(scale=(1 / 3, 1 / 3))(photo, torch.zeros(1, 5)), rtol=0, atol=1e-5)


# --- RollingShutter


def test_rolling_shutter_reads_each_row_at_its_time(photo):
    stage = RollingShutter((0.2, 0.2), (0.05, 0.05), (1.5, 1.5))
    u = torch.tensor([[0.5, 0.5, 0.5, 0.7]], dtype=double)
    view = Compose([stage], antialias=False)(photo, u)[0, 0].numpy()
    for row in range(80):
        time = (row + 0.5) / 80
        right = 80 * (0.2 * (time - 0.5) + 0.05 * math.sin(2 * math.pi * (1.5 * time + 0.7)))
        oracle = map_coordinates(
            photo[0, 0, row].numpy(), [np.arange(120) - right], order=1, mode="grid-constant", cval=0.5
        )
        np.testing.assert_allclose(view[row], oracle, rtol=0, atol=1e-10)

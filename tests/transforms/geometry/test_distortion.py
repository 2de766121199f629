"""Maps without a matrix: lens, cylinder, thin plate and shutter, against OpenCV, SciPy and solid geometry."""

import itertools
import math

import cv2
import numpy as np
import pytest
import torch
from scipy.interpolate import RBFInterpolator
from scipy.ndimage import map_coordinates
from torch.autograd import gradcheck

from tests.helpers.sampling import mostly_slow
from transforms.compose import UNSEEN, Compose, Framed
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.distortion import Cylinder, Lens, RollingShutter, ThinPlate
from transforms.geometry.viewpoint import Viewpoint

double = torch.float64
LAST = 1 - 2**-24
BENDS = {
    "lens": Lens(0.6, 0.3),
    "cylinder": Cylinder((60, 200), turn=20, tilt=30, distance=(2, 6)),
    "flat to round": Cylinder((0, 360), tilt=60, distance=(1, 4)),
    "thin plate": ThinPlate(0.2),
    "fine thin plate": ThinPlate(0.1, grid=5),
    "shutter": RollingShutter(0.2, (0.0, 0.1), (0, 3)),
}
MAPS = BENDS | {
    "crop": Crop((0.01, 1), (0.1, 10)),
    "camera": Viewpoint(yaw=50, pitch=(-20, 40), roll=180, distance=(1.0, 2.0), fov=(10, 70)),
    "flip": Flip(),
    "perspective": Perspective(0.49),
}
every_bend = pytest.mark.parametrize("name", BENDS)


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


@every_bend
def test_gradcheck_of_the_points(name):
    stage = in_frame(BENDS[name])
    points = (1.6 * torch.rand(2, 3, 4, 2, dtype=double) - 0.8).requires_grad_()
    u = (0.1 + 0.8 * torch.rand(2, stage.dims, dtype=double)).requires_grad_()
    assert gradcheck(stage.pull, (points, u))


@every_bend
def test_far_points_stay_finite(name):
    stage = in_frame(BENDS[name])
    far = torch.tensor([[-1e6, 3.0], [1e6, 1e6], [1e3, -1e3], [0.0, 0.0]])[None, None]
    u = torch.cat([edges(stage, torch.float32), torch.rand(20, stage.dims)]).requires_grad_()
    points = far.expand(len(u), -1, -1, -1).clone().requires_grad_()
    sources = stage.pull(points, u)
    (sources / UNSEEN).sum().backward()
    assert sources.isfinite().all() and u.grad.isfinite().all() and points.grad.isfinite().all()


# --- All of them at once


def test_all_stages_fuse_into_one_sample_of_the_composed_pulls(photo):
    stages = [Crop(), *BENDS.values(), Viewpoint(20, 20, 10), Lens(-0.1), Flip(), Perspective(0.1), Affine(10)]
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

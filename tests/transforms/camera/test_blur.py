"""Each blur against SciPy with an independent kernel, and the invariants of a blur."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch

from transforms.camera.blur import Defocus, GaussianBlur, MotionBlur, convolve

double = torch.float64
STAGES = {"gaussian": GaussianBlur((0, 3)), "defocus": Defocus((0, 4)), "motion": MotionBlur((0, 9), 90)}
every_stage = pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)


def blurred(photo, kernel):
    """The oracle: SciPy's convolution, channel by channel, with the kernel (k,k), edges repeated."""
    return np.stack([scipy.ndimage.convolve(channel, kernel, mode="nearest") for channel in photo[0].numpy()])[None]


def numpy_kernel(radius, x, y):
    """The mean over points (x, y) of the bilinear weights of each pixel."""
    at = np.arange(-radius, radius + 1)
    wx, wy = (np.clip(1 - np.abs(np.ravel(p)[:, None] - at), 0, None) for p in (x, y))
    return wy.T @ wx / len(wx)


def at(stage, **values):
    """Coordinates that give a stage over (0, high) ranges these values."""
    row = [(v - low) / (high - low) for v, (low, high) in zip(values.values(), stage.bounds, strict=True)]
    return torch.tensor([row], dtype=double)


def test_gaussian_kernel_is_wide_enough_for_the_largest_sigma_of_a_range(photo):
    stage, sigmas = GaussianBlur((0, 3)), [0.7, 1.5, 3.0]
    u = torch.tensor([[sigma / 3] for sigma in sigmas], dtype=double)
    views = stage(photo.expand(3, -1, -1, -1), u)
    for view, sigma in zip(views, sigmas, strict=True):
        oracle = scipy.ndimage.gaussian_filter(
            photo[0].numpy(), (0, sigma, sigma), mode="nearest", radius=(0, 12, 12)
        )
        np.testing.assert_allclose(view.numpy(), oracle, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [0.3, 1.7, 4.0])
def test_defocus_is_the_mean_over_a_disc(radius, photo):
    stage = Defocus((0, 4))
    x, y = np.meshgrid(*[(np.arange(1000) + 0.5) / 500 - 1] * 2)
    inside = x * x + y * y < 1
    oracle = blurred(photo, numpy_kernel(4, radius * x[inside], radius * y[inside]))
    view = stage(photo, at(stage, radius=radius))
    np.testing.assert_allclose(view.numpy(), oracle, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("length", "angle"), [(9.0, 0.0), (6.3, 30.0), (8.0, -70.0), (0.5, 45.0)])
def test_motion_is_the_mean_along_a_line(length, angle, photo):
    stage = MotionBlur((0, 9), 90)
    offsets = length * ((np.arange(100_000) + 0.5) / 100_000 - 0.5)
    turn = math.radians(angle)  # x right and y down: clockwise as displayed
    oracle = blurred(photo, numpy_kernel(5, offsets * math.cos(turn), offsets * math.sin(turn)))
    view = stage(photo, at(stage, length=length, angle=angle))
    np.testing.assert_allclose(view.numpy(), oracle, rtol=0, atol=2e-3)


@every_stage
@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_zero_blur_is_the_identity_and_small_blur_is_close_to_it(stage, dtype, photo):
    images = photo.to(dtype).requires_grad_()
    rounding = 4 * torch.finfo(dtype).eps
    for size in (0.0, 1e-30, 1e-12, 1e-4, 1e-3):
        u = torch.full((1, stage.dims), size, dtype=dtype, requires_grad=True)
        view = stage(images, u)
        torch.testing.assert_close(view, images, rtol=0, atol=rounding + 10 * size)
        grads = torch.autograd.grad(view.square().sum(), (images, u))
        assert all(grad.isfinite().all() for grad in grads)


def test_a_small_disc_and_a_line_at_zero_degrees_have_a_gradient(photo):
    for stage, row in ((STAGES["defocus"], [[0.02]]), (STAGES["motion"], [[0.5, 0.5]])):
        u = torch.tensor(row, dtype=double, requires_grad=True)
        weights = torch.randn_like(photo)
        (grad,) = torch.autograd.grad((stage(photo, u) * weights).sum(), u)
        for i in range(stage.dims):
            h = torch.zeros_like(u).index_fill_(1, torch.tensor([i]), 1e-5)
            with torch.no_grad():
                slope = ((stage(photo, u + h) - stage(photo, u - h)) * weights).sum() / 2e-5
            assert abs(slope) > 1e-3
            torch.testing.assert_close(grad[0, i], slope, rtol=1e-3, atol=1e-6)


def test_convolve_takes_a_kernel_larger_than_the_picture():
    images, kernels = torch.rand(2, 3, 5, 4, dtype=double), torch.rand(2, 13, 13, dtype=double)
    kernels /= kernels.sum((1, 2), keepdim=True)
    for image, kernel, view in zip(images, kernels, convolve(images, kernels), strict=True):
        np.testing.assert_allclose(view[None].numpy(), blurred(image[None], kernel.numpy()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "stage",
    [pytest.param(Defocus((0, 6)), marks=pytest.mark.slow), MotionBlur((0, 9), 40)],
    ids=["defocus", "motion"],
)
def test_kernel_computed_in_chunks_equals_the_kernel_in_one_pass(stage, monkeypatch):
    images, u = torch.rand(3, 2, 11, 13, dtype=torch.float64), torch.rand(3, stage.dims, dtype=torch.float64)

    def views_and_slope():
        leaf = u.clone().requires_grad_()
        views = stage(images, leaf)
        return views.detach(), torch.autograd.grad(views.square().sum(), leaf)[0]

    one_pass = views_and_slope()
    monkeypatch.setattr("transforms.camera.blur.MOST_VALUES", 500)
    for part, expected in zip(views_and_slope(), one_pass, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-11, atol=1e-12)

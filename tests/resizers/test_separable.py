"""Figures of two matrices against dense ones; the closed-form attack against a general solver, and the libraries
themselves."""

import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from scipy.optimize import minimize

from attacks.resizers.openness import crop_to, target_picture
from attacks.resizers.separable import (
    TOLERANCE,
    KernelAxis,
    Separable,
    full_axis,
    hidden_gain,
    hide_picture,
    kernel_matrices,
    nearest_picture,
    psnr,
    rms,
    unread,
)
from tests.helpers.resizers import OPENCV, PILLOW, TORCH, shrinker
from tests.helpers.sampling import mostly_slow
from transforms import resize
from transforms.resizing.resize import NAMES

AXES, SIZE = (full_axis(21, 6), full_axis(13, 5)), (21, 13)


def dense(resizer):
    """The matrix of pictures as vectors."""
    return np.kron(resizer.rows, resizer.columns)


@pytest.mark.parametrize("kernel", NAMES)
def test_unread_pixels_are_the_zero_columns_of_the_dense_matrix(kernel):
    resizer = kernel_matrices(kernel, AXES, SIZE)
    zero = (np.abs(dense(resizer)) < 1e-9).all(0)
    assert unread(resizer) == pytest.approx(zero.mean(), abs=1e-12)


@pytest.mark.parametrize("kernel", NAMES)
def test_hidden_gain_is_the_largest_singular_value_on_the_null_space_of_the_viewer(kernel):
    resizer, viewer = kernel_matrices(kernel, AXES, SIZE), kernel_matrices("pil_lanczos", AXES, SIZE)
    value = np.linalg.svd(dense(resizer) @ null_space(dense(viewer)), compute_uv=False)[0]
    assert hidden_gain(resizer, viewer) == pytest.approx(value**2 * (21 * 13) / (6 * 5), rel=1e-3, abs=1e-6)


def test_hidden_gain_is_nothing_for_the_viewer_itself_and_at_most_the_area_for_a_copy():
    axes = (full_axis(64, 16), full_axis(64, 16))
    viewer = kernel_matrices("pil_lanczos", axes, (64, 64))
    assert hidden_gain(viewer, viewer) == 0
    assert 15 < hidden_gain(kernel_matrices("cv2_nearest", axes, (64, 64)), viewer) <= 16 + 1e-9


@pytest.mark.parametrize("kernel", ["pil_bicubic", "cv2_linear", "cv2_nearest"])
def test_crops_are_those_of_arrays(kernel):
    picture = torch.rand(1, 1, 40, 50, dtype=torch.float64)
    rows, columns = KernelAxis(3, 30, 11, 0, 11), KernelAxis(0, 50, 20, 4, 9)
    oracle = resize(picture[:, :, 3:33], (11, 20), kernel)[0, 0, :, 4:13]
    ours = kernel_matrices(kernel, (rows, columns), (40, 50))(picture[0, 0].numpy())
    np.testing.assert_allclose(ours, oracle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["pil_bilinear", "cv2_cubic", "cv2_nearest", "cv2_area"])
def test_nearest_picture_equals_that_of_a_general_solver(kernel):
    rng = np.random.default_rng(0)
    picture, resizer = rng.random((7, 6)), kernel_matrices(kernel, (full_axis(7, 3), full_axis(6, 2)), (7, 6))
    target, tolerance = resizer(rng.random((7, 6))), 0.02
    limit = tolerance**2 * target.size
    solution = minimize(
        lambda x: np.sum((x - picture.ravel()) ** 2),
        np.full(42, 0.5),
        jac=lambda x: 2 * (x - picture.ravel()),
        bounds=[(0, 1)] * 42,
        constraints={
            "type": "ineq",
            "fun": lambda x: limit - np.sum((resizer(x.reshape(7, 6)) - target) ** 2),
            "jac": lambda x: -2 * (resizer.rows.T @ (resizer(x.reshape(7, 6)) - target) @ resizer.columns).ravel(),
        },
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert solution.success
    ours = nearest_picture(picture, target, resizer, tolerance)
    assert rms(resizer(ours) - target) <= 1.01 * tolerance and ours.min() >= 0 and ours.max() <= 1
    np.testing.assert_allclose(ours, solution.x.reshape(7, 6), rtol=0, atol=5e-3)


def test_a_picture_that_is_resized_to_the_target_already_stays():
    picture = np.random.default_rng(0).random((9, 9))
    resizer = kernel_matrices("pil_box", (full_axis(9, 3),) * 2, (9, 9))
    np.testing.assert_allclose(nearest_picture(picture, resizer(picture), resizer, 0.01), picture, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", mostly_slow([*PILLOW, *OPENCV, *TORCH], 3))
def test_the_library_itself_resizes_the_attacked_file_to_the_target(photo, kernel):
    out, size = (20, 24), (70, 90)
    call, picture = shrinker(kernel, out), crop_to(photo[0], size)

    def by_library(pixels):
        return call((pixels * 255).round().astype(np.uint8).transpose(1, 2, 0)).transpose(2, 0, 1) / 255

    resizer = kernel_matrices(kernel, (full_axis(70, 20), full_axis(90, 24)), size)
    attacked, resized = hide_picture(picture, target_picture(out), resizer, by_library)
    assert rms(by_library(attacked) - target_picture(out)) == rms(resized - target_picture(out)) <= TOLERANCE
    np.testing.assert_allclose(attacked * 255, (attacked * 255).round(), rtol=0, atol=1e-9)


def test_what_a_resizer_adds_is_taken_off_the_target():
    resizer = Separable(np.eye(8), np.eye(8))
    picture, target = np.full((8, 8), 0.5), np.full((8, 8), 0.4)
    for call, succeeds in ((lambda pixels: pixels - 0.2, True), (lambda pixels: 0 * pixels, False)):
        assert (rms(target - hide_picture(picture, target, resizer, call)[1]) <= TOLERANCE) == succeeds


def test_psnr_is_that_of_scikit_image():
    metrics = pytest.importorskip("skimage.metrics")
    first, other = np.random.default_rng(0).random((2, 9, 9))
    assert psnr(first - other) == pytest.approx(metrics.peak_signal_noise_ratio(first, other, data_range=1))
    assert psnr(0 * first) == np.inf

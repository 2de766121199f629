"""Figures of two matrices against dense ones."""

import numpy as np
import pytest
import torch
from scipy.linalg import null_space

from attacks.resizers.separable import KernelAxis, hidden_gain, kernel_matrices, unread, whole
from transforms import resize
from transforms.resizing.resize import NAMES

AXES, SIZE = (whole(21, 6), whole(13, 5)), (21, 13)


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
    axes = (whole(64, 16), whole(64, 16))
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

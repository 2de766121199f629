"""Warps against the libraries whose conventions they follow, and the laws of a linear resampling."""

from functools import partial

import cv2
import numpy as np
import pytest
import skimage.transform
import torch
from torch.autograd import gradcheck

from tests.helpers.sampling import mostly_slow
from transforms import perspective, warp_affine, warp_perspective

SIZE = (70, 90)  # neither square nor the photograph's size
AFFINE = [[1.1, 0.3, -12.3], [-0.2, 0.9, 17.7], [0.0, 0.0, 1.0]]
PROJECTIVE = [[1.05, 0.25, -9.1], [-0.15, 0.85, 8.3], [1.2e-3, -0.8e-3, 1.0]]
MATRICES = {"affine": AFFINE, "projective": PROJECTIVE}
BORDERS = {  # ours: (scikit-image's, OpenCV's)
    "constant": ("constant", cv2.BORDER_CONSTANT),
    "replicate": ("edge", cv2.BORDER_REPLICATE),
    "reflect": ("symmetric", cv2.BORDER_REFLECT),
    "reflect101": ("reflect", cv2.BORDER_REFLECT_101),
}
KERNELS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
START = [[0, 0], [120, 0], [120, 80], [0, 80]]

matrices = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
borders = pytest.mark.parametrize("border", BORDERS)
kernels = pytest.mark.parametrize("kernel", KERNELS)


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def warp(images, matrix, size=SIZE, **options):
    """`warp_affine` or `warp_perspective`, whichever the (...,3,3) matrix is for."""
    if (matrix[..., 2, :] == double([0, 0, 1])).all():
        return warp_affine(images, matrix[..., :2, :], size, **options)
    return warp_perspective(images, matrix, size, **options)


def channels_last(images):
    return images[0].permute(1, 2, 0).contiguous().numpy()


@matrices
@pytest.mark.parametrize(("border", "value"), [*((b, 0.0) for b in BORDERS), ("constant", 0.7)])
def test_equals_scikit_image(photo, matrix, border, value):
    oracle = skimage.transform.warp(
        channels_last(photo), np.linalg.inv(matrix), None, SIZE, 1, BORDERS[border][0], value, clip=False
    )
    ours = warp(photo, double(matrix), border=border, value=value)
    np.testing.assert_allclose(channels_last(ours), oracle, rtol=0, atol=1e-12)


@matrices
@borders
@kernels
def test_equals_opencv(photo, matrix, border, kernel):
    image, flags = channels_last(photo.float()), KERNELS[kernel]
    mode, value = BORDERS[border][1], (0.1, 0.6, 0.9)
    if matrix is AFFINE:
        oracle = cv2.warpAffine(image, np.array(matrix)[:2], SIZE[::-1], None, flags, mode, value)
    else:
        oracle = cv2.warpPerspective(image, np.array(matrix), SIZE[::-1], None, flags, mode, value)
    ours = warp(photo.float(), double(matrix), kernel=kernel, border=border, value=torch.tensor(value))
    np.testing.assert_allclose(channels_last(ours), oracle, rtol=0, atol=2e-4)


@kernels
@pytest.mark.parametrize("border", mostly_slow(BORDERS, 3))
@pytest.mark.parametrize("antialias", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradient_in_images_matrix_and_value(kernel, border, antialias):
    images = torch.rand(2, 2, 5, 6, dtype=torch.float64).requires_grad_()
    matrix = double([[0.53, 0.11, 0.23], [-0.07, 0.47, 0.61], [0.013, -0.017, 1.0]]).requires_grad_()
    value = double([0.3, 0.8]).requires_grad_()

    def view(images, matrix, value):
        options = {"kernel": kernel, "border": border, "antialias": antialias}
        return warp_perspective(images, matrix, (3, 4), value=value, **options)

    assert gradcheck(view, (images, matrix, value))


@kernels
@pytest.mark.parametrize("fill", [pytest.param(0.0, marks=pytest.mark.slow), 0.7])
def test_gradient_in_both_point_lists(kernel, fill):
    images = torch.rand(1, 2, 5, 6, dtype=torch.float64)
    start = double([[0.1, 0.2], [5.8, -0.1], [6.1, 5.3], [-0.2, 4.9]]).requires_grad_()
    end = double([[0.73, 0.61], [5.17, 0.37], [5.39, 4.23], [0.29, 4.71]]).requires_grad_()
    assert gradcheck(lambda start, end: perspective(images, start, end, kernel=kernel, fill=fill), (start, end))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integer_shift_has_a_gradient_at_exactly_the_visible_pixels(dtype):
    # 64 - 10 columns by 64 - 20 rows; one pixel more would be a residual of the coordinates at the identity.
    images = torch.rand(64, 64, 3, dtype=dtype).permute(2, 0, 1)[None].requires_grad_()
    warp_affine(images, torch.tensor([[1.0, 0, 10], [0, 1, 20]]), (64, 64)).mean().backward()
    assert (images.grad != 0).sum() == 7128
    assert (images.grad != 0).any(1).sum() == 2376


@pytest.mark.parametrize("antialias", [False, True])
def test_images_and_matrices_broadcast(photo, antialias):
    images, matrix = photo.repeat(3, 1, 1, 1), double(AFFINE)[:2].repeat(3, 1, 1)
    images, matrix = (
        images * double([0.2, 0.5, 1.0])[:, None, None, None],
        matrix * double([1, 2, 0.4])[:, None, None],
    )
    one_image = warp_affine(photo, matrix, SIZE, antialias=antialias)
    one_matrix = warp_affine(images, matrix[0], SIZE, antialias=antialias)
    rows = [warp_affine(photo, row, SIZE, antialias=antialias) for row in matrix]
    torch.testing.assert_close(one_image, torch.cat(rows))
    rows = [warp_affine(row[None], matrix[:1], SIZE, antialias=antialias) for row in images]
    torch.testing.assert_close(one_matrix, torch.cat(rows))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)], ids=str)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("width", [120, 3000])
def test_half_precision_images(photo, dtype, tolerance, antialias, width):
    images = photo[..., :4, :].repeat(1, 1, 1, width // 120).to(dtype)
    matrix = torch.tensor([[0.9, 0.1, 3.3], [0.02, 0.8, 0.7]])
    views = warp_affine(images, matrix, (5, width), value=0.5, antialias=antialias)
    assert views.dtype == dtype
    oracle = warp_affine(images.float(), matrix, (5, width), value=0.5, antialias=antialias)
    torch.testing.assert_close(views.float(), oracle, rtol=0, atol=tolerance)


IMAGES = torch.rand(2, 3, 8, 9)
EYE = torch.eye(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: warp_perspective(torch.rand(8, 9, 3), EYE, SIZE), r"`images` must be floating \(N,C,H,W\)"),
        (lambda: warp_perspective((IMAGES * 255).byte(), EYE, SIZE), "`images` must be floating"),
        (lambda: warp_affine(IMAGES, EYE, SIZE), r"`M` must be .*warp_perspective"),
        (lambda: warp_perspective(IMAGES, EYE[:2], SIZE), r"`H` must be \(3,3\)"),
        (lambda: warp_perspective(IMAGES, EYE.repeat(3, 1, 1), SIZE), "`H` must hold one row, or one per image"),
        (lambda: warp_perspective(IMAGES, torch.stack([EYE, 0 * EYE]), SIZE), "invertible; row 1"),
        *((partial(warp_perspective, IMAGES, EYE * k, SIZE), "invertible; row 0") for k in (torch.nan, torch.inf)),
        (lambda: warp_perspective(IMAGES, EYE.double() * double([1, 1e-60, 1]), SIZE), "invertible; row 0"),
        *(
            (partial(warp_perspective, IMAGES, EYE, SIZE, kernel=kernel), "`kernel` must be one of")
            for kernel in ("lanczos", "keys", "keys()", "keys(a)", "keys(-0.5", "keys(1e999)")
        ),
        (lambda: warp_perspective(IMAGES, EYE, SIZE, border="wrap"), "`border` must be one of.*'wrap'"),
        (lambda: warp_perspective(IMAGES, EYE, SIZE, value=torch.rand(4)), r"`value` must be a number, \(3,\)"),
        (lambda: perspective(IMAGES, START, [[0, 0]] * 4), "degenerate quad: row 0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()

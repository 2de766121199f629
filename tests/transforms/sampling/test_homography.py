"""The algebra of the plane: `homography` against OpenCV, and the laws of the matrices."""

import math

import cv2
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from transforms import homography
from transforms.sampling.homography import HORIZON, invert, transform

SQUARE = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]]).double()
DEGENERATE = {
    "three in a line": [[0, 0], [1, 0], [2, 0], [0, 1]],
    "nearly in a line": [[0, 0], [1, 0], [2, 1e-4], [0, 1]],
    "repeated corner": [[0, 0], [0, 0], [1, 1], [0, 1]],
    "bow-tie": [[0, 0], [1, 1], [1, 0], [0, 1]],
    "concave": [[0, 0], [1, 0], [0.2, 0.2], [0, 1]],
    "NaN": [[0, 0], [1, 0], [1, math.nan], [0, 1]],
    "infinite": [[0, 0], [1, 0], [1, math.inf], [0, 1]],
    "point": [[3, 3]] * 4,
}


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def quads(n, side=100.0):
    """Convex quads: squares whose corners move by less than a quarter of the side. OpenCV reads the points in
    float32, so they are multiples of 1/8."""
    corners = SQUARE * side / 2 + 0.24 * side * (2 * torch.rand(n, 4, 2, dtype=torch.float64) - 1) + side
    return (corners * 8).round() / 8


def project(matrix, points):
    """Reference projection, float64, whatever the sign of w."""
    points = torch.cat([points.double(), torch.ones_like(points[..., :1]).double()], -1) @ matrix.double().mT
    return points[..., :2] / points[..., 2:]


def test_equals_opencv():
    src, dst = quads(50), quads(50)
    oracle = [
        cv2.getPerspectiveTransform(a.numpy(), b.numpy()) for a, b in zip(src.float(), dst.float(), strict=True)
    ]
    ours = homography(src, dst)
    sign = ours[:, 2:, 2:]  # ours is -1 where the origin is beyond the horizon; OpenCV's is always 1
    torch.testing.assert_close(ours * sign, torch.from_numpy(np.stack(oracle)), rtol=1e-9, atol=1e-9)


def test_every_source_corner_is_in_front_of_the_camera():
    src, dst = quads(50), quads(50)
    _, w = transform(homography(src, dst), src)
    assert (w > 0).all()


def test_last_entry_is_minus_one_when_the_origin_is_behind_the_camera():
    # The sides of `src` meet at y = 20, between the quad and the origin; `dst` is a square, so y = 20 is the horizon.
    src = torch.tensor([[-10.0, 30], [10, 30], [30, 50], [-30, 50]])
    matrix = homography(src, SQUARE.float())
    assert matrix[0, 2, 2] == -1
    assert (transform(matrix, src[None])[1] > 0).all()


@pytest.mark.parametrize(
    ("a", "b"), [((4, 2), (3, 4, 2)), ((3, 4, 2), (4, 2)), ((3, 4, 2), (3, 4, 2)), ((1, 4, 2), (3, 4, 2))]
)
def test_rows_broadcast(a, b):
    src, dst = quads(math.prod(a[:-2])).reshape(a), quads(math.prod(b[:-2])).reshape(b)
    pairs = zip(src.expand(3, 4, 2), dst.expand(3, 4, 2), strict=True)
    torch.testing.assert_close(homography(src, dst), torch.cat([homography(x, y) for x, y in pairs]))


def test_nested_lists_of_integers_are_accepted():
    src, dst = quads(2).round()
    ours = homography(src.int().tolist(), dst.int().tolist())
    torch.testing.assert_close(ours, homography(src, dst).float())


@pytest.mark.parametrize("corners", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_destination_is_refused_by_row(corners):
    dst = (SQUARE + 1).repeat(3, 1, 1)
    dst[2] = torch.tensor(corners)
    with pytest.raises(ValueError, match=r"`dst`.*row 2"):
        homography(SQUARE, dst)


@pytest.mark.parametrize("kind", sorted({*DEGENERATE} - {"bow-tie", "concave"}))  # the error names `dst` for these
def test_degenerate_source_is_refused_by_row(kind):
    src = (SQUARE + 1).repeat(3, 1, 1)
    src[1] = torch.tensor(DEGENERATE[kind])
    with pytest.raises(ValueError, match=r"`src`.*row 1"):
        homography(src, SQUARE)


def test_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"`src` must hold four"):
        homography(torch.rand(3, 2), SQUARE)


def test_gradient_in_both_lists():
    src, dst = (q.requires_grad_() for q in (quads(2, side=2.0), quads(2, side=2.0)))
    assert gradcheck(homography, (src, dst))


def test_float32_points_are_solved_in_float64():
    src, dst = quads(50).float(), quads(50).float()
    assert torch.equal(homography(src, dst), homography(src.double(), dst.double()).float())


def test_invert_is_the_inverse():
    matrix = homography(quads(50), quads(50))
    eye = torch.eye(3, dtype=torch.float64).expand(50, 3, 3)
    torch.testing.assert_close(invert(matrix) @ matrix, eye, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transform_maps_points_of_any_layout(dims):
    matrix, points = homography(quads(4), quads(4)), 50 + 100 * torch.rand(4, *[5] * dims, 2, dtype=torch.float64)
    ours, _ = transform(matrix, points)
    torch.testing.assert_close(ours.flatten(1, -2), project(matrix, points.flatten(1, -2)))


def test_beyond_the_horizon_values_are_finite_and_masked_gradients_zero():
    matrix = torch.eye(3, dtype=torch.float64)[None].clone()
    matrix[0, 2, 0] = -1  # w = 1 - x
    points = torch.tensor([[[1.0, 2.0], [2.0, 2.0], [1e30, 2.0]]], dtype=torch.float64)
    matrix.requires_grad_(), points.requires_grad_()
    images, w = transform(matrix, points)
    assert (w <= 0).all() and images.isfinite().all()
    torch.where(w[..., None] > HORIZON, images, 0.0).sum().backward()
    assert (matrix.grad == 0).all() and (points.grad == 0).all()

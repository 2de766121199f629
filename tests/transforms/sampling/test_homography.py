"""The algebra of the plane against OpenCV; H and c H are one homography, whatever gives it."""

import math
from dataclasses import dataclass

import cv2
import numpy as np
import pytest
import skimage.transform
import torch
from torch.autograd import gradcheck

from tests.helpers.wrong import refused
from transforms import Compose, homography, warp_perspective
from transforms.compose import Homography
from transforms.sampling.homography import HORIZON, transform
from transforms.scene import Layer, Scene, scene_of
from transforms.wrappers import OneOf, OnLayers

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


def test_equals_opencv():
    src, dst = quads(50), quads(50)
    oracle = [
        cv2.getPerspectiveTransform(a.numpy(), b.numpy()) for a, b in zip(src.float(), dst.float(), strict=True)
    ]
    ours = homography(src, dst)
    sign = ours[:, 2:, 2:]  # ours is -1 where the origin is beyond the horizon; OpenCV's is always 1
    torch.testing.assert_close(ours * sign, torch.from_numpy(np.stack(oracle)), rtol=1e-9, atol=1e-9)


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
    refused(r"`dst`.*row 2", homography, SQUARE, dst)


@pytest.mark.parametrize("kind", sorted({*DEGENERATE} - {"bow-tie", "concave"}))  # the error names `dst` for these
def test_degenerate_source_is_refused_by_row(kind):
    src = (SQUARE + 1).repeat(3, 1, 1)
    src[1] = torch.tensor(DEGENERATE[kind])
    refused(r"`src`.*row 1", homography, src, SQUARE)


def test_wrong_shape_is_refused():
    refused(r"`src` must hold four", homography, torch.rand(3, 2), SQUARE)


def test_gradient_in_both_lists():
    src, dst = (q.requires_grad_() for q in (quads(2, side=2.0), quads(2, side=2.0)))
    assert gradcheck(homography, (src, dst))


def test_float32_points_are_solved_in_float64():
    src, dst = quads(50).float(), quads(50).float()
    assert torch.equal(homography(src, dst), homography(src.double(), dst.double()).float())


def test_beyond_the_horizon_values_are_finite_and_masked_gradients_zero():
    matrix = torch.eye(3, dtype=torch.float64)[None].clone()
    matrix[0, 2, 0] = -1  # w = 1 - x
    points = torch.tensor([[[1.0, 2.0], [2.0, 2.0], [1e30, 2.0]]], dtype=torch.float64)
    matrix.requires_grad_(), points.requires_grad_()
    images, w = transform(matrix, points)
    assert (w <= 0).all() and images.isfinite().all()
    torch.where(w[..., None] > HORIZON, images, 0.0).sum().backward()
    assert (matrix.grad == 0).all() and (points.grad == 0).all()


RNG = np.random.default_rng(0)
CARD, PHOTO = (16, 16), (48, 64)  # (height, width)
PICTURE = torch.rand(1, 1, *PHOTO, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.1
SIDES = np.array([[0, 0], [15, 0], [15, 15], [0, 15]], dtype=np.float64)


def photographs(count):
    """The corners of a square sign in `count` simulated photographs, from steep poses too."""
    quads = []
    while len(quads) < count:
        turn, _ = cv2.Rodrigues(RNG.normal(0, 0.8, 3))
        points = (SIDES / 7.5 - 1) @ turn[:, :2].T + [*RNG.uniform(-0.8, 0.8, 2), RNG.uniform(1.5, 4)]
        if points[:, 2].min() > 0.1:
            quads.append(points[:, :2] / points[:, 2:] * 40 + [32, 24])
    return np.array(quads)


def estimate(source, target, number):
    """A homography from each of the libraries in turn."""
    if number % 3 == 0:
        return cv2.getPerspectiveTransform(source.astype(np.float32), target.astype(np.float32))
    if number % 3 == 1:
        return cv2.findHomography(source, target)[0]
    return skimage.transform.ProjectiveTransform.from_estimate(source, target).params


@pytest.mark.parametrize("rectify", [True, False])
def test_photographs_of_a_sign_equal_those_of_opencv(rectify):
    """Out of the photograph, and into it: there the horizon may cross the view, but no ghost of the sign is in it."""
    ends = [(quad, SIDES) if rectify else (SIDES, quad) for quad in photographs(2000 if rectify else 400)]
    # The libraries make H[2,2] = 1: into a photograph their sign is always right.
    maps = [estimate(*pair, number) * (1 if rectify else -1) for number, pair in enumerate(ends)]
    assert sum((pair[0] @ H[2, :2] + H[2, 2]).max() < 0 for pair, H in zip(ends, maps, strict=True)) > 30
    out = CARD if rectify else PHOTO
    source = PICTURE if rectify else PICTURE[..., :16, :16]
    ours = warp_perspective(source, torch.from_numpy(np.stack(maps)), out)[:, 0]
    oracle = np.stack([cv2.warpPerspective(source[0, 0].numpy(), H, out[::-1]) for H in maps])
    off = np.abs(ours.numpy() - oracle)
    assert np.quantile(off, 0.999) < 0.03  # OpenCV's coordinates are in float32, and its edges where a pixel ends
    assert bool((ours.amax((1, 2)) > 0).eq(torch.from_numpy(oracle.max((1, 2)) > 0)).all())


@pytest.mark.parametrize(("border", "antialias"), [("constant", False), ("replicate", False), ("reflect", True)])
def test_the_sign_and_the_scale_change_neither_a_view_nor_a_gradient(border, antialias):
    maps = torch.eye(3, dtype=torch.float64) + torch.from_numpy(RNG.normal(0, 1, (100, 3, 3))) * torch.tensor(
        [[0.5], [0.5], [0.03]]
    )  # of many the horizon crosses the view, the picture or both
    signs = torch.tensor([1.0, -1.0, 2.0**-20, -(2.0**20)]).repeat(25)[:, None, None].double()
    views, grads = [], []
    for factor in (torch.ones_like(signs), signs):
        H = (maps * factor).requires_grad_()
        views.append(warp_perspective(PICTURE, H, (12, 18), border=border, antialias=antialias))
        (views[-1] * torch.linspace(0, 1, 18)).sum().backward()
        grads.append(H.grad * factor)
    assert torch.equal(*views) and torch.equal(*grads) and bool(grads[0].isfinite().all())
    if border == "constant":
        masks = [cv2.warpPerspective(np.ones(PHOTO), H.numpy(), (18, 12)) for H in maps]
        areas = np.array([(mask > 0).mean() for mask in masks])
        assert bool(((views[0][:, 0] > 0).double().mean((1, 2)).numpy() >= areas / 2 - 0.03).all())  # the larger part


@dataclass(frozen=True)
class Scaled(Homography):
    """A user's stage, whose matrix is `factor` times another."""

    factor: float
    names = ("x",)

    def matrix(self, u):
        rows = [[1.1, 0.2, 0.1], [-0.1, 0.9, 0.0], [0.3, 0.2, 1.0]]
        return self.factor * (u.new_tensor(rows) + u[:, :1, None] / 8)


@pytest.mark.parametrize("factor", [-1.0, 2.0**-30, -(2.0**20)])
def test_stages_and_layers_have_no_sign(factor):
    u = torch.rand(6, 1, generator=torch.Generator().manual_seed(1))

    def views(factor, pull):
        stage, scene = Scaled(factor), scene_of(PICTURE.float())
        layer = Layer(torch.ones(1, 1, 4, 4), None, pull * torch.diag(torch.tensor([3.0, 3.0, 1.0]))[None])
        scene, points = Scene((*scene.layers, layer), scene.size), torch.rand(1, 2, 3, 2)
        return [
            Compose([stage])(PICTURE.float(), u),
            Compose([OneOf([stage, Scaled(1.0)])])(PICTURE.float(), u.repeat(1, 3)),
            Compose([OnLayers(place=stage), stage])(scene, u.repeat(1, 2)),
            stage.pull(points * 0 + 0.5, u),
        ]

    for ours, reference in zip(views(factor, factor), views(1.0, 1.0), strict=True):
        assert torch.equal(ours, reference) and len(ours.unique()) > 1

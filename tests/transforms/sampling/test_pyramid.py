"""Antialiasing by a pyramid, against an ideal camera: the mean over each pixel's area."""

import math
from functools import partial

import pytest
import skimage.data
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from tests.helpers.slopes import assert_slope
from transforms.sampling.homography import lattice
from transforms.sampling.pyramid import levels
from transforms.sampling.warp import warp_by_matrix

double = torch.float64
BORDERS = ["constant", "replicate", "reflect", "reflect101"]


def reduction(times, turn=0.0, size=200, out=40, squeeze=1.0):
    """Output pixels to source pixels (1,3,3), about the centres: `times` as wide, `times / squeeze` as high."""
    c, s = math.cos(turn), math.sin(turn)
    linear = (
        torch.tensor([[c, -s], [s, c]], dtype=double) @ torch.tensor([times, times / squeeze], dtype=double).diag()
    )
    matrix = torch.eye(3, dtype=double)
    matrix[:2, :2] = linear
    matrix[:2, 2] = (size - 1) / 2 - linear @ torch.full((2,), (out - 1) / 2, dtype=double)
    return matrix[None]


def ideal(images, matrix, out, finer=12):
    """The mean over each pixel's area, by finer x finer samples."""
    scale = torch.tensor([[1 / finer, 0, (1 / finer - 1) / 2], [0, 1 / finer, (1 / finer - 1) / 2], [0, 0, 1]])
    return F.avg_pool2d(warp_by_matrix(images, matrix @ scale.double(), (out * finer, out * finer)), finer)


def zone_plate(n):
    """Frequency grows from 0 at a corner to 1/2 cycle per pixel along the edges."""
    y, x = torch.meshgrid(*[torch.arange(n, dtype=double)] * 2, indexing="ij")
    return (0.5 + 0.5 * torch.cos(math.pi * (x**2 + y**2) / (2 * n)))[None, None], (x**2 + y**2).sqrt() / (2 * n)


def test_zone_plate_reduced_by_four_has_little_alias():
    plate, frequency = zone_plate(512)
    matrix = torch.tensor([[4, 0, 1.5], [0, 4, 1.5], [0, 0, 1]], dtype=double)[None]
    beyond_limit = F.avg_pool2d(frequency[None, None], 4) > 0.25  # cycles per source pixel: twice the Nyquist limit

    def alias(antialias):
        view = warp_by_matrix(plate, matrix, (128, 128), antialias=antialias)
        return (view - 0.5)[beyond_limit].square().mean().sqrt()

    assert alias(True) <= 0.04
    assert alias(False) > 0.12


@pytest.fixture(scope="module")
def photographs():
    crops = [getattr(skimage.data, name)()[:200, :200] for name in ("astronaut", "coffee")]
    return torch.stack([torch.tensor(crop, dtype=double).permute(2, 0, 1) / 255 for crop in crops])


@pytest.mark.parametrize("squeeze", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("times", [1.7, 2.0, 2.83, 4.0])
def test_antialiasing_is_closer_to_an_ideal_camera(photographs, times, squeeze):
    out = int(120 / times)
    matrix = reduction(times, 0.3, out=out, squeeze=squeeze)
    for images, share in ((photographs, 1.0), (torch.rand(2, 1, 200, 200, dtype=double), 0.85)):
        goal = ideal(images, matrix, out)
        error = [
            (warp_by_matrix(images, matrix, (out, out), antialias=flag) - goal).square().mean()
            for flag in (True, False)
        ]
        mild = times * math.sqrt((1 + squeeze**-2) / 2) < 1.3  # hardly filtered
        assert error[0] <= (1.0 if mild else share) * error[1]


@pytest.mark.parametrize("times", [2.0, 4.0, 8.0])
def test_level_is_the_logarithm_of_the_reduction(times):
    matrix = reduction(times, 0.7, size=800)
    level = levels(partial(lattice, matrix), (40, 40), (800, 800), "constant", double)
    assert (level == math.log2(times)).all()


def test_level_follows_the_perspective_within_a_view():
    # Far rows shrink more than near ones.
    tilt = torch.tensor([[1, 0, 0], [0, 1, 0], [0, -0.0035, 1]], dtype=double)[None]  # w falls from 1 to 0.44
    level = levels(partial(lattice, tilt), (80, 120), (800, 1200), "replicate", double)
    level = level[0]
    assert level[0, 0] == 0 and level[-1].min() > 1
    assert (level.diff(dim=0) >= 0).all()


@pytest.mark.parametrize("border", BORDERS)
def test_any_size_and_border_stays_within_the_range_of_the_image(border):
    for size in ((1, 1), (1, 7), (5, 3), (37, 61), (64, 64)):
        images = torch.rand(1, 2, *size, dtype=double).requires_grad_()
        matrix = reduction(3.3, 0.4, size[0], 16)
        view = warp_by_matrix(images, matrix, (16, 16), border=border, antialias=True)
        assert view.min() >= 0 and view.max() <= images.max() + 1e-12
        view.sum().backward()
        assert images.grad.isfinite().all() and images.grad.any()
        if border != "constant":  # a weighted mean of pixels
            white = warp_by_matrix(torch.ones_like(images), matrix, (16, 16), border=border, antialias=True)
            torch.testing.assert_close(white, torch.ones_like(white), rtol=0, atol=1e-12)


def test_picture_smaller_than_a_lattice_cell_is_antialiased():
    # 6 pixels wide in a view of 320: between two nodes of the lattice.
    images = torch.rand(1, 1, 96, 96, dtype=double)
    matrix = reduction(16, 0, 96, 320)
    view = warp_by_matrix(images, matrix, (320, 320), antialias=True)
    torch.testing.assert_close(view[..., 157:163, 157:163], F.avg_pool2d(images, 16), rtol=0, atol=1e-12)


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("border", BORDERS)
def test_gradcheck_in_images_and_in_the_map(distinct, border):
    images = torch.rand(2 if distinct else 1, 1, 21, 18, dtype=double)
    matrix = torch.cat([reduction(2.7, 0.2, 20, 6), reduction(1.5, -0.3, 20, 6)])

    def view(pixels, map_):
        return warp_by_matrix(pixels, map_, (6, 6), border=border, antialias=True, value=0.3)

    assert_slope(lambda pixels: view(pixels, matrix), images)
    assert gradcheck(lambda map_: view(images, map_), (matrix.requires_grad_(),), fast_mode=True, atol=1e-4)

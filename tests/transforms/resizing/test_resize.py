"""The resizer, dense and block by block, against the libraries after which its kernels are named, and its laws."""

import itertools
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.autograd import gradcheck, gradgradcheck

from tests.helpers.resizers import OPENCV, PILLOW, SIZES, TORCH, by_opencv, by_pillow, by_torch
from tests.helpers.sampling import mostly_slow
from tests.helpers.wrong import refused
from transforms import Downscale, resize
from transforms.resizing.eight_bit import resize_levels
from transforms.resizing.kernels import Bands
from transforms.resizing.resize import NAMES, axes


def double(*shape):
    return torch.rand(*shape, dtype=torch.float64)


def test_every_kernel_has_an_oracle():
    assert {*PILLOW, *OPENCV, *TORCH} == set(NAMES)


@pytest.mark.parametrize("kernel", [*PILLOW, *OPENCV])
def test_equals_pillow_and_opencv(photo, kernel):
    library = by_pillow if kernel in PILLOW else by_opencv
    tiny = [torch.rand(shape) for shape in [(1, 1), (1, 7), (7, 1), (2, 2)]]
    cases = [*itertools.product(photo[0], SIZES), *itertools.product(tiny, [(1, 1), (1, 5), (5, 1), (3, 4)])]
    for plane, size in cases:
        oracle = library(plane.float().numpy(), size, kernel)
        np.testing.assert_allclose(resize(plane[None, None], size, kernel)[0, 0], oracle, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", [*TORCH, "pil_bilinear", "pil_bicubic"])
def test_equals_torch(photo, kernel):
    theirs = kernel.replace("pil_", "torch_") + ("_aa" if kernel.startswith("pil_") else "")
    for size, (images, atol) in itertools.product(SIZES, ((photo, 1e-10), (photo.float(), 1e-5))):
        torch.testing.assert_close(resize(images, size, kernel), by_torch(images, size, theirs), rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["pil_nearest", "cv2_nearest", "cv2_area", "torch_nearest", "torch_nearest_exact"])
def test_equals_the_library_at_every_length(kernel):
    # Where a coordinate falls on the border of two pixels, the library's own rounding decides.
    library = {"pil": by_pillow, "cv2": by_opencv}.get(kernel[:3])
    for dtype in [torch.float32] if library else [torch.float32, torch.float64]:
        row = torch.rand(1, 1, 1, 80 if library else 97, dtype=dtype)
        wrong = []
        for length in range(1, 250):
            size, atol = (1, length), 1e-5 if kernel == "cv2_area" else 0
            oracle = library(row[0, 0].numpy(), size, kernel) if library else by_torch(row, size, kernel)[0, 0]
            if not np.allclose(resize(row, size, kernel)[0, 0], oracle, rtol=0, atol=atol):
                wrong.append(length)
        assert not wrong


@pytest.mark.parametrize("size", [(27, 41), (93, 131), (31, 150)], ids=str)
def test_keys_equals_the_library_cubic_with_the_same_parameter(photo, size):
    planes = [Image.fromarray(plane.float().numpy()) for plane in photo[0]]
    options = (size[::-1], Image.Transform.EXTENT, (0, 0, 120, 80), Image.Resampling.BICUBIC)
    oracle = np.stack([np.asarray(plane.transform(*options)) for plane in planes])  # unlike `resize`, with a = -1
    np.testing.assert_allclose(resize(photo, size, "keys(-1)")[0], oracle, rtol=0, atol=1e-5)
    torch.testing.assert_close(resize(photo, size, "keys(-0.75)"), resize(photo, size, "cv2_cubic"), rtol=0, atol=0)
    torch.testing.assert_close(resize(photo, size, "keys_aa(-0.5)"), resize(photo, size), rtol=0, atol=0)
    size = (80, size[1])  # along one axis, Keys' kernel is linear in a
    mixture = 0.4 * resize(photo, size, "keys(-1)") + 0.6 * resize(photo, size, "keys(-0.75)")
    torch.testing.assert_close(resize(photo, size, "keys(-0.85)"), mixture, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["keys", "keys()", "keys(-0.6", "keys( -0.6)", "keys(-.6)", "keys(nan)", "keys(-0.6)x", "lanczos"]
)
def test_an_unknown_kernel_is_refused(photo, name):
    refused(rf"`kernel` must be one of pil_box, .*'{re.escape(name)}'", resize, photo, 10, name)


def test_size_below_one_pixel_or_parameter_out_of_range_is_refused(photo):
    for size in (0, -3, (0, 5), (5, 0)):
        refused("at least 1 pixel", resize, photo, size)
    for name in ("keys(0.5)", "keys_aa(-2.5)"):
        refused(r"Keys' parameter must lie in \[-2, 0\]", resize, photo, 10, name)


def test_gradients_work_after_a_first_use_in_inference_mode():
    stage, u = Downscale((7, 11)), torch.full((1, 1), 0.5)
    with torch.inference_mode():
        stage(torch.rand(1, 3, 19, 19), u)
        resize(torch.rand(1, 3, 19, 19), 13)
    images = torch.rand(1, 3, 19, 19, requires_grad=True)
    (stage(images, u).sum() + resize(images, 13).sum()).backward()
    assert bool((images.grad != 0).any())


LARGE = (70, 1101)
KERNELS = mostly_slow([*NAMES, "keys(-0.6)", "keys_aa(-0.6)"], 4)


@pytest.mark.parametrize("shape", [(1, 5), (16, 200), (33, 100), (100, 7)], ids=str)
@pytest.mark.parametrize("density", [0.03, 1.0])
def test_products_equal_those_of_the_dense_matrix_and_its_transpose(shape, density):
    matrix = torch.rand(shape, dtype=torch.float64) * (torch.rand(shape) < density)
    bands, (out, length) = Bands.of(matrix), shape
    close = torch.testing.assert_close
    images = torch.rand(2, 3, length, 6, dtype=torch.float64)
    close(bands.down(images), matrix @ images, rtol=0, atol=1e-12)
    close(bands.across(images.mT), images.mT @ matrix.mT, rtol=0, atol=1e-12)
    views = torch.rand(2, 3, out, 6, dtype=torch.float64)
    close(bands.spread(bands.lines(views, -2), -2), matrix.mT @ views, rtol=0, atol=1e-12)
    close(bands.spread(bands.lines(views.mT, -1), -1), views.mT @ matrix, rtol=0, atol=1e-12)
    assert torch.equal(bands.used, matrix.any(0).nonzero()[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("used", [9, 3])
def test_products_have_first_and_second_derivatives(used):
    bands = Bands.of(torch.rand(4, 9, dtype=torch.float64) * (torch.arange(9) < used))
    assert bands.is_sparse == (used < 5)
    images = torch.rand(1, 2, 9, 9, dtype=torch.float64, requires_grad=True)
    for product in (bands.down, bands.across):
        assert gradcheck(product, (images,)) and gradgradcheck(lambda x, product=product: product(x).square(), images)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("eight_bit", [False, True])
def test_the_gradient_is_that_of_the_dense_matrices_in_float64(kernel, eight_bit):
    # Grey pictures: in 8 bits nothing is clipped, and the gradient is the linear map's.
    images = (0.4 + 0.2 * torch.rand(1, 3, *LARGE)).requires_grad_()
    views = resize(images, (17, 224), kernel, eight_bit=eight_bit)
    upstream = torch.randn_like(views)
    (grad,) = torch.autograd.grad(views, images, upstream)
    like = torch.empty(0, dtype=torch.float32 if "nearest" in kernel else torch.float64)  # nearest rounds so
    rows, columns = (matrix.double() for matrix in axes(LARGE, (17, 224), kernel, like))
    assert float((grad - rows.mT @ upstream.double() @ columns).abs().max()) < 1e-6
    if not eight_bit:
        exact = rows @ images.detach().double() @ columns.mT
        torch.testing.assert_close(views.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kernel", "side"), [("torch_bicubic", 1), ("pil_bicubic", 10)])
@pytest.mark.parametrize("size", [(90, 200), (400, 60)], ids=str)
def test_what_a_clip_between_the_passes_holds_has_no_gradient(kernel, side, size):
    # Black and white squares, in which both kernels overshoot: one reads single pixels, the other averages.
    squares = (torch.rand(2, 3, size[0] // side, size[1] // side) > 0.5).float()
    images = squares.repeat_interleave(side, 2).repeat_interleave(side, 3).requires_grad_()
    exact, out = resize_levels(images, (6, 9), kernel), (6, 9)
    assert not bool(exact.middle.all()) and exact.rows_first == (kernel == "pil_bicubic" and size == (400, 60))
    upstream = torch.randn(2, 3, *out)
    (grad,) = torch.autograd.grad(resize(images, out, kernel, eight_bit=True), images, upstream)
    rows, columns = axes(size, out, kernel, torch.empty(0, dtype=torch.float64))
    expected = torch.where(exact.final, upstream.double(), 0)
    if exact.rows_first:
        expected = rows.mT @ torch.where(exact.middle, expected @ columns, 0)
    else:
        expected = torch.where(exact.middle, rows.mT @ expected, 0) @ columns
    torch.testing.assert_close(grad.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", mostly_slow([*PILLOW, *OPENCV], 3))
@pytest.mark.parametrize("size", [(1300, 1700), (1100, 60)], ids=str)
def test_a_large_file_equals_the_library(kernel, size):
    levels = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    library = by_pillow if kernel in PILLOW else by_opencv
    ours = resize(levels[None, None] / 255, (96, 55), kernel, eight_bit=True)[0, 0] * 255
    gap = np.abs(ours.numpy().round() - library(levels.numpy(), (96, 55), kernel))
    assert gap.max() <= (1 if kernel in OPENCV else 0) and gap.mean() < 0.01


@pytest.mark.parametrize("limit", ["resizing.resize.DENSE", "camera.sizes.ONE_MATRIX"])
def test_a_downscale_of_large_pictures_equals_that_of_small_ones(monkeypatch, limit):
    stage, u = Downscale((9, 14), "cv2_cubic"), torch.rand(5, 1)
    images = torch.rand(5, 3, 40, 50)
    dense = stage(images, u)
    monkeypatch.setattr(f"transforms.{limit}", 20)
    torch.testing.assert_close(stage(images, u), dense, rtol=0, atol=1e-5)
    torch.testing.assert_close(stage(images[2:], u[2:]), stage(images, u)[2:], rtol=0, atol=1e-6)
    one_side = u[:1].repeat(5, 1)
    torch.testing.assert_close(stage(images, one_side)[3:4], stage(images[3:4], u[:1]), rtol=0, atol=1e-6)

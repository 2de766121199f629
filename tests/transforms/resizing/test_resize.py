"""The resizer against the libraries after which its kernels are named, and its laws."""

import itertools
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.autograd import gradcheck

from tests.helpers.resizers import OPENCV, PILLOW, SIZES, TORCH, by_opencv, by_pillow, by_torch
from transforms import Downscale, resize
from transforms.resizing.resize import NAMES


def double(*shape):
    return torch.rand(*shape, dtype=torch.float64)


def test_every_kernel_has_an_oracle():
    assert {*PILLOW, *OPENCV, *TORCH} == set(NAMES)


@pytest.mark.parametrize("kernel", [*PILLOW, *OPENCV])
def test_equals_pillow_and_opencv(photo, kernel):
    library = by_pillow if kernel in PILLOW else by_opencv
    for size in SIZES:
        oracle = [library(plane, size, kernel) for plane in photo[0].float().numpy()]
        np.testing.assert_allclose(resize(photo, size, kernel)[0], np.stack(oracle), rtol=0, atol=1e-5)


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
    with pytest.raises(ValueError, match=rf"`kernel` must be one of pil_box, .*'{re.escape(name)}'"):
        resize(photo, 10, name)


@pytest.mark.parametrize("kernel", [*PILLOW, *OPENCV])
def test_images_of_one_or_two_pixels_equal_the_library(kernel):
    for shape, size in itertools.product([(1, 1), (1, 7), (7, 1), (2, 2)], [(1, 1), (1, 5), (5, 1), (3, 4)]):
        image = torch.rand(shape)
        oracle = (by_pillow if kernel in PILLOW else by_opencv)(image.numpy(), size, kernel)
        np.testing.assert_allclose(resize(image[None, None], size, kernel)[0, 0], oracle, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [*NAMES, "keys(-0.6)", "keys_aa(-0.6)"])
def test_gradient(kernel):
    images = double(2, 2, 5, 6).requires_grad_()
    for size in ((3, 4), (7, 9)):
        assert gradcheck(lambda images, size=size: resize(images, size, kernel), (images,))


def test_size_below_one_pixel_or_parameter_out_of_range_is_refused(photo):
    for size in (0, -3, (0, 5), (5, 0)):
        with pytest.raises(ValueError, match="at least 1 pixel"):
            resize(photo, size)
    for name in ("keys(0.5)", "keys_aa(-2.5)"):
        with pytest.raises(ValueError, match=r"Keys' parameter must lie in \[-2, 0\]"):
            resize(photo, 10, name)


def test_gradients_work_after_a_first_use_in_inference_mode():
    stage, u = Downscale((7, 11)), torch.full((1, 1), 0.5)
    with torch.inference_mode():
        stage(torch.rand(1, 3, 19, 19), u)
        resize(torch.rand(1, 3, 19, 19), 13)
    images = torch.rand(1, 3, 19, 19, requires_grad=True)
    (stage(images, u).sum() + resize(images, 13).sum()).backward()
    assert bool((images.grad != 0).any())

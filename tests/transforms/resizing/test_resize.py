"""The resizer against the libraries whose kernels it names, and its laws."""

from itertools import product

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tvf
from PIL import Image
from torch.autograd import gradcheck

from transforms import Downscale, resize
from transforms.resizing.resize import NAMES, axes

PILLOW = {
    "pil_nearest": Image.Resampling.NEAREST,
    "pil_box": Image.Resampling.BOX,
    "pil_bilinear": Image.Resampling.BILINEAR,
    "pil_bicubic": Image.Resampling.BICUBIC,
    "pil_lanczos": Image.Resampling.LANCZOS,
}
OPENCV = {
    "cv2_nearest": cv2.INTER_NEAREST,
    "cv2_linear": cv2.INTER_LINEAR,
    "cv2_cubic": cv2.INTER_CUBIC,
    "cv2_area": cv2.INTER_AREA,
    "cv2_lanczos4": cv2.INTER_LANCZOS4,
}
TORCH = {  # ours: (torch's mode, antialias)
    "torch_bilinear": ("bilinear", False),
    "torch_bicubic": ("bicubic", False),
    "torch_bilinear_aa": ("bilinear", True),
    "torch_bicubic_aa": ("bicubic", True),
    "torch_nearest": ("nearest", False),
    "torch_nearest_exact": ("nearest-exact", False),
    "pil_bilinear": ("bilinear", True),
    "pil_bicubic": ("bicubic", True),
}
# Of an image of 80 x 120: whole and broken ratios, down, up, one axis alone, and one of either.
SIZES = [
    (40, 60),
    (20, 40),
    (27, 41),
    (79, 119),
    (160, 240),
    (93, 131),
    (80, 53),
    (113, 120),
    (31, 150),
    (150, 31),
    (1, 1),
]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)
kernels = pytest.mark.parametrize("kernel", [*NAMES, "keys(-0.6)", "keys_aa(-0.6)"])


def double(*shape):
    return torch.rand(*shape, dtype=torch.float64)


def test_every_kernel_has_an_oracle():
    assert {*PILLOW, *OPENCV, *TORCH} == set(NAMES)


@pytest.mark.parametrize("kernel", PILLOW)
def test_equals_pillow(photo, kernel):
    planes = [Image.fromarray(plane.float().numpy()) for plane in photo[0]]
    assert planes[0].mode == "F"
    for size in SIZES:
        oracle = np.stack([np.asarray(plane.resize(size[::-1], PILLOW[kernel])) for plane in planes])
        np.testing.assert_allclose(resize(photo, size, kernel)[0], oracle, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", OPENCV)
def test_equals_opencv(photo, kernel):
    image = photo[0].permute(1, 2, 0).float().contiguous().numpy()
    for size in SIZES:
        oracle = cv2.resize(image, size[::-1], interpolation=OPENCV[kernel]).transpose(2, 0, 1)
        np.testing.assert_allclose(resize(photo, size, kernel)[0], oracle, rtol=0, atol=1e-5)


def test_nearest_equals_pillow_at_every_length():
    # Where a coordinate falls on the border of two pixels, the library's own rounding decides.
    row = torch.arange(80.0)[None, None, None]
    wrong = []
    for length in range(1, 200):
        oracle = Image.fromarray(row[0, 0].numpy()).resize((length, 1), Image.Resampling.NEAREST)
        if not np.array_equal(resize(row, (1, length), "pil_nearest")[0, 0], oracle):
            wrong.append(length)
    assert not wrong


@pytest.mark.parametrize("kernel", ["cv2_nearest", "cv2_area"])
def test_equals_opencv_at_every_length(kernel):
    row = torch.rand(1, 1, 1, 80)
    wrong = []
    for length in range(1, 200):
        oracle = cv2.resize(row[0, 0].numpy(), (length, 1), interpolation=OPENCV[kernel])
        if not np.allclose(resize(row, (1, length), kernel)[0, 0], oracle, rtol=0, atol=1e-5):
            wrong.append(length)
    assert not wrong


@pytest.mark.parametrize("kernel", TORCH)
def test_equals_torch(photo, kernel):
    mode, antialias = TORCH[kernel]
    corners = None if "nearest" in mode else False
    for size in SIZES:
        oracle = F.interpolate(photo, size, mode=mode, antialias=antialias, align_corners=corners)
        torch.testing.assert_close(resize(photo, size, kernel), oracle, rtol=0, atol=1e-10)
        oracle = F.interpolate(photo.float(), size, mode=mode, antialias=antialias, align_corners=corners)
        torch.testing.assert_close(resize(photo.float(), size, kernel), oracle, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", ["torch_nearest", "torch_nearest_exact"])
def test_nearest_equals_torch_at_every_length(kernel, dtype):
    row = torch.arange(97, dtype=dtype)[None, None, None]
    wrong = []
    for length in range(1, 250):
        oracle = F.interpolate(row, (1, length), mode=TORCH[kernel][0])
        if not torch.equal(resize(row, (1, length), kernel), oracle):
            wrong.append(length)
    assert not wrong


@sizes
def test_keys_is_the_cubic_of_libraries_that_name_their_parameter(photo, size):
    planes = [Image.fromarray(plane.float().numpy()) for plane in photo[0]]
    options = (size[::-1], Image.Transform.EXTENT, (0, 0, 120, 80), Image.Resampling.BICUBIC)
    oracle = np.stack([np.asarray(plane.transform(*options)) for plane in planes])  # unlike `resize`, with a = -1
    np.testing.assert_allclose(resize(photo, size, "keys(-1)")[0], oracle, rtol=0, atol=1e-5)
    torch.testing.assert_close(resize(photo, size, "keys(-0.75)"), resize(photo, size, "cv2_cubic"), rtol=0, atol=0)
    torch.testing.assert_close(resize(photo, size, "keys_aa(-0.5)"), resize(photo, size), rtol=0, atol=0)
    size = (80, size[1])  # along one axis, Keys' kernel is linear in a
    between = 0.4 * resize(photo, size, "keys(-1)") + 0.6 * resize(photo, size, "keys(-0.75)")
    torch.testing.assert_close(resize(photo, size, "keys(-0.85)"), between, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["keys", "keys()", "keys(-0.6", "keys( -0.6)", "keys(-.6)", "keys(nan)", "keys(-0.6)x"]
)
def test_keys_is_read_strictly(photo, name):
    with pytest.raises(ValueError, match="`kernel` must be one of"):
        resize(photo, 10, name)


@pytest.mark.parametrize("name", ["keys(0.5)", "keys_aa(-2.5)"])
def test_keys_with_a_parameter_of_no_use_is_refused(photo, name):
    with pytest.raises(ValueError, match=r"Keys' parameter must lie in \[-2, 0\]"):
        resize(photo, 10, name)


@pytest.mark.parametrize("kernel", [*PILLOW, *OPENCV])
def test_a_pixel_or_two_equal_the_library(kernel):
    for shape, size in product([(1, 1), (1, 7), (7, 1), (2, 2)], [(1, 1), (1, 5), (5, 1), (3, 4)]):
        image = torch.rand(shape)
        if kernel in PILLOW:
            oracle = np.asarray(Image.fromarray(image.numpy()).resize(size[::-1], PILLOW[kernel]))
        else:
            oracle = cv2.resize(image.numpy(), size[::-1], interpolation=OPENCV[kernel]).reshape(size)
        np.testing.assert_allclose(resize(image[None, None], size, kernel)[0, 0], oracle, rtol=0, atol=1e-5)


@kernels
def test_weights_of_every_pixel_sum_to_one(kernel):
    for out in (1, 3, 17, 30, 31, 64):
        rows = axes((30, 30), (out, out), kernel, double(1))[0]
        assert rows.shape == (out, 30)
        torch.testing.assert_close(rows.sum(1), torch.ones(out, dtype=torch.float64), rtol=0, atol=1e-12)


@kernels
def test_constant_image_stays_constant(kernel):
    for size in SIZES:
        views = resize(torch.full((1, 1, 80, 120), 0.3, dtype=torch.float64), size, kernel)
        torch.testing.assert_close(views, torch.full((1, 1, *size), 0.3, dtype=torch.float64), rtol=0, atol=1e-12)


@kernels
def test_same_size_is_the_identity(photo, kernel):
    torch.testing.assert_close(resize(photo, (80, 120), kernel), photo, rtol=0, atol=1e-12)


@kernels
def test_gradient(kernel):
    for size in ((3, 4), (7, 9)):
        assert gradcheck(lambda images: resize(images, size, kernel), (double(2, 2, 5, 6).requires_grad_(),))  # noqa: B023


@kernels
def test_gradient_is_the_adjoint(photo, kernel):
    images = photo.requires_grad_()
    views = resize(images, (31, 47), kernel)
    cotangent = torch.randn_like(views)
    (adjoint,) = torch.autograd.grad(views, images, cotangent)
    torch.testing.assert_close((views * cotangent).sum(), (images * adjoint).sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(80, 120), (120, 80), (77, 101), (64, 64), (30, 91)], ids=str)
def test_one_number_is_the_shorter_side_as_in_torchvision(shape):
    images = double(1, 1, *shape)
    for short in (1, 7, 32, 63, 100):
        assert resize(images, short).shape == tvf.resize(images, short).shape


@kernels
def test_batch_rows_are_independent(photo, kernel):
    images = torch.cat([photo, photo.flip(-1), 1 - photo])
    rows = [resize(row[None], (31, 150), kernel) for row in images]
    torch.testing.assert_close(resize(images, (31, 150), kernel), torch.cat(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-6)])
def test_dtype_is_kept(photo, dtype, bound):
    views = resize(photo.to(dtype), 32)
    assert views.dtype == dtype
    torch.testing.assert_close(views.double(), resize(photo.to(dtype).double(), 32), rtol=0, atol=bound)


@pytest.mark.parametrize("size", [0, -3, (0, 5), (5, 0)])
def test_a_size_below_one_pixel_is_refused(photo, size):
    with pytest.raises(ValueError, match="at least 1 pixel"):
        resize(photo, size)


def test_an_unknown_kernel_is_refused(photo):
    with pytest.raises(ValueError, match=r"`kernel` must be one of pil_box, .*'lanczos'"):
        resize(photo, 10, "lanczos")


def test_a_first_use_in_inference_mode_does_not_bar_autograd():
    stage, u = Downscale((7, 11)), torch.full((1, 1), 0.5)
    with torch.inference_mode():
        stage(torch.rand(1, 3, 19, 19), u)
        resize(torch.rand(1, 3, 19, 19), 13)
    images = torch.rand(1, 3, 19, 19, requires_grad=True)
    (stage(images, u).sum() + resize(images, 13).sum()).backward()
    assert bool((images.grad != 0).any())

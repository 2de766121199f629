"""The resizer against the libraries whose kernels it names, and its laws; the `Downscale` stage."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tvf
from PIL import Image
from torch.autograd import gradcheck

from transforms import Downscale, resize
from transforms.resize import NAMES, axes

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
}
TORCH = {  # ours: (torch's mode, antialias)
    "torch_bilinear": ("bilinear", False),
    "torch_bicubic": ("bicubic", False),
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
kernels = pytest.mark.parametrize("kernel", NAMES)


def double(*shape):
    return torch.rand(*shape, dtype=torch.float64)


def test_every_kernel_has_an_oracle():
    assert {*PILLOW, *OPENCV, *TORCH} == set(NAMES)


@sizes
@pytest.mark.parametrize("kernel", PILLOW)
def test_equals_pillow(photo, size, kernel):
    planes = [Image.fromarray(plane.float().numpy()) for plane in photo[0]]
    assert planes[0].mode == "F"
    oracle = np.stack([np.asarray(plane.resize(size[::-1], PILLOW[kernel])) for plane in planes])
    np.testing.assert_allclose(resize(photo, size, kernel)[0], oracle, rtol=0, atol=1e-5)


@sizes
@pytest.mark.parametrize("kernel", OPENCV)
def test_equals_opencv(photo, size, kernel):
    image = photo[0].permute(1, 2, 0).float().contiguous().numpy()
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


@sizes
@pytest.mark.parametrize("kernel", TORCH)
def test_equals_torch(photo, size, kernel):
    mode, antialias = TORCH[kernel]
    oracle = F.interpolate(photo, size, mode=mode, antialias=antialias, align_corners=False)
    torch.testing.assert_close(resize(photo, size, kernel), oracle, rtol=0, atol=1e-10)


@kernels
@pytest.mark.parametrize("out", [1, 3, 17, 30, 31, 64])
def test_weights_of_every_pixel_sum_to_one(kernel, out):
    rows = axes((30, 30), (out, out), kernel, double(1))[0]
    assert rows.shape == (out, 30)
    torch.testing.assert_close(rows.sum(1), torch.ones(out, dtype=torch.float64), rtol=0, atol=1e-12)


@kernels
@sizes
def test_constant_image_stays_constant(kernel, size):
    views = resize(torch.full((1, 1, 80, 120), 0.3, dtype=torch.float64), size, kernel)
    torch.testing.assert_close(views, torch.full((1, 1, *size), 0.3, dtype=torch.float64), rtol=0, atol=1e-12)


@kernels
def test_same_size_is_the_identity(photo, kernel):
    torch.testing.assert_close(resize(photo, (80, 120), kernel), photo, rtol=0, atol=1e-12)


@kernels
@pytest.mark.parametrize("size", [(3, 4), (7, 9)], ids=str)
def test_gradient(kernel, size):
    assert gradcheck(lambda images: resize(images, size, kernel), (double(2, 2, 5, 6).requires_grad_(),))


@kernels
def test_gradient_is_the_adjoint(photo, kernel):
    images = photo.requires_grad_()
    views = resize(images, (31, 47), kernel)
    cotangent = torch.randn_like(views)
    (adjoint,) = torch.autograd.grad(views, images, cotangent)
    torch.testing.assert_close((views * cotangent).sum(), (images * adjoint).sum(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(80, 120), (120, 80), (77, 101), (64, 64), (30, 91)], ids=str)
@pytest.mark.parametrize("short", [1, 7, 32, 63, 100])
def test_one_number_is_the_shorter_side_as_in_torchvision(shape, short):
    images = double(1, 1, *shape)
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


@kernels
def test_downscale_to_a_fixed_side_is_a_clamped_resize(photo, kernel):
    stage = Downscale(31, kernel)
    assert stage.dims == 0
    torch.testing.assert_close(stage(photo, double(1, 0)), resize(photo, 31, kernel).clamp(0, 1))


@kernels
def test_downscale_range_is_down_and_up_again_row_by_row(photo, kernel):
    stage, images, u = Downscale((10, 40), kernel), torch.cat([photo, photo.flip(-1), 1 - photo]), double(3, 1)
    assert stage.dims == 1
    sides = [int(side) for side in stage.values(u)]
    assert len(set(sides)) == 3
    oracle = [
        resize(resize(row[None], side, kernel), (40, 60), kernel).clamp(0, 1)
        for row, side in zip(images, sides, strict=True)
    ]
    torch.testing.assert_close(stage(images, u), torch.cat(oracle), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [40, (20, 40)], ids=str)
def test_downscale_clamps_what_the_kernel_overshoots(size):
    images = (double(1, 1, 80, 120) > 0.5).double()
    assert resize(images, 40, "pil_lanczos").max() > 1
    views = Downscale(size, "pil_lanczos")(images, torch.full((1, Downscale(size).dims), 0.999))
    assert views.min() == 0 and views.max() == 1


def test_downscale_draws_every_whole_side_of_the_range_equally_often():
    u = ((torch.arange(1300) + 0.5) / 1300)[:, None]
    sides, counts = Downscale((8, 20)).values(u).unique(return_counts=True)
    assert sides.tolist() == list(range(8, 21))
    assert (counts == 100).all()


def test_downscale_range_of_one_side_is_that_side():
    assert Downscale((32, 32)) == Downscale(32)


@pytest.mark.parametrize("size", [0, -1, 2.5, (0, 4), (8, 4), (4, 8, 16), (4.0, 8.0)], ids=str)
def test_downscale_refuses_other_sizes(size):
    with pytest.raises(ValueError, match="`size` must be a whole number of pixels"):
        Downscale(size)


def test_downscale_refuses_an_unknown_kernel():
    with pytest.raises(ValueError, match="`kernel` must be one of"):
        Downscale(32, "bicubic")


def test_a_first_use_in_inference_mode_does_not_bar_autograd():
    stage, u = Downscale((7, 11)), torch.full((1, 1), 0.5)
    with torch.inference_mode():
        stage(torch.rand(1, 3, 19, 19), u)
        resize(torch.rand(1, 3, 19, 19), 13)
    images = torch.rand(1, 3, 19, 19, requires_grad=True)
    (stage(images, u).sum() + resize(images, 13).sum()).backward()
    assert bool((images.grad != 0).any())

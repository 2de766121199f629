"""Resizing in 8 bits against the libraries' own, pixel by pixel, and its gradient."""

import hashlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.helpers.resizers import OPENCV, PILLOW, SIZES, TORCH, by_opencv, by_pillow, by_torch
from transforms import resize
from transforms.doors import unchecked
from transforms.resizing.resize import axes

TORCH = [*TORCH, "torch_lanczos_aa"] if "lanczos" in (F.interpolate.__doc__ or "") else TORCH  # from torch 2.12
#: OpenCV's kernel -> the mean difference allowed in levels.
TOLERANCE = {"cv2_nearest": 0, "cv2_linear": 1e-3, "cv2_cubic": 1e-2, "cv2_area": 1e-2, "cv2_lanczos4": 1e-3}
NAMES = [*PILLOW, *OPENCV, *TORCH, "keys(-0.6)", "keys_aa(-0.6)"]
contents = pytest.mark.parametrize("content", ["photo", "noise", "black and white"])
kernels = pytest.mark.parametrize("kernel", NAMES)


@pytest.fixture
def levels(photo, content):
    """(1,3,80,120) uint8, channels last (torch fails for 1 x 1 in other layouts); black and white overshoot."""
    noise = torch.rand_like(photo)
    pictures = {"photo": photo, "noise": noise, "black and white": noise.round()}[content]
    return (pictures * 255).round().byte().contiguous(memory_format=torch.channels_last)


def ours(levels, size, kernel, dtype=torch.float64):
    views = resize(levels.to(dtype) / 255, size, kernel, eight_bit=True)
    level_numbers = (views.double() * 255).round()
    assert torch.equal(views, level_numbers.to(dtype) / 255)  # exactly k/255
    return level_numbers[0].numpy()


def theirs(levels, size, kernel):
    if kernel in TORCH:
        return by_torch(levels, size, kernel)[0].numpy()
    library = by_pillow if kernel in PILLOW else by_opencv
    return library(levels[0].permute(1, 2, 0).contiguous().numpy(), size, kernel).transpose(2, 0, 1)


def is_equal(levels, size, kernel):
    dtype = torch.float32 if kernel in TORCH else torch.float64
    return np.array_equal(ours(levels, size, kernel, dtype), theirs(levels, size, kernel))


@contents
@pytest.mark.parametrize("kernel", [*PILLOW, *TORCH])
def test_equals_pillow_and_torch_exactly(levels, kernel):
    assert not [size for size in SIZES if not is_equal(levels, size, kernel)]


@pytest.mark.parametrize(
    ("kernel", "digest"),
    [
        ("pil12_box", "c9008a30748413e2"),
        ("pil12_bilinear", "5afcc0f78b47ae67"),
        ("pil12_bicubic", "59f0e736663d2774"),
        ("pil12_lanczos", "babe1df0f5ab5e60"),
    ],
)
def test_equals_pillow_12_exactly(kernel, digest):
    """By the SHA-256 of what Pillow 12.3.0 makes of this picture at all sizes."""
    pixels = np.random.default_rng(0).integers(0, 2, (80, 120, 3), dtype=np.uint8) * 255
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    views = [ours(images, size, kernel).astype(np.uint8).transpose(1, 2, 0).tobytes() for size in SIZES]
    assert hashlib.sha256(b"".join(views)).hexdigest()[:16] == digest


@contents
@pytest.mark.parametrize("kernel", OPENCV)
def test_equals_opencv_within_a_level(levels, kernel):
    gaps = [np.abs(ours(levels, size, kernel) - theirs(levels, size, kernel)).ravel() for size in SIZES]
    assert np.concatenate(gaps).max() <= 1 and np.concatenate(gaps).mean() <= TOLERANCE[kernel]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["pil_lanczos", "pil_bilinear", "torch_bicubic_aa"])
def test_equals_the_library_at_every_length(kernel):
    levels = torch.randint(0, 256, (1, 3, 61, 47), dtype=torch.uint8)
    assert not [n for n in range(1, 130) if not is_equal(levels, (n, 131 - n), kernel)]


@pytest.mark.parametrize("size", [(27, 41), (160, 240)], ids=str)
@pytest.mark.parametrize("kernel", ["keys(-0.6)", "keys_aa(-0.6)"])
def test_keys_has_one_rounding_and_one_clip(photo, kernel, size):
    oracle = (unchecked(resize)((photo * 255).round(), size, kernel).round().clamp(0, 255)[0]).numpy()
    np.testing.assert_array_equal(ours((photo * 255).round(), size, kernel), oracle)


@kernels
def test_images_are_first_rounded_and_clipped(photo, kernel):
    off = photo + 0.4 / 255 * (2 * torch.rand_like(photo) - 1)
    assert torch.equal(resize(off, (27, 41), kernel, eight_bit=True), resize(photo, (27, 41), kernel, eight_bit=True))
    wild = 3 * photo - 1
    assert torch.equal(
        unchecked(resize)(wild, (27, 41), kernel, eight_bit=True),
        resize(wild.clamp(0, 1), (27, 41), kernel, eight_bit=True),
    )


@kernels
def test_gradient_equals_the_float_resize_where_nothing_clips(photo, kernel):
    images = (0.3 + 0.4 * photo).requires_grad_()
    for size in ((27, 41), (93, 131), (31, 150)):
        views, linear = resize(images, size, kernel, eight_bit=True), resize(images, size, kernel)
        cotangent = torch.randn_like(linear)
        (gradient,), (oracle,) = (torch.autograd.grad(v, images, cotangent) for v in (views, linear))
        torch.testing.assert_close(gradient, oracle, rtol=0, atol=1e-12)
        assert float((views - linear).detach().abs().max()) < 2 / 255


@pytest.mark.parametrize(("size", "rows_first"), [((27, 41), False), ((31, 150), True)])
def test_gradient_is_zero_where_a_pass_clips(size, rows_first):
    images = torch.rand(1, 1, 80, 120, dtype=torch.float64).round().requires_grad_()
    views = resize(images, size, "pil_lanczos", eight_bit=True)
    rows, columns = axes((80, 120), size, "pil_lanczos", images)

    def store(values):  # round and clip, straight through the rounding
        clipped = values.clamp(-0.5, 255.5)
        return clipped + (clipped.round().clamp(0, 255) - clipped).detach()

    middle = store(rows @ (255 * images) if rows_first else 255 * images @ columns.mT)
    oracle = store(middle @ columns.mT if rows_first else rows @ middle) / 255
    cotangent = torch.randn_like(views)
    (gradient,), (expected,) = (torch.autograd.grad(v, images, cotangent) for v in (views, oracle))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    (linear,) = torch.autograd.grad(resize(images, size, "pil_lanczos"), images, cotangent)
    assert (gradient != linear).any()


def test_gradient_is_zero_where_an_image_leaves_the_range(photo):
    images = (2 * photo - 0.5).requires_grad_()
    unchecked(resize)(images, 32, "torch_bilinear_aa", eight_bit=True).sum().backward()
    outside = (images < 0) | (images > 1)
    assert outside.any() and not images.grad[outside].any() and (images.grad[~outside] != 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_images(photo, dtype):
    views = resize(photo.to(dtype), 32, eight_bit=True)
    assert views.dtype == dtype
    oracle = resize(photo.to(dtype).double(), 32, eight_bit=True)
    assert torch.equal(views, oracle.float().to(dtype))

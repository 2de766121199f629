"""The stages that change the size: resizes, thumbnails enlarged again, padding, cuts and medians."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from transforms import Downscale, resize
from transforms.camera import MedianPool, PixelCrop, ResizePad
from transforms.resizing.resize import NAMES, target_size

kernels = pytest.mark.parametrize("kernel", [*NAMES, "keys(-0.6)"])


def double(*shape):
    return torch.rand(*shape, dtype=torch.float64)


@kernels
def test_fixed_side_is_a_clamped_resize(photo, kernel):
    stage = Downscale(31, kernel)
    assert stage.dims == 0
    torch.testing.assert_close(stage(photo, double(1, 0)), resize(photo, 31, kernel).clamp(0, 1))


@kernels
def test_range_reduces_and_enlarges_each_row_by_its_own_side(photo, kernel):
    stage, images, u = Downscale((10, 40), kernel), torch.cat([photo, photo.flip(-1), 1 - photo]), double(3, 1)
    assert stage.dims == 1
    sides = [int(side) for side in stage.values(u)]
    assert len(set(sides)) == 3
    oracle = [
        resize(resize(row[None], side, kernel), (40, 60), kernel).clamp(0, 1)
        for row, side in zip(images, sides, strict=True)
    ]
    torch.testing.assert_close(stage(images, u), torch.cat(oracle), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["cv2_cubic", "pil_bilinear"])
@pytest.mark.parametrize("width", [53, 20])
@pytest.mark.parametrize("size", [31, (10, 40)], ids=str)
def test_then_size_is_a_second_resize(photo, size, width, kernel):
    stage = Downscale(size, "cv2_cubic", then_size=width, then_kernel=None if kernel == "cv2_cubic" else kernel)
    u = double(1, 1)[:, : stage.dims]
    side = int(stage.values(u)) if stage.dims else 31
    oracle = resize(resize(photo, side, "cv2_cubic"), target_size((40, 60), width), kernel).clamp(0, 1)
    torch.testing.assert_close(stage(photo, u), oracle, rtol=0, atol=1e-12)


def test_every_whole_side_of_the_range_is_equally_likely():
    u = ((torch.arange(1300) + 0.5) / 1300)[:, None]
    sides, counts = Downscale((8, 20)).values(u).unique(return_counts=True)
    assert sides.tolist() == list(range(8, 21))
    assert (counts == 100).all()


@pytest.mark.parametrize(
    ("kernel", "then"), [("pil_bicubic", None), ("cv2_area", "pil_bilinear"), ("torch_bicubic_aa", None)]
)
def test_8bit_range_equals_two_8bit_resizes_of_each_row(photo, kernel, then):
    images = torch.cat([photo, photo.flip(-1), 1 - photo, photo.flip(-2)])
    u = torch.tensor([[0.1], [0.9], [0.5], [0.1]], dtype=torch.float64)
    stage = Downscale((10, 40), kernel, then_size=50, eight_bit=True, then_kernel=then)
    sides = [int(side) for side in stage.values(u)]
    assert len(set(sides)) == 3
    for view, row, side in zip(stage(images, u), images, sides, strict=True):
        thumbnail = resize(row[None], side, kernel, eight_bit=True)
        assert torch.equal(view[None], resize(thumbnail, (50, 75), then or kernel, eight_bit=True))


@pytest.mark.parametrize("stage", [Downscale(20), Downscale((10, 40)), Downscale(20, then_size=40)], ids=str)
def test_8bit_gradient_is_that_of_the_float_resizes(photo, stage):
    pixels = replace(stage, eight_bit=True)
    images, u = (0.3 + 0.4 * torch.cat([photo, 1 - photo])).requires_grad_(), torch.rand(2, stage.dims)
    cotangent = torch.randn_like(stage(images, u))
    (gradient,), (oracle,) = (torch.autograd.grad(s(images, u), images, cotangent) for s in (pixels, stage))
    torch.testing.assert_close(gradient, oracle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [0.5, (0.5, 1), (0.25, 0.75), 1.0])
def test_shares_of_a_length_are_pixels(size):
    ends = size if isinstance(size, tuple) else (size, size)
    pixels = tuple(round(224 * end) for end in ends)
    assert Downscale(size, of=224, then_size=1.0) == Downscale(pixels, then_size=224)
    assert Downscale((48, 96), of=224) == Downscale((48, 96))  # pixels stay
    for wrong, length in ((size, None), (float("nan"), 224), (-0.5, 224), (100.0, 224)):
        with pytest.raises(ValueError, match="`size` must be a whole number of pixels, or shares `of` a length"):
            Downscale(wrong, of=length)


def test_resize_pad_places_the_resized_picture_in_the_frame(photo):
    stage, u = ResizePad((0.5, 1.1), "pil_bicubic", 0.25), torch.rand(12, 3)
    views = stage(photo.float().expand(12, -1, -1, -1), u)
    assert views.shape == (12, 3, 88, 132)
    places = set()
    for view, row in zip(views, u.tolist(), strict=True):
        side = min(40 + int(row[0] * 49), 88)
        small = resize(photo.float(), side, "pil_bicubic").clamp(0, 1)[0]
        height, width = small.shape[1:]
        left, top = int(row[1] * (132 - width + 1)), int(row[2] * (88 - height + 1))
        expected = torch.full((3, 88, 132), 0.25)
        expected[:, top : top + height, left : left + width] = small
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)
        places.add((side, left, top))
    assert len(places) == 12
    ends = torch.tensor([[0.0, 0, 0], [1 - 2**-24] * 3])
    assert stage(photo.float().expand(2, -1, -1, -1), ends).shape == (2, 3, 88, 132)


def test_each_window_is_a_slice_at_a_place_of_its_own(photo):
    stage, u = PixelCrop(3), torch.cartesian_prod(torch.arange(4), torch.arange(4)) / 4
    views = stage(photo.expand(16, -1, -1, -1), u)
    assert torch.equal(stage.values(u), (4 * u).floor())
    for view, (left, top) in zip(views, stage.values(u).int().tolist(), strict=True):
        assert torch.equal(view, photo[0, :, top : top + 77, left : left + 117])
    assert torch.equal(PixelCrop()(photo, torch.rand(1, 2)), photo)


def test_a_picture_must_be_larger_than_the_margin(photo):
    with pytest.raises(ValueError, match="`margin` must be less than each side of the picture, 120x80; got 80"):
        PixelCrop(80)(photo, torch.rand(1, 2))


NO_COORDINATES = torch.empty(2, 0)


@pytest.mark.parametrize("size", [1, 7, 16, 26, 79])
def test_each_pixel_is_the_median_of_its_block(size):
    images = torch.rand(2, 3, 80, 120, dtype=torch.float64)
    views = MedianPool(size)(images, NO_COORDINATES)
    height, width = views.shape[2:]
    assert (height, width) == (size, int(size * 1.5))
    tall, wide = -(-80 // height), -(-120 // width)
    for i, j in [(0, 0), (height - 1, width - 1), (height // 2, width // 3)]:
        top, left = i * (80 - tall) // max(1, height - 1), j * (120 - wide) // max(1, width - 1)
        block = images[:, :, top : top + tall, left : left + wide].flatten(2).numpy()
        oracle = np.quantile(block, 0.5, axis=2, method="lower")
        np.testing.assert_array_equal(views[:, :, i, j], oracle)

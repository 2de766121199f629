"""Reading tap by tap: the same images as `grid_sample`, gradients with the same bits, and other cubics."""

import itertools
from functools import partial

import numpy as np
import pytest
import skimage.transform
import torch
from PIL import Image

from tests.helpers.reading import sample
from tests.helpers.sampling import mostly_slow
from tests.helpers.slopes import assert_slope
from transforms import Affine, Compose, Perspective, warp_affine

double = torch.float64
BORDERS = ["constant", "replicate", "reflect", "reflect101"]
KERNELS = ["nearest", "bilinear", "bicubic"]

borders = pytest.mark.parametrize("border", BORDERS)


@pytest.mark.slow
@borders
def test_equals_grid_sample_and_its_gradients(photo, border):
    for kernel, size in itertools.product(KERNELS, ((80, 120), (5, 4), (1, 9), (1, 1))):
        images = photo[..., : size[0], : size[1]].clone().requires_grad_()
        points = (torch.rand(2, 40, 50, 2, dtype=double) * 3 - 1) * torch.tensor(size[::-1], dtype=double)
        points.requires_grad_()
        options = {"kernel": kernel, "border": border, "value": 0.3}
        fast, slow = (sample(images, points, deterministic=flag, **options) for flag in (False, True))
        torch.testing.assert_close(slow, fast, rtol=0, atol=1e-11)
        v = torch.randn_like(fast)
        leaves = [images] if kernel == "nearest" else [images, points]
        for ours, theirs in zip(*(torch.autograd.grad(result, leaves, v) for result in (slow, fast)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("border", "mode"), [("constant", "constant"), ("replicate", "edge"), ("reflect", "symmetric")]
)
def test_keys_one_half_equals_scikit_image_cubic(photo, border, mode):
    matrix = np.array([[1.1, 0.3, -12.3], [-0.2, 0.9, 17.7], [0.0, 0.0, 1.0]])
    image = photo[0, 0].numpy()
    oracle = skimage.transform.warp(image, np.linalg.inv(matrix), None, (70, 90), 3, mode, 0.7, clip=False)
    ours = warp_affine(photo, torch.tensor(matrix)[:2], (70, 90), kernel="keys(-0.5)", border=border, value=0.7)
    np.testing.assert_allclose(ours[0, 0].numpy(), oracle, rtol=0, atol=1e-12)


def test_keys_one_equals_pillow_transform(photo):
    # Pillow takes the inverse map, in edge coordinates, and has a hard border: compare the interior.
    inverse = np.array([[0.9, 0.1, 5.0], [-0.05, 0.95, 6.0]])
    image = photo[0, 0].float().numpy()
    oracle = np.asarray(
        Image.fromarray(image).transform((120, 80), Image.Transform.AFFINE, inverse.ravel(), Image.Resampling.BICUBIC)
    )
    shift = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    pull = shift @ np.vstack([inverse, [0, 0, 1]]) @ np.linalg.inv(shift)
    ours = warp_affine(photo, torch.tensor(np.linalg.inv(pull)[:2]), (80, 120), kernel="keys(-1)")[0, 0].numpy()
    np.testing.assert_allclose(ours[4:-12, 4:-20], oracle[4:-12, 4:-20], rtol=0, atol=2e-6)


@borders
def test_gradcheck(border):
    images, points = torch.rand(1, 2, 5, 6, dtype=double), torch.rand(1, 4, 4, 2, dtype=double) * 8 - 1.5
    for kernel in ("bilinear", "bicubic", "keys(-0.5)"):
        read = partial(sample, kernel=kernel, border=border, value=0.2, deterministic=True)
        assert_slope(partial(read, points=points), images)
        assert_slope(partial(read, images), points)


@pytest.mark.parametrize("kernel", mostly_slow(["bilinear", "bicubic"], 2))
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_deterministic_pipeline_repeats_its_gradient_bit_for_bit(photo, kernel, device):
    pipeline = Compose([Affine(degrees=20, scale=(0.3, 1.2)), Perspective(0.2)], kernel, deterministic=True)
    images, u = photo.float().to(device), torch.rand(8, pipeline.dims, device=device)
    grads = []
    for _ in range(3):
        leaf = images.clone().requires_grad_()
        pipeline(leaf, u).square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])
    leaf = images.clone().requires_grad_()
    Compose(pipeline.stages, kernel)(leaf, u).square().sum().backward()
    torch.testing.assert_close(grads[0], leaf.grad, rtol=1e-3, atol=1e-3)

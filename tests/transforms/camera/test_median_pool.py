"""The stage `MedianPool` against numpy's median, block by block."""

import numpy as np
import pytest
import torch

from transforms.camera import MedianPool

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

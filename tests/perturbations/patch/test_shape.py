"""A mask holds the share of each texel that the shape covers."""

import math
from pathlib import Path

import numpy as np
import pytest
import skimage.draw
import torch
from PIL import Image

from attacks.perturbations.patch.shape import shape_alpha, shape_outline

#: Concave, and turning to the right on the screen.
ARROW = [[0.1, 0.05], [0.9, 0.2], [0.6, 0.5], [0.95, 0.95], [0.2, 0.8]]
SIZE = (30, 44)


def oracle(inside, size, times=64):
    """The share of `times` x `times` points of each texel that lie inside."""
    y, x = ((np.arange(side * times) + 0.5) / times for side in size)
    hit = inside(x[None], y[:, None]).reshape(size[0], times, size[1], times)
    return torch.tensor(hit.mean((1, 3)), dtype=torch.float32)[None, None]


def fill_polygon(corners, size, times=64):
    """The same of a polygon, as scikit-image fills it."""
    points = np.array(corners) * np.array([size[1], size[0]]) * times - 0.5
    mask = skimage.draw.polygon2mask((size[0] * times, size[1] * times), points[:, ::-1])
    return torch.tensor(mask.reshape(size[0], times, size[1], times).mean((1, 3)), dtype=torch.float32)[None, None]


def save(path, array):
    Image.fromarray(array).save(path)
    return str(path)


@pytest.mark.parametrize("size", [(24, 24), (17, 40)])
def test_coverage_of_curves_is_exact_in_every_texel(size):
    height, width = size
    radius = min(size) / 2
    circle = oracle(lambda x, y: (x - width / 2) ** 2 + (y - height / 2) ** 2 <= radius**2, size)
    ellipse = oracle(lambda x, y: (2 * x / width - 1) ** 2 + (2 * y / height - 1) ** 2 <= 1, size)
    for shape, expected in (("circle", circle), ("ellipse", ellipse)):
        mask = shape_alpha(shape, size)
        assert mask.shape == (1, 1, *size) and mask.dtype == torch.float32
        assert mask.min() >= 0 and mask.max() == 1
        torch.testing.assert_close(mask, expected, rtol=0, atol=0.5 / 255)


@pytest.mark.slow
def test_a_polygon_equals_that_of_scikit_image():
    torch.testing.assert_close(shape_alpha(ARROW, SIZE), fill_polygon(ARROW, SIZE), rtol=0, atol=1 / 255)


def test_coverages_of_a_polygon_and_its_complement_sum_to_unity():
    # The line 0.3 -> 0.5 -> 0.9 divides the texture.
    line = [[0.3, 0], [0.5, 0.4], [0.9, 1]]
    left, right = [[0, 0], *line, [0, 1]], [*line, [1, 1], [1, 0]]
    total = shape_alpha(left, SIZE) + shape_alpha(right, SIZE)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-6)


def test_the_alpha_channel_of_a_picture_is_the_mask(tmp_path):
    rgba = np.random.default_rng(0).integers(0, 256, (*SIZE, 4), dtype=np.uint8)
    mask = shape_alpha(save(tmp_path / "mask.png", rgba), SIZE)
    assert torch.equal(mask[0, 0], torch.tensor(rgba[..., 3]) / 255)
    assert torch.equal(shape_alpha(Path(tmp_path / "mask.png"), SIZE), mask)


def test_without_an_alpha_channel_the_lightness_is_the_mask(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    for array in (grey, grey[..., None].repeat(3, 2)):
        mask = shape_alpha(save(tmp_path / "mask.png", array), SIZE)
        assert torch.equal(mask[0, 0], torch.tensor(grey) / 255)


def test_a_larger_picture_is_averaged_over_each_texel(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (40, 60), dtype=np.uint8)
    mask = shape_alpha(save(tmp_path / "mask.png", grey), (10, 15))
    expected = torch.tensor(grey.reshape(10, 4, 15, 4).mean((1, 3)) / 255, dtype=torch.float32)
    torch.testing.assert_close(mask[0, 0], expected, rtol=0, atol=1e-5)
    assert shape_alpha(save(tmp_path / "mask.png", grey), (79, 119)).shape == (1, 1, 79, 119)  # within 2 %, enlarged


@pytest.mark.parametrize("shape", ["rectangle", "ellipse", "circle", ARROW])
def test_the_line_encloses_the_mask(shape):
    outline, mask = shape_outline(shape, SIZE), shape_alpha(shape, SIZE)
    mean = 1.0 if mask is None else float(mask.double().mean())
    x, y = np.array(outline.corners).T
    if len(x) == 2:  # an ellipse in a box
        assert float(math.pi / 4 * (x[1] - x[0]) * (y[1] - y[0])) == pytest.approx(mean, rel=1e-4)
        assert x.sum() == pytest.approx(1) and y.sum() == pytest.approx(1)
    else:
        assert abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2 == pytest.approx(mean, rel=1e-4)


def test_a_rectangle_needs_no_mask_and_a_picture_has_no_line():
    assert shape_alpha("rectangle", SIZE) is None and shape_outline("mask.png", SIZE) is None


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("star", "must be one of rectangle, ellipse, circle, a list of corners"),
        ("missing.png", "no picture `missing.png`"),
        ([[0, 0], [1, 1]], "three or more corners"),
        ([[0, 0, 0], [1, 1, 1], [0, 1, 1]], "three or more corners"),
        (3, "three or more corners"),
        ([[0, 0], ["a", 1], [0, 1]], "three or more corners"),
        ([[0, 0], [64, 0], [0, 64]], "not in pixels"),
        ([[0, 0], [float("nan"), 0], [0, 1]], "not in pixels"),
        ([[0, 0], [0.5, 0.5], [1, 1]], "flat"),
        ([[0, 0], [1, 1], [1, 0], [0, 0.9]], "corners 0 and 2"),
        ([[0, 0], [1, 0], [1, 1], [0.5, 0], [0, 1]], "touch"),
        ([[0, 0], [1, 0], [0.5, 0], [0.5, 1]], "touch"),
        ([[0, 0], [1, 0], [1, 0], [0, 1]], "touch"),
    ],
)
def test_an_invalid_shape_is_refused(shape, message):
    with pytest.raises(ValueError, match=message) as error:
        shape_alpha(shape, SIZE)
    assert "`perturbation.shape`" in str(error.value)


def test_an_invalid_picture_of_a_mask_is_refused(tmp_path):
    corrupt = tmp_path / "broken.png"
    corrupt.write_bytes(b"no picture")
    wide = save(tmp_path / "wide.png", np.full((30, 46), 255, dtype=np.uint8))
    black = save(tmp_path / "black.png", np.zeros(SIZE, dtype=np.uint8))
    for path, message in ((corrupt, "cannot be read"), (wide, "46 x 30 pixels"), (black, "shows nothing")):
        with pytest.raises(ValueError, match=message) as error:
            shape_alpha(str(path), SIZE)
        assert "`perturbation.shape`" in str(error.value)

"""A patch lies at its place of the table in the attacked square of a photograph, within its mask."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attacks.data.images import load_image
from attacks.data.pictures import square, to_square
from attacks.perturbations.patch.patch import Patch
from tests.helpers.scenery import CORNERS, SIDE, blob, box, noise, photo, read, table
from transforms.compose import seen

double = torch.float64
MIDDLE = ("path", "x", "y", "degrees", "mm_per_pixel")


def light(picture, grey=0.02):
    """The centroid of the pixels lighter than the background, in edge coordinates."""
    weight = (picture.mean(0).to(double) - grey).clamp(min=0)
    rows, columns = (torch.arange(n, dtype=double) + 0.5 for n in weight.shape)
    return torch.stack([(weight.sum(0) * columns).sum(), (weight.sum(1) * rows).sum()]) / weight.sum()


@pytest.mark.slow
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("form", [(901, 1403), (1402, 905), (700, 700)], ids=["portrait", "landscape", "square"])
def test_a_mark_in_the_photograph_lies_at_its_mapped_point(tmp_path, form, orientation):
    width, height = form
    mark = (0.41 * width + 0.3, 0.62 * height - 0.2)
    picture = photo(tmp_path / "a.png", blob(width, height, [mark], 14), orientation)
    x, y = mark
    _, places, _ = read(table(tmp_path / "x.csv", ["a.png", x, y, x + 99, y, x + 99, y + 99, x, y + 99]), 224)
    result = light(square(load_image(picture)[0], 224))
    assert (places.quads[0, 0, 0] * 224 - result).abs().max() < 0.1


@pytest.mark.parametrize("size", [(1403, 901), (900, 1400), (300, 300)])
def test_the_map_of_points_matches_the_square_to_1e_6_pixels(size):
    height, width = size
    short = min(size)
    points = torch.rand(50, 2, dtype=double) * torch.tensor([width, height], dtype=double)
    # The longer side and the offset of the crop are whole numbers of pixels.
    long = [int(224 * side / short) for side in (width, height)]
    expected = [points[:, i] * long[i] / side - (long[i] - 224) // 2 for i, side in enumerate((width, height))]
    torch.testing.assert_close(to_square(points, size, 224) * 224, torch.stack(expected, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(to_square(points, (short, short), 224) * short, points, rtol=0, atol=1e-6)


def test_the_picture_is_the_central_square_and_quads_may_extend_beyond_it(tmp_path):
    picture = noise(tmp_path / "a.png", 0, 60, 40)
    shelf, places, notes = read(table(tmp_path / "x.csv", ["a.png", *box(5, 10, 25, 30)]))
    assert torch.equal(shelf.read([0])[0], square(load_image(picture)[0], SIDE))
    expected = torch.tensor([[-5, 10], [15, 10], [15, 30], [-5, 30]], dtype=double) / 40
    torch.testing.assert_close(places.quads[0, 0], expected)
    assert "25% of the quad is outside the central square of `a.png`" in notes[0]
    assert not read(table(tmp_path / "x.csv", ["a.png", *box(10, 0, 50, 40)]))[2]
    for quad in (box(0, 0, 9, 9), [0, 0, 9.9, 0, 9.9, 40, 0, 40]):
        with pytest.raises(ValueError, match=r"line 2: the quad lies outside the central square of `a\.png`"):
            read(table(tmp_path / "x.csv", ["a.png", *quad]))


def test_a_mirrored_quad_is_noted(tmp_path):
    noise(tmp_path / "a.png", 0)
    left, right = [4, 6, 20, 6, 20, 22, 4, 22], [20, 6, 4, 6, 4, 22, 20, 22]
    assert not read(table(tmp_path / "x.csv", ["a.png", *left]))[2]
    assert "mirrored" in read(table(tmp_path / "x.csv", ["a.png", *right]))[2][0]


def test_a_centre_and_the_print_width_define_a_quad(tmp_path):
    noise(tmp_path / "a.png", 0)
    path = table(tmp_path / "x.csv", ["a.png", 22, 17, 0, 2], ["a.png", 20, 20, 90, 2], columns=MIDDLE)
    _, places, notes = read(path, texture=(6, 12), width_mm=24)
    upright, rotated = places.quads[0] * 40
    torch.testing.assert_close(upright, torch.tensor([[16, 14], [28, 14], [28, 20], [16, 20]], dtype=double))
    # A quarter turn clockwise: the upper left corner of the texture is at the upper right.
    torch.testing.assert_close(rotated, torch.tensor([[23, 14], [23, 26], [17, 26], [17, 14]], dtype=double))
    assert not notes


def test_a_quad_that_contradicts_the_print_width_is_noted(tmp_path):
    noise(tmp_path / "a.png", 0)
    path = table(tmp_path / "x.csv", ["a.png", *box(4, 6, 24, 26), 2], columns=("path", *CORNERS, "mm_per_pixel"))
    assert not read(path, width_mm=None)[2] and not read(path, width_mm=38.5)[2]
    _, places, notes = read(path, width_mm=37)
    assert "40 mm wide at 2 mm a pixel, and perturbation.width_mm is 37" in notes[0]
    assert places.quads[0, 0, 0].tolist() == [0.1, 0.15]


def test_a_mask_on_whole_texels_covers_the_mean_of_its_pixels(tmp_path):
    noise(tmp_path / "a.png", 0)
    mask = np.random.default_rng(1).integers(0, 2, (40, 40)).astype(float)
    photo(tmp_path / "mask.png", mask)
    columns = ("path", *CORNERS, "mask")
    upright, rotated = box(4, 6, 28, 30), [28, 6, 28, 30, 4, 30, 4, 6]
    path = table(tmp_path / "x.csv", *(["a.png", *quad, "mask.png"] for quad in (upright, rotated)), columns=columns)
    _, places, _ = read(path, texture=(8, 8))
    region = torch.tensor(mask[6:30, 4:28])[None, None]
    torch.testing.assert_close(places.cover[0, 0], F.avg_pool2d(region, 3)[0, 0].float(), rtol=0, atol=1e-5)
    torch.testing.assert_close(places.cover[0, 1], F.avg_pool2d(region, 3)[0, 0].rot90(1).float(), rtol=0, atol=1e-5)


def test_a_mask_through_perspective_is_the_mean_over_each_texel(tmp_path):
    noise(tmp_path / "a.png", 0, 200, 160)
    y, x = np.mgrid[:160, :200] + 0.5
    photo(tmp_path / "mask.png", ((x - 90) ** 2 + (y - 85) ** 2 < 45**2).astype(float))
    quad = [40, 30, 160, 20, 150, 140, 50, 120]
    row = ["a.png", *quad, "mask.png"]
    _, places, _ = read(table(tmp_path / "x.csv", row, columns=("path", *CORNERS, "mask")), 160, (12, 10))
    matrix = cv_homography([(0, 0), (10, 0), (10, 12), (0, 12)], np.reshape(quad, (4, 2)))
    fine = 40
    v, u = (np.mgrid[: 12 * fine, : 10 * fine] + 0.5) / fine
    px, py, w = np.einsum("ij,jhw->ihw", matrix, np.stack([u, v, np.ones_like(u)]))
    inside = (px / w - 90) ** 2 + (py / w - 85) ** 2 < 45**2
    expected = inside.reshape(12, fine, 10, fine).mean((1, 3))
    assert 0.1 < expected.mean() < 0.9
    # The edge of the mask consists of whole pixels; a texel is ten pixels wide.
    assert np.abs(places.cover[0, 0].numpy() - expected).max() < 0.04
    assert abs(float(places.cover.mean()) - expected.mean()) < 0.002


def cv_homography(source, target):
    """The homography of four corners, from its eight equations."""
    rows, right = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    return np.append(np.linalg.solve(rows, right), 1).reshape(3, 3)


def test_a_mask_without_a_quad_places_the_texture_on_its_light_part(tmp_path):
    noise(tmp_path / "a.png", 0)
    mask = np.zeros((40, 40))
    mask[8:24, 12:28] = 1
    mask[8:16, 12:20] = 0
    photo(tmp_path / "mask.png", mask)
    shelf, places, _ = read(
        table(tmp_path / "x.csv", ["a.png", "mask.png"], columns=("path", "mask")), texture=(16, 16)
    )
    assert (places.quads[0, 0] * 40).tolist() == [[12, 8], [28, 8], [28, 24], [12, 24]]
    texture, image = torch.rand(1, 3, 16, 16), shelf.read([0])
    expected = image.clone()
    expected[..., 8:24, 12:28] = torch.where(
        torch.tensor(mask[8:24, 12:28]) > 0, texture.double(), expected[..., 8:24, 12:28]
    )
    result = seen(Patch((16, 16), places).scene(image.double(), texture.double()))
    torch.testing.assert_close(result, expected.double(), rtol=0, atol=1e-6)

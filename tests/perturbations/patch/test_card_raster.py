"""The card in pixels: against the library's resizer, torch's sampler, areas, and OpenCV's detector."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.perturbations.patch.card import COLOURS, MODULES, Box, Fill, Tag, black, card, modules
from attacks.perturbations.patch.card_raster import RasterGrid, card_picture, fill_boxes, lay, patch_picture, surround
from tests.helpers.prints import MM, detect_tags, edges
from transforms import resize
from transforms.doors import unchecked


def texture(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.float32)


def tensor(values):
    return torch.from_numpy(values).double().permute(2, 0, 1)[None]


@pytest.mark.parametrize(
    ("size", "out"), [((7, 9), (61, 40)), ((64, 48), (20, 48)), ((5, 5), (5, 5)), ((1, 1), (4, 3))]
)
def test_a_texture_that_fills_the_picture_equals_the_resizer(size, out):
    source = texture(size)
    target = unchecked(resize)(tensor(source), out, "torch_bilinear_aa")[0].permute(1, 2, 0).numpy()
    assert np.abs(patch_picture(source, out) - target).max() <= 0.501


@settings(deadline=None, max_examples=30)
@given(left=st.floats(0, 3), top=st.floats(0, 3), step=st.floats(0.05, 0.9))
def test_elsewhere_every_pixel_is_sampled_at_its_centre(left, top, step):
    source = texture((6, 8))
    picture = np.full((140, 180, 3), 255, np.uint8)
    lay(picture, RasterGrid(1 / step, 1 / step, left, top), source, Box(0, 0, 8, 6))
    x, y = ((torch.arange(n) + 0.5 - start) * step for n, start in ((180, left), (140, top)))
    grid = torch.stack(torch.meshgrid(y / 6, x / 8, indexing="ij")[::-1], dim=-1).double() * 2 - 1
    target = F.grid_sample(tensor(source), grid[None], padding_mode="border", align_corners=False)[0].permute(1, 2, 0)
    inside = torch.outer(*((v > step) & (v < side - step) for v, side in ((y, 6), (x, 8)))).numpy()
    outside = torch.outer(*((v > -step) & (v < side + step) for v, side in ((y, 6), (x, 8)))).logical_not().numpy()
    assert np.abs(picture - target.numpy())[inside].max() <= 0.501
    assert (picture[outside] == 255).all()


@settings(deadline=None, max_examples=50)
@given(
    x=st.floats(1, 5), y=st.floats(1, 5), width=st.floats(0.02, 6), height=st.floats(0.02, 6), dense=st.floats(1, 9)
)
def test_the_ink_of_a_box_is_its_area(x, y, width, height, dense):
    picture = np.full((110, 110, 3), 255, np.uint8)
    fill_boxes(picture, RasterGrid(dense, dense), [Fill((Box(x, y, width, height),))])
    ink = (255.0 - picture[..., 0]) / 255
    rim = 2 * (width + height) * dense + 8  # pixels whose level was rounded
    assert abs(ink.sum() - width * height * dense**2) <= rim / 510


def test_touching_boxes_leave_no_seam():
    full, halves = (np.full((20, 20, 3), 255, np.uint8) for _ in range(2))
    fill_boxes(full, RasterGrid(1, 1), [Fill((Box(2.3, 3.1, 9, 12),), (10, 20, 30))])
    fill_boxes(halves, RasterGrid(1, 1), [Fill((Box(2.3, 3.1, 4.4, 12), Box(6.7, 3.1, 4.6, 12)), (10, 20, 30))])
    np.testing.assert_array_equal(halves, full)


def test_a_tag_is_one_black_frame_and_its_code():
    output = modules(17)
    assert output.shape == (MODULES, MODULES) and output.dtype == bool
    assert output[[0, -1]].all() and output[:, [0, -1]].all() and not output.all()
    boxes = black(Tag(17, Box(3, 4, 16, 16)))
    assert sum(box.width * box.height for box in boxes) == pytest.approx(output.sum() * 4)


@pytest.mark.parametrize("dpi", [150, 300])
def test_opencv_finds_the_fiducials_of_the_layout(dpi):
    layout = card(41.3, 30.7, "vp-0000000b  eot")
    corners = detect_tags(card_picture(layout, texture((30, 40)), dpi))
    assert sorted(corners) == sorted(tag.number for tag in layout.tags)
    for tag in layout.tags:  # OpenCV counts from the centre of the first pixel, and refines to about half a pixel
        off = corners[tag.number] + 0.5 - np.array(tag.box.corners) * dpi / MM
        assert np.abs(off).max() < 1.0


@pytest.mark.parametrize(("size", "shape"), [((100, 100), (32, 32)), ((80, 20), (16, 64)), ((30, 120), (64, 16))])
def test_edges_of_a_card_and_colours_of_its_swatches_are_exact(size, shape):
    layout = card(*size)
    picture = card_picture(layout, np.zeros((*shape, 3), np.float32), 300)
    for box in (layout.patch, *(tag.box for tag in layout.tags)):
        assert np.abs(edges(picture, vars(box), 300)).max() < 0.001
    for swatch in layout.chart:
        column, row = np.mean(swatch.box.corners, 0) * 300 / MM
        assert tuple(picture[int(row), int(column)]) == swatch.colour
    assert {swatch.colour for swatch in layout.chart} == set(COLOURS)
    assert tuple(picture[picture.shape[0] // 2, picture.shape[1] // 2]) == (0, 0, 0), "black is no hole"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shape"), [((100, 100), (64, 64)), ((90, 30), (20, 60)), ((12, 36), (150, 50))])
def test_a_surround_is_the_card_with_whole_pixels_for_texels(size, shape):
    layout = card(*size, "vp-00000003  eot")
    picture, top, left, k = surround(layout, shape)
    dense = k * shape[1] / size[0]
    assert (picture[top : top + k * shape[0], left : left + k * shape[1]] == 255).all()
    assert dense * layout.tags[0].box.width >= 4 * MODULES
    for tag in layout.tags:
        x, y = tag.box.x - layout.patch.x + left / dense, tag.box.y - layout.patch.y + top / dense
        placement = {"x": x, "y": y, "width": tag.box.width, "height": tag.box.height}
        assert np.abs(edges(picture, placement, dense * MM)).max() < 0.01
    rows, columns = (side * dense for side in (layout.height, layout.width))
    assert 0 <= picture.shape[0] - rows < 2 and 0 <= picture.shape[1] - columns < 2
    assert (picture[[0, -1]] == 255).all() and (picture[:, [0, -1]] == 255).all()
    composite = picture.copy()
    composite[top : top + k * shape[0], left : left + k * shape[1]] = texture(shape).repeat(k, 0).repeat(k, 1)
    assert set(detect_tags(composite)) >= {tag.number for tag in layout.tags}


def test_a_card_too_large_for_other_software_is_refused():
    with pytest.raises(ValueError, match=r"`dpi`.*megapixels.*lower it, or `width_mm` to about 304"):
        card_picture(card(400, 400), texture((4, 4)), 600)

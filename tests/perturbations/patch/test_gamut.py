"""Laws of every gamut that restricts a texture, and the boundary of the printer's gamut."""

import pytest
import torch

from attacks.perturbations.patch.colour_profiles import ColourBox, Printable, gamut
from attacks.perturbations.patch.inks import generic
from attacks.perturbations.patch.patch import Patch
from transforms.colour.lut import apply_lut, nodes

double = torch.float64
LEVEL = 1 / 255
#: A printer of dull colours, affine: what it shows is a parallelepiped.
MATRIX = torch.tensor([[0.6, 0.15, 0.05], [0.05, 0.5, 0.1], [0.1, 0.05, 0.55]], dtype=double)
OFFSET = torch.tensor([0.08, 0.12, 0.15], dtype=double)
DULL = (nodes(2) @ MATRIX.T + OFFSET).T.reshape(3, 2, 2, 2)
MAPS = {"generic": generic().double(), "dull": DULL}


@pytest.fixture(scope="module", params=["box", *MAPS])
def gamut_and_map(request):
    """A gamut, and the colour map that it belongs to."""
    if request.param == "box":
        return ColourBox(0.1, 0.9), (nodes(2) * 0.8 + 0.1).T.reshape(3, 2, 2, 2)
    return Printable(MAPS[request.param]), MAPS[request.param]


def texture(dtype=double):
    """Any colours, a good part of them on the faces, edges and corners of the cube."""
    colours = (torch.rand(2, 3, 40, 50, dtype=double) * 1.4 - 0.2).clamp(0, 1)
    return colours.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_projection_is_idempotent(gamut_and_map, dtype):
    projection = gamut_and_map[0].project(texture(dtype))
    assert projection.dtype == dtype and projection.min() >= 0 and projection.max() <= 1
    torch.testing.assert_close(gamut_and_map[0].project(projection), projection, rtol=0, atol=1e-3 * LEVEL)


def test_printable_colours_stay_unchanged(gamut_and_map):
    colours = apply_lut(texture(), gamut_and_map[1])  # its boundary too
    difference = (gamut_and_map[0].project(colours) - colours).abs()
    assert difference.max() <= LEVEL
    inner = apply_lut(0.1 + 0.8 * texture(), gamut_and_map[1])
    assert torch.equal(gamut_and_map[0].project(inner), inner)


def test_the_boundary_of_a_dull_printer_is_exact():
    # The exact answer for a parallelepiped: the requested colour, in the printer's own coordinates, meets the cube.
    source = texture()
    colours, result = (x.permute(0, 2, 3, 1).reshape(-1, 3) for x in (source, Printable(DULL).project(source)))
    requested = torch.linalg.solve(MATRIX, (colours - OFFSET).T).T - 0.5
    share = (0.5 / requested.abs().amax(1, keepdim=True)).clamp(max=1)
    middle = OFFSET + MATRIX.sum(1) / 2
    torch.testing.assert_close(result, middle + share * (colours - middle), rtol=0, atol=2 * LEVEL)
    assert (share < 0.9).any() and (share == 1).any()


def test_gamuts_are_selected_in_the_configuration():
    assert gamut(None) is None and gamut("ideal") is None
    assert gamut([0.1, 0.9]) == ColourBox(0.1, 0.9)
    assert torch.equal(gamut("generic").lut, generic())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ([0.9, 0.1], r"`perturbation\.gamut` must be \[low, high\] with"),
        ([0, 2], r"`perturbation\.gamut` must be \[low, high\] with"),
        ([0.1], r"`perturbation\.gamut` must be \[low, high\], generic, or a file"),
        (["a", "b"], r"`perturbation\.gamut` must be \[low, high\], generic"),
        ("x.png", r"`perturbation\.gamut` must be ideal, generic, or a file"),
    ],
)
def test_settings_out_of_range_are_named(setting, message):
    with pytest.raises(ValueError, match=message):
        gamut(setting)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [[0.6, 0.8], "generic"])
@pytest.mark.parametrize("first", ["grey", "noise", "white"])
def test_no_texture_of_a_patch_leaves_its_gamut(setting, first):
    colours, images = gamut(setting), torch.rand(2, 3, 16, 16)
    first = torch.ones(3, 6, 8) if first == "white" else first
    patch = Patch((6, 8), start_from=first, gamut=colours)
    generator, wild = torch.Generator().manual_seed(0), torch.rand(1, 3, 6, 8) * 3 - 1
    exact = patch.start(images, generator), patch.noise(images, generator), patch.move(wild, 0.1 * wild, images)
    for texture in (*exact, patch.project(wild, images)):
        torch.testing.assert_close(texture, colours.project(texture), rtol=0, atol=1e-6)
    rounded = patch.quantise(wild, images)
    torch.testing.assert_close(rounded, colours.project(rounded), rtol=0, atol=3 * LEVEL)

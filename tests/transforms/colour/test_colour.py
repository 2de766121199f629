"""Stages of colour and light against torchvision, colorsys, SciPy, scikit-image and arithmetic."""

import colorsys
import itertools
import math

import numpy as np
import pytest
import skimage.color
import torch
from scipy.interpolate import BSpline
from torch.autograd import gradcheck
from torchvision.transforms import functional as tv

from tests.transforms.test_laws import colours
from transforms import Brightness, Contrast, colour
from transforms.colour.lut import ColourMap, apply_lut, nodes, powers, terms
from transforms.colour.photometric import GAMMA_TOE
from transforms.colour.spaces import rotate_hue, to_linear, to_srgb

double = torch.float64


def fixed(stage):
    """A point of the unit cube for a stage whose ranges are single values."""
    return torch.rand(1, stage.dims, dtype=double)


@pytest.mark.parametrize("factor", [0.0, 0.2, 0.45, 1.0, 2.2, 5.0])
@pytest.mark.parametrize(
    ("kind", "theirs"),
    [(colour.Gain, tv.adjust_brightness), (colour.Saturation, tv.adjust_saturation), (colour.Gamma, tv.adjust_gamma)],
    ids=["gain", "saturation", "gamma"],
)
def test_equals_torchvision_on_8_bit_values(photo, kind, theirs, factor):
    assert photo.min() < 2 / 255  # so that the toe of gamma is tested
    factor = max(factor, 0.05) if kind is colour.Gamma else factor
    stage = kind((factor, factor))
    torch.testing.assert_close(stage(photo, fixed(stage)), theirs(photo, factor), rtol=0, atol=1e-12)


def test_brightness_adds_and_contrast_stretches_about_mid_grey(photo):
    u = torch.rand(1, 1)
    torch.testing.assert_close(Brightness((0.3, 0.3))(photo, u), (photo + 0.3).clamp(max=1))
    torch.testing.assert_close(Contrast((1.8, 1.8))(photo, u), (1.8 * photo - 0.4).clamp(0, 1))


def test_gamma_is_a_chord_below_its_toe():
    x = torch.linspace(0, GAMMA_TOE, 9, dtype=double).reshape(1, 1, 1, 9).requires_grad_()
    for gamma in (0.3, 3.0):
        stage = colour.Gamma((gamma, gamma))
        view = stage(x, fixed(stage))
        torch.testing.assert_close(view, x / GAMMA_TOE * GAMMA_TOE**gamma)
        (slope,) = torch.autograd.grad(view[..., :-1].sum(), x)
        torch.testing.assert_close(slope[..., :-1], torch.full((1, 1, 1, 8), GAMMA_TOE ** (gamma - 1), dtype=double))


@pytest.mark.parametrize("degrees", [-180, -133, -60, 0, 17, 60, 120, 179.5])
def test_hue_equals_torchvision_and_colorsys(photo, degrees):
    stage = colour.Hue((degrees, degrees))
    for images in (photo, colours()):
        view = stage(images, fixed(stage))
        # torchvision always computes in float32.
        torch.testing.assert_close(view, tv.adjust_hue(images.float(), degrees / 360).double(), rtol=0, atol=2e-6)
        for source, result in zip(images[0].flatten(1).T[::7], view[0].flatten(1).T[::7], strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*source.tolist())
            oracle = colorsys.hsv_to_rgb((hue + degrees / 360) % 1, saturation, value)
            np.testing.assert_allclose(result.numpy(), oracle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("degrees", [-120.0, 120.0])
def test_hue_of_a_third_of_a_turn_permutes_channels_and_their_gradients(degrees):
    images, v = colours().requires_grad_(), torch.randn(1, 3, 27, 27, dtype=double)
    view = rotate_hue(images, torch.tensor([degrees], dtype=double))
    oracle = images.roll(1 if degrees > 0 else -1, dims=1)
    torch.testing.assert_close(view, oracle, rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(view, images, v)
    torch.testing.assert_close(slope, v.roll(-1 if degrees > 0 else 1, dims=1), rtol=0, atol=1e-12)


def test_gradient_of_hue_at_grey_is_the_mean_of_the_gradients_nearby():
    """Hue rotation has no derivative at grey; its gradient there is defined as the mean of those nearby."""
    degrees, step = 40.0, 1e-6
    turn = torch.linspace(0, 2 * math.pi, 361, dtype=double)[:-1]
    axes = torch.tensor([[1, -1, 0], [0.5, 0.5, -1]], dtype=double)
    axes = axes / axes.norm(dim=1, keepdim=True)
    ring = (0.5 + step * torch.stack([turn.cos(), turn.sin()], -1) @ axes).reshape(-1, 3, 1, 1)

    def jacobian(images):
        angle = torch.full((len(images),), degrees, dtype=double)
        images = images.clone().requires_grad_()
        rows = [torch.autograd.grad(rotate_hue(images, angle)[:, i].sum(), images)[0] for i in range(3)]
        return torch.stack(rows, 1)[..., 0, 0].mean(0)

    grey = jacobian(torch.full((1, 3, 1, 1), 0.5, dtype=double))
    torch.testing.assert_close(grey, jacobian(ring), rtol=0, atol=0.05)
    torch.testing.assert_close(grey @ grey.T, torch.eye(3, dtype=double), rtol=0, atol=1e-12)


def test_channel_gain_multiplies_and_adds_channel_by_channel(photo):
    stage = colour.ChannelGain((0.7, 1.3), (-0.15, 0.1))
    u = torch.rand(1, 6, dtype=double)
    gain, offset = 0.7 + 0.6 * u[0, :3].numpy(), -0.15 + 0.25 * u[0, 3:].numpy()
    oracle = np.clip(photo[0].permute(1, 2, 0).numpy() * gain + offset, 0, 1)
    np.testing.assert_allclose(stage(photo, u)[0].permute(1, 2, 0).numpy(), oracle, rtol=0, atol=1e-12)
    grey = photo[:, :1]
    expected = (grey * gain.mean() + offset.mean()).clamp(0, 1)
    torch.testing.assert_close(stage(grey, u), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(0.4, 0.4), (1.0, 1.0)])
def test_cutout_covers_its_area_inside_the_picture(size):
    images = torch.rand(64, 1, 30, 41, dtype=double)
    stage = colour.Cutout(size, value=0.25)
    cover = (stage(images, torch.rand(64, 3)) - images) / (0.25 - images)
    side = size[0] * 30
    torch.testing.assert_close(cover.sum((1, 2, 3)), torch.full((64,), side**2, dtype=double), rtol=1e-5, atol=0)
    assert cover.min() >= -1e-5 and cover.max() <= 1 + 1e-5
    assert ((cover > 1e-6).any(2).sum(-1) <= side + 2).all() and ((cover > 1e-6).any(3).sum(-1) <= side + 2).all()


@pytest.mark.parametrize(
    "stage",
    [colour.Saturation((0, 2)), colour.Hue(90), colour.ChannelGain(), colour.WhiteBalance(1, 1)],
    ids=lambda stage: type(stage).__name__,
)
def test_colour_stage_accepts_one_or_three_channels(stage, photo):
    grey, u = photo[:, 1:2], torch.rand(1, stage.dims)
    assert torch.equal(stage(grey, u), grey)  # grey has no colour to change
    for channels in (2, 4):
        with pytest.raises(ValueError, match="1 channel"):
            stage(torch.rand(1, channels, 4, 4), u)


def decode(values):
    """IEC 61966-2-1 as it is printed, in NumPy."""
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def encode(light):
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * np.maximum(light, 1e-9) ** (1 / 2.4) - 0.055)


def lit(photo, gain):
    """The photograph with its light multiplied by `gain`, in NumPy."""
    return np.clip(encode(decode(photo.numpy()) * gain), 0, 1)


def gains(stage, u, size=(80, 120), channels=3):
    """The field by which a stage multiplies light, measured on a grey picture: (C,H,W)."""
    grey = torch.full((1, channels, *size), 0.3, dtype=double)
    return decode(stage(grey, u).numpy()[0]) / decode(0.3)


def places(size=(80, 120)):
    """Offsets of the pixels from the picture's centre, right and down, in pixels."""
    y, x = np.indices(size)
    return x - (size[1] - 1) / 2, y - (size[0] - 1) / 2


def test_linear_light_equals_scikit_image(photo):
    for channel in photo[0]:
        grey = np.repeat(channel.numpy()[..., None], 3, axis=-1)
        oracle = skimage.color.rgb2xyz(grey)[..., 1] / skimage.color.rgb2xyz(np.ones(3))[1]
        np.testing.assert_allclose(to_linear(channel).numpy(), oracle, rtol=0, atol=1e-12)


def test_srgb_equals_the_standard_and_its_inverse_undoes_it():
    near = 0.0404482 + torch.linspace(-1e-6, 1e-6, 20_001, dtype=double)  # the two pieces meet here
    values = torch.cat([torch.linspace(0, 1, 100_001, dtype=double), near]).sort().values
    light = to_linear(values)
    torch.testing.assert_close(to_srgb(light), values, rtol=0, atol=1e-12)
    torch.testing.assert_close(to_linear(to_srgb(light)), light, rtol=0, atol=1e-12)
    assert (light.diff() >= 0).all()
    np.testing.assert_allclose(light.numpy(), decode(values.numpy()), rtol=0, atol=1e-8)
    np.testing.assert_allclose(to_srgb(values).numpy(), encode(values.numpy()), rtol=0, atol=1e-7)


def test_white_balance_leaves_green_unchanged(photo):
    view = colour.WhiteBalance((0.5, 0.5), (-0.8, -0.8))(photo, torch.rand(1, 2, dtype=double))
    gain = 2 ** np.array([0.5, 0, -0.8])[:, None, None]
    np.testing.assert_allclose(view.numpy(), lit(photo, gain), rtol=0, atol=1e-7)
    torch.testing.assert_close(view[:, 1], photo[:, 1], rtol=0, atol=1e-12)


def along(angle):
    """The offset of each pixel in a direction, in shares of the shorter side."""
    x, y = places()
    return (x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle))) / 80


def cos4(loss):
    focal = np.hypot(60, 40) / np.tan(np.arccos((1 - loss) ** 0.25))
    return np.cos(np.arctan(np.hypot(*places()) / focal)) ** 4


#: Stage, its arguments, and its gain of light in NumPy; 0.2 is the softness from 10 % to 90 % of a shadow.
LIGHT = [
    *((colour.Exposure, [stops], 2**stops) for stops in (-3.0, -0.7, 0.4, 2.0)),
    *((colour.Vignette, [loss], cos4(loss)) for loss in (0.2, 0.9)),
    (colour.Shadow, [0.7, 35.0, -0.1, 0.2], 1 - 0.7 / (1 + 9 ** (-2 * (along(35.0) + 0.1) / 0.2))),
    (
        colour.Moire,
        [0.4, 0.13, -25.0, 0.3],
        [1 + 0.4 * np.cos(2 * np.pi * (along(-25.0) / 0.13 + 0.3 - c / 3)) for c in range(3)],
    ),
]


@pytest.mark.parametrize(("kind", "values", "gain"), LIGHT)
def test_light_is_multiplied_by_the_formula(photo, kind, values, gain):
    stage = kind(*((value, value) for value in values))
    gain, u = np.array(gain), torch.rand(1, stage.dims, dtype=double)
    np.testing.assert_allclose(stage(photo, u).numpy(), lit(photo, gain), rtol=0, atol=1e-7)
    first = gain[0] if gain.ndim == 3 else gain  # of one channel
    np.testing.assert_allclose(stage(photo[:, :1], u).numpy(), lit(photo[:, :1], first), rtol=0, atol=1e-7)


def test_bands_of_a_refresh_are_the_fringes_of_one_channel(photo):
    stage = colour.Moire((0.4, 0.4), (0.13, 0.13), (-25.0, -25.0), (0.3, 0.3), shift=0)
    gain = 1 + 0.4 * np.cos(2 * np.pi * (along(-25.0) / 0.13 + 0.3))
    np.testing.assert_allclose(
        stage(photo, torch.rand(1, 4, dtype=double)).numpy(), lit(photo, gain), rtol=0, atol=1e-7
    )
    with pytest.raises(ValueError, match="shift"):
        colour.Moire(shift=1.5)


def test_a_reflection_is_light_that_is_added(photo):
    """The window's edge is a logistic curve whose 10 % and 90 % lie a tenth of its side apart."""
    stage = colour.Reflection((0.05, 0.05), (0.2, 0.2), (0.4, 0.4), (0.1, 0.1), (-0.2, -0.2))
    edge = [(0.2 - np.abs(along(angle) - at)) / 0.4 for angle, at in ((0.0, 0.1), (90.0, -0.2))]
    window = np.prod([1 / (1 + 81 ** (-10 * share)) for share in edge], axis=0)
    ours = to_linear(stage(photo, torch.rand(1, 5, dtype=double))).numpy()
    theirs = to_linear(photo).numpy() + 0.05 + 0.2 * window
    np.testing.assert_allclose(ours, np.minimum(theirs, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", [2, 3, 5])
def test_shading_equals_the_scipy_spline_of_the_controls(photo, grid):
    stage, u = colour.Shading((-1, 0.5), grid), torch.rand(1, grid**2, dtype=double)
    controls = -1 + 1.5 * u.numpy().reshape(grid, grid)
    spline = BSpline(np.arange(-3, grid + 3), np.eye(grid + 2), 3)  # one control more beyond each end
    down, columns = (spline((np.arange(n) + 0.5) / n * (grid - 1)) for n in (80, 120))
    stops = down @ np.pad(controls, 1, mode="edge") @ columns.T
    np.testing.assert_allclose(stage(photo, u).numpy(), lit(photo, 2**stops), rtol=0, atol=1e-7)
    assert np.log2(gains(stage, u)).min() >= -1 and np.log2(gains(stage, u)).max() <= 0.5


@pytest.mark.parametrize(
    "stage",
    [colour.Vignette((0.1, 0.9)), colour.Shading(1), colour.Shadow((0.5, 1)), colour.Moire((0.5, 1))],
    ids=str,
)
def test_pattern_does_not_depend_on_the_picture_size(stage):
    u = torch.rand(1, stage.dims, dtype=double)
    small, large = gains(stage, u, (30, 40)), gains(stage, u, (90, 120))
    np.testing.assert_allclose(small, large[:, 1::3, 1::3], rtol=0, atol=1e-6)  # centres of 3 x 3 pixels


MATRIX = torch.tensor([[0.5, 0.3, -0.1], [0.05, 0.5, 0.2], [0.2, 0.1, 0.55]], dtype=double)
OFFSET = torch.tensor([0.15, 0.1, 0.05], dtype=double)


def table(n=4, seed=0):
    return torch.rand(3, n, n, n, generator=torch.Generator().manual_seed(seed), dtype=double)


def between_nodes(shape, n=4, seed=1):
    """Colours at least a tenth of a cell away from every kink."""
    generator = torch.Generator().manual_seed(seed)
    cell = torch.randint(n - 1, shape, generator=generator)
    return (cell + 0.1 + 0.8 * torch.rand(shape, generator=generator, dtype=double)) / (n - 1)


def trilinear(colours, lut):
    """(K,3) through (3,n,n,n), corner by corner, in NumPy."""
    top_node = lut.shape[-1] - 1
    low = np.minimum(np.floor(colours * top_node), top_node - 1).astype(int)
    part, total = colours * top_node - low, 0
    for corner in itertools.product((0, 1), repeat=3):
        weight = np.prod(np.where(corner, part, 1 - part), axis=1)
        r, g, b = (low + corner).T
        total = total + weight * lut[:, r, g, b]
    return total.T


def flat(images):
    return images.permute(0, 2, 3, 1).reshape(-1, 3).numpy()


@pytest.mark.parametrize("n", [2, 5, 33])
def test_a_table_is_read_trilinearly(photo, n):
    images = torch.cat([photo, photo.round()])  # all corners of the cube too
    view = apply_lut(images, table(n))
    np.testing.assert_allclose(flat(view), trilinear(flat(images), table(n).numpy()), rtol=0, atol=1e-12)


def test_gradcheck_in_the_picture_and_in_the_table():
    images, lut = between_nodes((2, 3, 3, 4)).requires_grad_(), (0.1 + 0.8 * table()).requires_grad_()
    assert gradcheck(apply_lut, (images, lut))
    assert gradcheck(apply_lut, (torch.rand(1, 3, 2, 2, dtype=double), lut))


def test_black_and_white_keep_the_gradient_of_their_cell():
    # clamp and grid_sample have no gradient there, and a texture has many such pixels.
    lut = (nodes(3) @ MATRIX.T + OFFSET).T.reshape(3, 3, 3, 3)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=double)] * 3).T[None, :, None]
    expected = MATRIX.sum(0)[:, None].expand(3, 8)
    for dtype in (torch.float64, torch.float32):
        images = corners.to(dtype, copy=True).requires_grad_()
        apply_lut(images, lut).sum().backward()
        torch.testing.assert_close(images.grad[0, :, 0], expected.to(dtype), rtol=1e-4, atol=0)


def test_output_outside_the_cube_is_clipped_between_nodes_as_well():
    lut = (nodes(2) * 2 - 0.5).T.reshape(3, 2, 2, 2)
    grey = torch.linspace(0, 1, 21, dtype=double).expand(1, 3, 1, 21)
    torch.testing.assert_close(apply_lut(grey, lut), (grey * 2 - 0.5).clamp(0, 1), rtol=0, atol=1e-12)


def test_monomials_are_in_the_documented_order():
    r, g, b = colours = torch.rand(3, 7, dtype=double)
    unit = torch.ones_like(r)
    expected = [unit, r, g, b, r * r, r * g, r * b, g * g, g * b, b * b]
    expected += [r**3, r * r * g, r * r * b, r * g * g, r * g * b, r * b * b, g**3, g * g * b, g * b * b, b**3]
    for degree, count in ((1, 4), (2, 10), (3, 20)):
        assert len(powers(degree)) == count
        torch.testing.assert_close(terms(colours.T, degree), torch.stack(expected[:count], 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: apply_lut(torch.zeros(1, 1, 4, 4), table()), r"`images` must be \(N,3,H,W\)"),
        (lambda: apply_lut(torch.zeros(1, 3, 4, 4), table()[:2]), r"`lut` must be \(3,n,n,n\)"),
        (lambda: ColourMap(torch.zeros(3, 4, 4, 5)), r"`lut` must be \(3,n,n,n\)"),
        (lambda: ColourMap(torch.zeros(3, 1, 1, 1)), r"n of at least 2"),
        (lambda: ColourMap(torch.zeros(3, 2, 2, 2, dtype=torch.uint8)), "`lut` must hold floating-point"),
        (lambda: ColourMap(torch.full((3, 2, 2, 2), torch.nan)), "`lut` must be finite"),
        (lambda: powers(4), "`degree` must be 1, 2 or 3"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Stages in linear light, against scikit-image, SciPy and the formulas in NumPy, on a photograph."""

import numpy as np
import pytest
import skimage.color
import torch
from scipy.interpolate import BSpline

from transforms.colour import Exposure, Moire, Shading, Shadow, Vignette, WhiteBalance
from transforms.colour.spaces import to_linear, to_srgb

double = torch.float64


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


@pytest.mark.parametrize("stops", [-3.0, -0.7, 0.4, 2.0])
def test_exposure_doubles_light_per_stop(photo, stops):
    view = Exposure((stops, stops))(photo, torch.rand(1, 1, dtype=double))
    np.testing.assert_allclose(view.numpy(), lit(photo, 2**stops), rtol=0, atol=1e-7)


def test_white_balance_leaves_green_and_one_channel_pictures_unchanged(photo):
    view = WhiteBalance((0.5, 0.5), (-0.8, -0.8))(photo, torch.rand(1, 2, dtype=double))
    gain = 2 ** np.array([0.5, 0, -0.8])[:, None, None]
    np.testing.assert_allclose(view.numpy(), lit(photo, gain), rtol=0, atol=1e-7)
    torch.testing.assert_close(view[:, 1], photo[:, 1], rtol=0, atol=1e-12)
    assert torch.equal(WhiteBalance(1, 1)(photo[:, :1], torch.rand(1, 2)), photo[:, :1])
    with pytest.raises(ValueError, match="1 channel"):
        WhiteBalance()(photo[:, :2], torch.rand(1, 2))


@pytest.mark.parametrize("loss", [0.2, 0.9])
def test_vignette_is_cos4_of_the_ray(photo, loss):
    view = Vignette((loss, loss))(photo, torch.rand(1, 1, dtype=double))
    x, y = places()
    corner = np.hypot(60, 40)
    focal = corner / np.tan(np.arccos((1 - loss) ** 0.25))
    np.testing.assert_allclose(view.numpy(), lit(photo, np.cos(np.arctan(np.hypot(x, y) / focal)) ** 4), atol=1e-7)


@pytest.mark.parametrize("grid", [2, 3, 5])
def test_shading_equals_the_scipy_spline_of_the_controls(photo, grid):
    stage, u = Shading((-1, 0.5), grid), torch.rand(1, grid**2, dtype=double)
    controls = -1 + 1.5 * u.numpy().reshape(grid, grid)
    spline = BSpline(np.arange(-3, grid + 3), np.eye(grid + 2), 3)  # one control more beyond each end
    down, columns = (spline((np.arange(n) + 0.5) / n * (grid - 1)) for n in (80, 120))
    stops = down @ np.pad(controls, 1, mode="edge") @ columns.T
    np.testing.assert_allclose(stage(photo, u).numpy(), lit(photo, 2**stops), rtol=0, atol=1e-7)
    assert np.log2(gains(stage, u)).min() >= -1 and np.log2(gains(stage, u)).max() <= 0.5


def test_shadow_on_a_photograph(photo):
    darkness, angle, position, softness = 0.7, 35.0, -0.1, 0.2
    stage = Shadow((darkness,) * 2, (angle,) * 2, (position,) * 2, (softness,) * 2)
    x, y = places()
    depth = (x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle))) / 80 - position
    # The logistic curve is at 10 % and 90 % half a width before and behind the middle.
    shade = 1 / (1 + 9 ** (-2 * depth / softness))
    view = stage(photo, torch.rand(1, 4, dtype=double))
    np.testing.assert_allclose(view.numpy(), lit(photo, 1 - darkness * shade), rtol=0, atol=1e-7)


@pytest.mark.parametrize("channels", [1, 3])
def test_moire_on_a_photograph(photo, channels):
    strength, period, angle, phase = 0.4, 0.13, -25.0, 0.3
    stage = Moire((strength,) * 2, (period,) * 2, (angle,) * 2, (phase,) * 2)
    x, y = places()
    phase_at = (x * np.cos(np.radians(angle)) + y * np.sin(np.radians(angle))) / (80 * period)
    wave = np.stack([np.cos(2 * np.pi * (phase_at + phase - c / 3)) for c in range(channels)])
    view = stage(photo[:, :channels], torch.rand(1, 4, dtype=double))
    np.testing.assert_allclose(view.numpy(), lit(photo[:, :channels], 1 + strength * wave), rtol=0, atol=1e-7)


@pytest.mark.parametrize("stage", [Vignette((0.1, 0.9)), Shading(1), Shadow((0.5, 1)), Moire((0.5, 1))], ids=str)
def test_pattern_does_not_depend_on_the_picture_size(stage):
    u = torch.rand(1, stage.dims, dtype=double)
    small, large = gains(stage, u, (30, 40)), gains(stage, u, (90, 120))
    np.testing.assert_allclose(small, large[:, 1::3, 1::3], rtol=0, atol=1e-6)  # centres of 3 x 3 pixels

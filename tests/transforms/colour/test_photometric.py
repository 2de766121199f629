"""Stages in display values, against torchvision, colorsys and arithmetic, with gradients where colour has kinks."""

import colorsys
import math

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as tv

from tests.transforms.test_laws import colours
from transforms import Brightness, Contrast
from transforms.colour import ChannelGain, Cutout, Gain, Gamma, Hue, Saturation
from transforms.colour.photometric import GAMMA_TOE
from transforms.colour.spaces import rotate_hue

double = torch.float64


def fixed(stage):
    """A point of the unit cube for a stage whose ranges are single values."""
    return torch.rand(1, stage.dims, dtype=double)


@pytest.mark.parametrize("factor", [0.0, 0.2, 0.45, 1.0, 2.2, 5.0])
@pytest.mark.parametrize(
    ("kind", "theirs"),
    [(Gain, tv.adjust_brightness), (Saturation, tv.adjust_saturation), (Gamma, tv.adjust_gamma)],
    ids=["gain", "saturation", "gamma"],
)
def test_equals_torchvision_on_8_bit_values(photo, kind, theirs, factor):
    assert photo.min() < 2 / 255  # so that the toe of gamma is tested
    factor = max(factor, 0.05) if kind is Gamma else factor
    stage = kind((factor, factor))
    torch.testing.assert_close(stage(photo, fixed(stage)), theirs(photo, factor), rtol=0, atol=1e-12)


def test_brightness_adds_and_contrast_stretches_about_mid_grey(photo):
    u = torch.rand(1, 1)
    torch.testing.assert_close(Brightness((0.3, 0.3))(photo, u), (photo + 0.3).clamp(max=1))
    torch.testing.assert_close(Contrast((1.8, 1.8))(photo, u), (1.8 * photo - 0.4).clamp(0, 1))


def test_gamma_is_a_chord_below_its_toe():
    x = torch.linspace(0, GAMMA_TOE, 9, dtype=double).reshape(1, 1, 1, 9).requires_grad_()
    for gamma in (0.3, 3.0):
        stage = Gamma((gamma, gamma))
        view = stage(x, fixed(stage))
        torch.testing.assert_close(view, x / GAMMA_TOE * GAMMA_TOE**gamma)
        (slope,) = torch.autograd.grad(view[..., :-1].sum(), x)
        torch.testing.assert_close(slope[..., :-1], torch.full((1, 1, 1, 8), GAMMA_TOE ** (gamma - 1), dtype=double))


@pytest.mark.parametrize("degrees", [-180, -133, -60, 0, 17, 60, 120, 179.5])
def test_hue_equals_torchvision_and_colorsys(photo, degrees):
    stage = Hue((degrees, degrees))
    for images in (photo, colours()):
        view = stage(images, fixed(stage))
        # torchvision always computes in float32.
        torch.testing.assert_close(view, tv.adjust_hue(images.float(), degrees / 360).double(), rtol=0, atol=2e-6)
        for colour, turned_colour in zip(images[0].flatten(1).T[::7], view[0].flatten(1).T[::7], strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*colour.tolist())
            oracle = colorsys.hsv_to_rgb((hue + degrees / 360) % 1, saturation, value)
            np.testing.assert_allclose(turned_colour.numpy(), oracle, rtol=0, atol=1e-12)


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
    stage = ChannelGain((0.7, 1.3), (-0.15, 0.1))
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
    stage = Cutout(size, value=0.25)
    cover = (stage(images, torch.rand(64, 3)) - images) / (0.25 - images)
    side = size[0] * 30
    torch.testing.assert_close(cover.sum((1, 2, 3)), torch.full((64,), side**2, dtype=double), rtol=1e-5, atol=0)
    assert cover.min() >= -1e-5 and cover.max() <= 1 + 1e-5
    assert ((cover > 1e-6).any(2).sum(-1) <= side + 2).all() and ((cover > 1e-6).any(3).sum(-1) <= side + 2).all()


@pytest.mark.parametrize(
    "stage", [Saturation((0, 2)), Hue(90), ChannelGain()], ids=lambda stage: type(stage).__name__
)
def test_colour_stage_accepts_one_or_three_channels(stage, photo):
    grey, u = photo[:, 1:2], torch.rand(1, stage.dims)
    assert torch.equal(stage(grey, u), grey)  # grey has no colour to change
    for channels in (2, 4):
        with pytest.raises(ValueError, match="1 channel"):
            stage(torch.rand(1, channels, 4, 4), u)

"""Ink, light, lens and sensor of the simulated photographs."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from attacks.physical.simulation import Ranges, camera
from attacks.physical.simulation.shots import Shot
from tests.helpers.simulated import RANDOM

ROOT = Path(__file__).resolve().parents[2]


def test_an_ideal_printer_is_exact_and_a_real_one_has_fewer_colours():
    dots = RANDOM(0).integers(0, 256, (50, 60, 3), np.uint8)
    ideal = camera.to_light(dots / np.float32(255))
    real, half, blank = (camera.print_raster(dots, strength) for strength in (1, 0.5, 0))
    np.testing.assert_array_equal(blank, ideal)
    np.testing.assert_allclose(half, (real + ideal) / 2, atol=1e-6)
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, 2)
    grey = camera.print_raster(ramp, 1)[0] / camera.PAPER
    assert np.ptp(grey, axis=1).max() < 1e-5 and (np.diff(grey[:, 0]) >= 0).all()
    assert grey[0, 0] == pytest.approx(10**-camera.DENSEST) and grey[-1, 0] == pytest.approx(1)
    assert (grey[1:-1, 0] <= np.maximum(camera.to_light(ramp[0, 1:-1, 0] / 255), grey[0, 0] + 1e-6)).all()


def test_default_ranges_are_those_of_the_camera_preset():
    stages = yaml.safe_load((ROOT / "configs/transforms/camera.yaml").read_text())["stages"]
    ours = Ranges()
    assert list(ours.degrees) == stages["affine"]["degrees"] and list(ours.scale) == stages["affine"]["scale"]
    assert list(ours.shift) == stages["affine"]["translate"] and ours.jitter == stages["perspective"]["jitter"]
    assert list(ours.contrast) == stages["contrast"]["factor"]
    view = [float(camera.to_display(camera.to_light(np.array(0.5)) * 2**stops)) - 0.5 for stops in ours.stops]
    assert view == pytest.approx(stages["brightness"]["amount"], abs=2e-4)


def test_light_is_multiplied_by_the_gains_of_the_shot():
    light = np.full((101, 201, 3), 0.1, np.float32)
    result = camera.lit(light, Shot(stops=1, red=0.5, blue=-1, gradient=0.25, brighter=0))
    np.testing.assert_allclose(result[50, 100], [0.1 * 2**1.5, 0.2, 0.1], rtol=1e-5)
    right, left = result[50, 150, 1], result[50, 50, 1]
    assert right / left == pytest.approx(2 ** (0.5 * 50 / 50.5), rel=1e-5)
    assert result[0, 100, 1] == pytest.approx(result[-1, 100, 1])


def test_the_tone_curve_has_its_pivot_at_mid_grey():
    near = camera.to_light(np.array([0.49, 0.5, 0.51], np.float32))[None, :, None].repeat(3, 2)
    steep = camera.develop(near, Shot(contrast=1.2))[0, :, 0].astype(int)
    assert steep.tolist() == [round(255 * (0.5 + 1.2 * d)) for d in (-0.01, 0, 0.01)]


def test_blur_has_its_variance_and_preserves_the_light():
    point = np.zeros((81, 81, 3), np.float32)
    point[40, 40] = 1
    result = camera.blurred(point, Shot(blur=1.5, motion=9.0, along=30))[..., 0].astype(float)
    at = np.arange(81) - 40.0
    x, y = (result * at).sum(), (result * at[:, None]).sum()
    xx, yy, xy = (result * at**2).sum(), (result * at[:, None] ** 2).sum(), (result * np.outer(at, at)).sum()
    way = 9**2 / 12
    c, s = math.cos(math.radians(30)), math.sin(math.radians(30))
    assert (result.sum(), x, y) == pytest.approx((1, 0, 0), abs=1e-4)
    share = 1 / 6  # the mean gain of a line between pixels
    expected = (1.5**2 + way * c * c + share, 1.5**2 + way * s * s + share, way * c * s)
    assert (xx, yy, xy) == pytest.approx(expected, abs=0.1)


def test_noise_has_the_variance_of_shot_and_read_noise():
    for level in (0.02, 0.3):
        light = np.full((300, 300, 3), level, np.float32)
        result = camera.add_noise(light, Shot(shot=1e-3, read=3e-3), RANDOM(0))
        assert result.mean() == pytest.approx(level, rel=2e-3)
        assert result.var() == pytest.approx(1e-3 * level + 9e-6, rel=0.02)
    assert (camera.add_noise(light * 0, Shot(), RANDOM(0)) == 0).all()

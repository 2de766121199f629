"""The parts of the benchmark of the downscale attack that decide something."""

import math

import pytest
import torch

from attacks.encoders.defended import view_defence
from attacks.experiment.build.pipeline import viewed
from attacks.run import compose
from scripts.benchmarks.downscale import KERNEL, SIDES, Case, least_norm, platform, psnr
from scripts.benchmarks.downscale_defences import adaptive, defences
from transforms import Downscale, OneOf, resize


def test_the_closed_form_makes_the_thumbnail_with_the_least_norm():
    images, wanted = torch.rand(2, 3, 40, 60, dtype=torch.float64), torch.rand(2, 3, 7, 9, dtype=torch.float64)
    delta = least_norm(images, wanted, KERNEL)
    torch.testing.assert_close(resize(images + delta, (7, 9), KERNEL), wanted, rtol=0, atol=1e-9)
    # Least norm: no part of it is invisible to the resizer.
    invisible = torch.randn_like(images)
    invisible -= least_norm(torch.zeros_like(images), resize(invisible, (7, 9), KERNEL), KERNEL)
    assert resize(invisible, (7, 9), KERNEL).abs().max() < 1e-9
    assert float((invisible * delta).sum().abs()) < 1e-6


def test_views_end_at_sizes_of_the_encoder():
    empty = torch.empty(0)
    for name, side in SIDES.items():
        case = Case(name, empty, empty, empty, empty, torch.nn.Identity(), side)
        (choice,) = [stage for stage in platform(case).stages if isinstance(stage, OneOf)]
        sizes = {stage.size for stage in choice.stages if isinstance(stage, Downscale)}
        assert sizes == {(round(0.95 * side), round(1.05 * side))} and len(choice.stages) == 6


def test_defences_are_those_of_the_configuration_at_their_place():
    empty = torch.empty(0)
    case = Case("pocket", torch.empty(1, 3, 1024, 1024), empty, empty, empty, torch.nn.Identity(), 96)
    for name, defence in defences(case).items():
        run = compose("downscale", [f"defence={name}"])
        configured = viewed(run.transforms, run.defence)
        assert view_defence(configured) == defence
        assert defence is None or adaptive(platform(case), defence) == configured


def test_psnr_is_that_of_the_mean_square():
    images = torch.full((1, 3, 8, 8), 100 / 255)
    file = torch.full((8, 8, 3), 110, dtype=torch.uint8).numpy()
    assert float(psnr([file], images)) == pytest.approx(20 * math.log10(255 / 10), abs=1e-4)

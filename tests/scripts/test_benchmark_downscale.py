"""The parts of the benchmark of the downscale attack that decide something."""

import math

import pytest
import torch

from scripts.benchmarks.downscale import SIDES, Case, platform, psnr
from transforms import Downscale
from transforms.wrappers import OneOf


def test_views_end_at_sizes_of_the_encoder():
    empty = torch.empty(0)
    for name, side in SIDES.items():
        case = Case(name, empty, empty, empty, torch.nn.Identity(), side)
        (choice,) = [stage for stage in platform(case).stages if isinstance(stage, OneOf)]
        sizes = {stage.size for stage in choice.stages if isinstance(stage, Downscale)}
        assert sizes == {(round(0.95 * side), round(1.05 * side))} and len(choice.stages) == 6


def test_psnr_is_that_of_the_mean_square():
    images = torch.full((1, 3, 8, 8), 100 / 255)
    file = torch.full((8, 8, 3), 110, dtype=torch.uint8).numpy()
    assert float(psnr([file], images)) == pytest.approx(20 * math.log10(255 / 10), abs=1e-4)

"""The parts of the benchmark of the downscale attack that decide something."""

import math

import pytest
import torch
import torch.nn.functional as F

from attacks.encoders.defended import view_defence
from attacks.experiment.build.pipeline import viewed
from attacks.run import compose
from scripts.benchmarks import downscale_detector as detector
from scripts.benchmarks.downscale import KERNEL, SIDES, Case, least_norm, platform, psnr
from scripts.benchmarks.downscale_defences import adaptive, defences
from transforms import Downscale, OneOf, resize
from transforms.doors import unchecked


def test_the_closed_form_makes_the_thumbnail_with_the_least_norm():
    images, wanted = torch.rand(2, 3, 40, 60, dtype=torch.float64), torch.rand(2, 3, 7, 9, dtype=torch.float64)
    delta = least_norm(images, wanted, KERNEL)
    linear = unchecked(resize)
    torch.testing.assert_close(linear(images + delta, (7, 9), KERNEL), wanted, rtol=0, atol=1e-9)
    # Least norm: no part of it is invisible to the resizer.
    invisible = torch.randn_like(images)
    invisible -= least_norm(torch.zeros_like(images), linear(invisible, (7, 9), KERNEL), KERNEL)
    assert linear(invisible, (7, 9), KERNEL).abs().max() < 1e-9
    assert float((invisible * delta).sum().abs()) < 1e-6


def test_views_end_at_sizes_of_the_encoder():
    empty = torch.empty(0)
    for name, side in SIDES.items():
        case = Case(name, empty, empty, empty, empty, torch.nn.Identity(), side)
        (choice,) = [stage for stage in platform(case).stages if isinstance(stage, OneOf)]
        sizes = {stage.size for stage in choice.stages if isinstance(stage, Downscale)}
        assert sizes == {(round(0.95 * side), round(1.05 * side))} and len(choice.stages) == 6


@pytest.mark.slow
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


def test_the_attack_that_knows_the_detector_pulls_its_two_embeddings_together():
    images, network = torch.rand(2, 3, 40, 40), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
    features = detector.Both(network, 8)(images)
    seen, viewed = (network(resize(images, (8, 8), kernel, eight_bit=True)) for kernel in (KERNEL, "pil_lanczos"))
    assert torch.equal(features, torch.cat([seen, viewed], 1))
    anchor, alike = torch.randn(2, 5), F.cosine_similarity(seen, viewed)
    wanted = -F.cosine_similarity(seen, anchor)
    torch.testing.assert_close(detector.Unseen(0.5, 4.0)(features, anchor), wanted + 4 * (0.5 - alike).clamp(min=0))
    torch.testing.assert_close(detector.Unseen(-1.0, 4.0)(features, anchor), wanted)  # above the threshold: no price
    own = torch.cat([seen, seen], 1)
    torch.testing.assert_close(detector.Unseen(0.99, 4.0)(own, anchor), wanted)


@pytest.mark.nightly
def test_the_detector_has_false_alarms_and_hits_by_attack():
    alarms, hits = detector.run(pictures=1, size="256", steps=3, budgets=("28dB",))
    assert set(alarms.rows) == set(detector.KERNELS)
    assert all(sum(row[:3]) <= 3 for row in alarms.rows.values())  # of 281 pictures
    assert [name.removeprefix("28dB, ") for name in hits.rows] == [
        "known",
        "EOT",
        "knows it, weight 1",
        "knows it, weight 4",
        "knows it, either",
    ]
    shares = [value for row in hits.rows.values() for value in row[:3] if value is not None]
    assert all(0 <= share <= 1 for share in shares) and len(shares) == 13

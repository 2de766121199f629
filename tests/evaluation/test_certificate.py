"""Certificates of pictures: against a half-space, whose smoothed features are known in closed form and for which the
bound is attained; against random changes; and with a wrong deviation."""

import numpy as np
import pytest
import scipy
import torch
from scipy.special import ndtr
from torch import nn

from attacks.encoders import Defended, Panel, Stochastic
from attacks.encoders.rules import SmoothedFeatures, ViewMean
from attacks.evaluation.certificate import Certifier, smoothing
from tests.helpers.small import small, smooth
from transforms.camera import Quantise, SensorNoise
from transforms.geometry import Flip

SIGMA, RADII, GREY = 0.05, (0.02, 0.06), torch.full((1, 3, 2, 2), 0.5)
UP = torch.ones(1, 3, 2, 2) / 12**0.5


class HalfSpace(nn.Module):
    """(1, 0) where a picture is further along `UP` than grey less one deviation, else (0, 1)."""

    def forward(self, images):
        is_right = ((images - GREY) * UP).sum((1, 2, 3)) > -SIGMA
        return torch.stack([is_right, ~is_right], 1).float()


def panel(encoder=None, stages=None, rule=None):
    noise = [SensorNoise((SIGMA, SIGMA))]
    return Panel(
        HalfSpace().eval() if encoder is None else encoder,
        rule or SmoothedFeatures(),
        noise if stages is None else stages,
        2,
    )


def rows_of(deviation=SIGMA, delta=-UP, **settings):
    """The rows of a half-space; the anchor and the right row are (1, 0), the wrong one (0, 1)."""
    right, wrong = torch.eye(2)
    settings = {"samples": 20_000, "lowest": 0.0} | settings
    return Certifier(panel(), deviation, RADII, **settings).rows(
        GREY, delta, right, (right, wrong[None]), lambda: None
    )


def test_floors_of_a_half_space_are_near_below_the_closed_form_which_an_attack_attains():
    for row in rows_of():
        truth = ndtr(1 - row["radius"] / SIGMA)
        assert truth - 0.03 < row["similarity_floor"] < truth < row["similarity_high"]
        assert row["similarity_found"] == pytest.approx(truth, abs=4 * np.sqrt(0.25 / 2000))
        margin = (2 * truth - 1) / np.sqrt(2)
        assert margin - 0.06 < row["margin_floor"] < margin and row["margin_floor"] < row["margin_found"]
        assert not row["wrong"]


def test_a_wrong_deviation_is_seen_in_what_an_attack_finds():
    for factor in (1.3, 2):
        assert [row["wrong"] for row in rows_of(factor * SIGMA)] == [False, False, True]
    assert not any(row["wrong"] for row in rows_of(2 * SIGMA, UP))  # a change that does not attack finds nothing


def test_other_seeds_are_other_samples_and_equal_ones_replay():
    first, second, other = rows_of(samples=500), rows_of(samples=500), rows_of(samples=500, seed=1)
    assert first == second and first != other


def test_every_pass_is_counted():
    calls = []
    right, wrong = torch.eye(2)
    certifier = Certifier(panel(), SIGMA, RADII, samples=1000)
    certifier.rows(GREY, -UP, right, (right, wrong[None]), lambda: calls.append(1))
    assert len(calls) == certifier.passes


def test_no_random_change_undoes_a_certain_nearest_row():
    encoder, (picture, other) = small(), smooth()
    subject = panel(encoder)
    gallery = encoder(torch.stack([picture, other, other.flip(2), picture.flip(1, 2)]))
    certifier = Certifier(subject, SIGMA, (0.02, 0.05), samples=2000)
    delta, random = other - picture, torch.Generator().manual_seed(3)
    rows = certifier.rows(picture[None], delta[None], gallery[0], (gallery[0], gallery[1:]), lambda: None)
    assert all(row["margin_floor"] > 0 and not row["wrong"] for row in rows)
    for row in rows:
        change = torch.randn(20, *picture.shape, generator=random)
        images = picture + change * (row["radius"] / change.flatten(1).norm(dim=1)[:, None, None, None])
        noise = SIGMA * torch.randn(20, 200, *picture.shape, generator=random)
        views = (images[:, None] + noise).clamp(0, 1).flatten(0, 1)
        mean = nn.functional.normalize(encoder(views), dim=1).unflatten(0, (20, 200)).mean(1)
        units = nn.functional.normalize(gallery, dim=1)
        assert ((mean @ units.T).argmax(1) == 0).all()
        slack = 4 / np.sqrt(200)
        assert (mean @ units[0]).min() > row["similarity_floor"] - slack


def test_a_gallery_without_another_row_and_too_large_a_least_cosine_are_refused():
    right = torch.eye(2)[0]
    with pytest.raises(ValueError, match="must show something else"):
        Certifier(panel(), SIGMA, RADII).rows(GREY, -UP, right, (right, torch.zeros(0, 2)), lambda: None)
    with pytest.raises(ValueError, match="`low` must be the least value"):
        rows_of(lowest=0.5, samples=500)


def test_the_noise_of_the_stage_is_normal_with_the_deviation_that_is_read_and_clamped():
    encoder, deviation = smoothing(panel())
    u = torch.rand(400, encoder.stages.dims, generator=torch.Generator().manual_seed(0))
    noise = encoder.stages(torch.full((400, 3, 8, 8), 0.5), u) - 0.5
    assert scipy.stats.kstest(noise.flatten().numpy()[::7] / deviation, "norm").pvalue > 1e-3
    assert noise.std() == pytest.approx(deviation, rel=0.01)
    black = encoder.stages(torch.zeros(400, 3, 8, 8), u)
    assert black.min() == 0 and (black == 0).double().mean() == pytest.approx(0.5, abs=0.01)


NOISE = SensorNoise((SIGMA, SIGMA))
REFUSALS = {
    "bare": HalfSpace().eval(),
    "no panel": Defended(HalfSpace().eval(), [NOISE]),
    "another rule": panel(rule=ViewMean()),
    "a range": panel(stages=[SensorNoise((0.0, SIGMA))]),
    "no noise": panel(stages=[SensorNoise((0.0, 0.0))]),
    "shot noise": panel(stages=[SensorNoise((SIGMA, SIGMA), (0.01, 0.01))]),
    "more stages": panel(stages=[NOISE, Flip(0.5)]),
    "no stages": panel(stages=[]),
    "another stage": panel(stages=[Quantise(4)]),
    "dropout": panel(Stochastic(nn.Sequential(nn.Dropout(0.5), nn.Flatten()).eval())),
}


@pytest.mark.parametrize("encoder", REFUSALS.values(), ids=REFUSALS)
def test_without_gaussian_smoothing_there_is_no_floor(encoder):
    with pytest.raises(ValueError, match="there is no floor"):
        smoothing(encoder)

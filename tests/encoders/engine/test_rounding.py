"""Rounding beside sampling noise, by draws whose noise is known, and a choice for the encoder that ships."""

import math

import pytest
import torch
import torch.nn.functional as F

from attacks.encoders.engine import Trial, choose, prepare
from attacks.encoders.engine.tuner import compare
from attacks.encoders.loading import load_encoder
from transforms import Affine, Compose, Downscale, Sobol

CPU = torch.device("cpu")


def test_rounding_and_noise_are_root_mean_squares():
    # Independent draws: E||g - E g||^2 is the noise that snr tells, whatever the signal.
    truth = torch.randn(200, 50, dtype=torch.float64)
    noise = 3 * torch.randn(200, 50, dtype=torch.float64)
    snr = truth.square().sum(1) / (9 * 50)
    found = compare(truth + noise + 0.1, Trial(truth + noise, snr))
    assert found.noise == pytest.approx(3 * math.sqrt(50), rel=0.05)
    assert found.error == pytest.approx(0.1 * math.sqrt(50))
    assert compare(truth, Trial(truth, -snr)).noise == pytest.approx(size(truth))


def size(truth):
    """A signal to noise ratio below zero is an estimate of zero: all noise."""
    return float(truth.square().sum(1).mean().sqrt())


@pytest.mark.slow
def test_the_pocket_encoder_end_to_end():
    encoder, transforms = load_encoder(), Compose([Affine(degrees=(-20, 20), scale=(0.7, 1.3)), Downscale(48)])
    image, u = torch.rand(1, 3, 64, 64), Sobol()(16, transforms.dims, seed=0, step=0)
    anchor = encoder(image)

    def trial(prepared, chunk):
        parts = []
        for views in u.split(chunk):
            leaf = image.repeat(len(views), 1, 1, 1).requires_grad_()
            loss = F.cosine_similarity(prepared(transforms(leaf, views)), anchor).sum()
            parts += torch.autograd.grad(loss, leaf)
        each = torch.cat(parts).flatten(1)  # the gradient of each view
        noise = each.var(0).sum() / len(u)
        return Trial(each.mean(0)[None], (each.mean(0).square().sum() / noise - 1).clamp(min=0)[None])

    choice = choose(encoder, trial, {"compile": False}, rows=16, total_views=40_000, device=CPU)
    assert choice.measurements[0].taken
    assert choice.measurements[0].ratio == 0
    assert not choice.decision.compile
    features = prepare(encoder, choice.decision)(image)
    assert float((features - anchor).norm() / anchor.norm()) < 0.02

"""The pixels reached by the gradient: known cases, and against a loop over views."""

import torch
import torch.nn.functional as F
from torch import nn

from attacks import bank
from attacks.encoders import Defended, Phash, Stochastic, untrained
from attacks.encoders.randomness import drawn, randomised
from attacks.eot.bank import Bank
from attacks.evaluation.explain.gradients import VIEWS, reach
from attacks.evaluation.explain.saliency import CountedEncoder
from tests.helpers.small import small, smooth
from transforms import Affine, Compose, SensorNoise
from transforms.auditing.coverage import covered, effective

PICTURES = smooth()
HEAD_ON = Bank(Compose([]), torch.zeros(3, 0))


class Left(nn.Module):
    """Reads the left quarter of a picture, each value with its own weight."""

    def forward(self, images):
        return F.adaptive_avg_pool2d(images[..., : images.shape[3] // 4], (4, 2)).flatten(1)


class Cut(nn.Module):
    """Passes no gradient."""

    def forward(self, images):
        return images.detach().mean((2, 3))


def test_pixels_outside_the_encoders_view_are_dead():
    pictures = torch.rand(2, 3, 16, 32, generator=torch.Generator().manual_seed(0))
    result = reach(CountedEncoder(Left()), pictures, Left()(pictures.flip(2)), HEAD_ON, 8)
    seen = (torch.arange(32) < 8).expand(2, 16, 32)
    assert torch.equal(result.sensitivity > 0, seen)
    torch.testing.assert_close(result.coverage, torch.tensor([0.25, 0.25]))
    torch.testing.assert_close(result.view, result.coverage)
    assert bool((result.effective <= 0.25).all()) and bool((result.effective > 0.1).all())


def test_reach_equals_a_loop_over_views():
    encoder, views = small(), bank(Compose([Affine(degrees=30, scale=(1.2, 2.0))]), 12, seed=0, purpose="test")
    anchors = encoder(PICTURES.flip(3))
    result = reach(CountedEncoder(encoder), PICTURES, anchors, views, 5)
    for i, picture in enumerate(PICTURES):
        gradients = []
        for u in views.u[:VIEWS]:
            leaf = picture[None].clone().requires_grad_()
            features = encoder(views.transforms(leaf, u[None]))[0]
            value = (features * anchors[i]).sum() / features.detach().norm() / anchors[i].norm()
            gradients.append(torch.autograd.grad(value, leaf)[0][0])
        gradients = torch.stack(gradients).double()
        weights = gradients.square().sum(1).mean(0).sqrt()
        torch.testing.assert_close(result.sensitivity[i], weights, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(float(result.coverage[i]), covered(weights))
        torch.testing.assert_close(float(result.effective[i]), effective(weights), rtol=1e-4, atol=0)
    assert bool((result.view < result.coverage).all())  # an enlarged view shows a part of the picture


def test_an_encoder_without_a_gradient_has_no_reach():
    assert reach(CountedEncoder(Cut()), PICTURES, PICTURES.mean((2, 3)), HEAD_ON, 8) is None


def test_random_defences_and_hashes_have_a_reach():
    for encoder in (Stochastic(Defended(untrained().eval(), [SensorNoise((0.01, 0.1))])), Phash()):
        views = bank(randomised(Compose([Affine(degrees=10)]), encoder), 2, seed=0, purpose="test")
        assert bool(drawn(views.transforms, views.u)) == isinstance(encoder, Stochastic)
        with torch.no_grad():
            anchors = encoder(PICTURES)
        result = reach(CountedEncoder(encoder), PICTURES, anchors, views, 8)
        assert bool(result.sensitivity.isfinite().all()) and bool((result.coverage > 0.5).all())
        fixed = Bank(Compose([Affine(degrees=10)]), views.u[:, :5])  # without the draws of the encoder
        without_draws = reach(CountedEncoder(encoder), PICTURES, anchors, fixed, 8)
        assert torch.equal(without_draws.sensitivity, result.sensitivity) == isinstance(encoder, Phash)

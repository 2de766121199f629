"""The gradient of the likeness against finite differences; the pixels that it reaches, against a loop over views."""

import torch
import torch.nn.functional as F
from torch import nn

from attacks import bank
from attacks.encoders import Defended, Phash, Stochastic, bits, untrained
from attacks.encoders.randomness import encoder_draws, randomised
from attacks.eot.bank import Bank
from attacks.evaluation.explain.gradients import VIEWS, CountedEncoder, reach, saliency
from tests.helpers.small import small, smooth
from transforms import Affine, Compose
from transforms.auditing.coverage import coverage, effective
from transforms.camera import SensorNoise

PICTURES = smooth()
#: In float64, for finite differences.
WIDE, NET = PICTURES.double(), small().double()
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
    left_quarter = (torch.arange(32) < 8).expand(2, 16, 32)
    assert torch.equal(result.sensitivity > 0, left_quarter)
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
        torch.testing.assert_close(float(result.coverage[i]), coverage(weights))
        torch.testing.assert_close(float(result.effective[i]), effective(weights), rtol=1e-4, atol=0)
    assert bool((result.view < result.coverage).all())  # an enlarged view shows a part of the picture


def test_an_encoder_without_a_gradient_has_no_reach():
    assert reach(CountedEncoder(Cut()), PICTURES, PICTURES.mean((2, 3)), HEAD_ON, 8) is None


def test_random_defences_and_hashes_have_a_reach():
    for encoder in (Stochastic(Defended(untrained().eval(), [SensorNoise((0.01, 0.1))])), Phash()):
        views = bank(randomised(Compose([Affine(degrees=10)]), encoder), 2, seed=0, purpose="test")
        assert bool(encoder_draws(views.transforms, views.u)) == isinstance(encoder, Stochastic)
        with torch.no_grad():
            anchors = encoder(PICTURES)
        result = reach(CountedEncoder(encoder), PICTURES, anchors, views, 8)
        assert bool(result.sensitivity.isfinite().all()) and bool((result.coverage > 0.5).all())
        fixed = Bank(Compose([Affine(degrees=10)]), views.u[:, :5])  # without the draws of the encoder
        without_draws = reach(CountedEncoder(encoder), PICTURES, anchors, fixed, 8)
        assert torch.equal(without_draws.sensitivity, result.sensitivity) == isinstance(encoder, Phash)


def test_the_slope_equals_finite_differences():
    anchors = NET(WIDE.flip(3))
    leaf = WIDE.clone().requires_grad_()
    counter = CountedEncoder(NET)
    (gradient,) = counter.gradients(counter.slope_values(leaf, anchors), [leaf])
    lengths = NET(WIDE).norm(dim=1)
    generator, step = torch.Generator().manual_seed(0), 1e-5
    for _ in range(5):
        way = torch.randn(WIDE.shape, generator=generator, dtype=torch.float64)
        ends = [(NET(WIDE + sign * step * way) * F.normalize(anchors, dim=1)).sum(1) / lengths for sign in (1, -1)]
        slope = (gradient * way).flatten(1).sum(1)
        torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(saliency(gradient), sum(gradient[:, c].abs() for c in range(3)))


def test_the_value_equals_the_cosine_and_has_a_gradient_at_its_maximum():
    anchors = NET(WIDE)
    counter = CountedEncoder(NET)
    for pictures in (WIDE, WIDE.flip(2)):
        expected = F.cosine_similarity(NET(pictures), anchors)
        torch.testing.assert_close(counter.slope_values(pictures, anchors), expected)
        torch.testing.assert_close(counter.likeness(pictures, anchors), expected)
    leaf = WIDE.clone().requires_grad_()
    (flat,) = torch.autograd.grad(F.cosine_similarity(NET(leaf), anchors).sum(), leaf)
    (slope,) = counter.gradients(counter.slope_values(leaf, anchors), [leaf])
    assert float(flat.norm()) < 1e-9 < 1e-2 < float(slope.norm())


def test_a_hash_is_compared_by_its_bits_and_has_a_gradient():
    encoder, pictures = Phash(), smooth()
    anchors, other = encoder(pictures), pictures.flip(3)
    counter = CountedEncoder(encoder)
    bit_errors = (bits(encoder(other)) != bits(anchors)).sum(1)
    torch.testing.assert_close(counter.likeness(other, anchors), 1 - 2 * bit_errors / 64)
    leaf = other.clone().requires_grad_()
    (gradient,) = counter.gradients(counter.slope_values(leaf, anchors), [leaf])
    assert bool(gradient.isfinite().all()) and bool(gradient.any())

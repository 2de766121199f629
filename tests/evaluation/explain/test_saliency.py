"""The gradient of the likeness against finite differences."""

import torch
import torch.nn.functional as F

from attacks.encoders import Phash, bits
from attacks.evaluation.explain.saliency import CountedEncoder, saliency
from tests.helpers.small import small, smooth

PICTURES = smooth().double()
ENCODER = small().double()


def test_the_slope_equals_finite_differences():
    anchors = ENCODER(PICTURES.flip(3))
    leaf = PICTURES.clone().requires_grad_()
    counted = CountedEncoder(ENCODER)
    (gradient,) = counted.gradients(counted.sloped(leaf, anchors), [leaf])
    lengths = ENCODER(PICTURES).norm(dim=1)
    generator, step = torch.Generator().manual_seed(0), 1e-5
    for _ in range(5):
        way = torch.randn(PICTURES.shape, generator=generator, dtype=torch.float64)
        ends = [
            (ENCODER(PICTURES + sign * step * way) * F.normalize(anchors, dim=1)).sum(1) / lengths for sign in (1, -1)
        ]
        slope = (gradient * way).flatten(1).sum(1)
        torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(saliency(gradient), sum(gradient[:, c].abs() for c in range(3)))


def test_the_value_equals_the_cosine_and_has_a_gradient_at_its_maximum():
    anchors = ENCODER(PICTURES)
    counted = CountedEncoder(ENCODER)
    for pictures in (PICTURES, PICTURES.flip(2)):
        expected = F.cosine_similarity(ENCODER(pictures), anchors)
        torch.testing.assert_close(counted.sloped(pictures, anchors), expected)
        torch.testing.assert_close(counted.judged(pictures, anchors), expected)
    leaf = PICTURES.clone().requires_grad_()
    (flat,) = torch.autograd.grad(F.cosine_similarity(ENCODER(leaf), anchors).sum(), leaf)
    (held,) = counted.gradients(counted.sloped(leaf, anchors), [leaf])
    assert float(flat.norm()) < 1e-9 < 1e-2 < float(held.norm())


def test_a_hash_is_compared_by_its_bits_and_has_a_gradient():
    encoder, pictures = Phash(), smooth()
    anchors, other = encoder(pictures), pictures.flip(3)
    counted = CountedEncoder(encoder)
    apart = (bits(encoder(other)) != bits(anchors)).sum(1)
    torch.testing.assert_close(counted.judged(other, anchors), 1 - 2 * apart / 64)
    leaf = other.clone().requires_grad_()
    (gradient,) = counted.gradients(counted.sloped(leaf, anchors), [leaf])
    assert bool(gradient.isfinite().all()) and bool(gradient.any())


def test_passes_are_counted_in_pictures_and_without_a_graph_there_is_no_gradient():
    counted = CountedEncoder(ENCODER)
    leaf = PICTURES.clone().requires_grad_()
    anchors = ENCODER(PICTURES)
    counted.judged(PICTURES, anchors[:1])
    assert (counted.forward, counted.backward) == (2, 0)
    other = torch.zeros(2, requires_grad=True)
    gradients = counted.gradients(counted.sloped(leaf, anchors), [leaf, other, torch.zeros(2)])
    assert gradients[0] is not None and gradients[1:] == [None, None]
    assert (counted.forward, counted.backward) == (4, 2)
    assert counted.gradients(counted.sloped(PICTURES, anchors), [leaf]) == [None]

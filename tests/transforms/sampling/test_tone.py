"""Consecutive brightness and contrast stages are one clamped line, whatever precedes them."""

import itertools

import pytest
import torch

from tests.helpers.slopes import assert_slope
from transforms import Affine, Brightness, Compose, Contrast, Viewpoint
from transforms.colour import Gain
from transforms.sampling.straight_through import ROUNDING, saturate
from transforms.sampling.tone import apply_tone, first_tone
from transforms.scene import Layer, Scene, scene_of

double = torch.float64

LINES = [Contrast((0.5, 1.8)), Brightness((-0.4, 0.4)), Gain((0.5, 1.6)), Brightness((-0.3, 0.3)), Contrast((0, 1.5))]


PLACES = [  # geometry and border
    ([], "constant"),
    ([Affine(20, (1, 1.3), translate=0.2)], "constant"),
    ([Affine(20, (1, 1.3), translate=0.2)], "replicate"),
    ([Affine(20, (0.3, 0.5))], "constant"),  # through the pyramid
    ([Viewpoint(yaw=(70, 80), distance=(2, 3), fov=(90, 100))], "constant"),  # with a horizon
]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=range(len(PLACES)))
def test_fused_tone_equals_the_chain_of_stages(place):
    geometry, border = place
    for kernel, (images, views) in itertools.product(("nearest", "bilinear", "bicubic"), ((1, 6), (3, 2), (2, 1))):
        n, value = images * views, torch.tensor([0.1, 0.6, 0.9], dtype=double)
        pictures = (1.4 * torch.rand(images, 3, 20, 24, dtype=double) - 0.2).clamp(0, 1)  # many exact zeros, ones
        options = {"kernel": kernel, "border": border, "value": value}
        fused, geometry_pipeline = Compose([*geometry, *LINES], **options), Compose(geometry, **options)
        u = torch.rand(n, fused.dims, dtype=double)
        weights = torch.randn(n, 3, 20, 24, dtype=double)
        sources = [pictures.clone().requires_grad_() for _ in range(2)]
        view, oracle = fused(sources[0], u), geometry_pipeline(sources[1], u[:, : geometry_pipeline.dims])
        for stage, part in zip(LINES, u[:, geometry_pipeline.dims :].split(1, 1), strict=True):
            oracle = stage(oracle, part)
        results = zip((view, oracle), sources, strict=True)
        grads = [torch.autograd.grad((v * weights).sum(), source)[0] for v, source in results]
        assert (view == view.amax((1, 2, 3), keepdim=True)).sum() > 2 * n and grads[0].any()  # some are at a bound
        torch.testing.assert_close(view, oracle, rtol=0, atol=1e-12)
        torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


def test_fused_tone_passes_gradcheck_in_its_parameters(photo):
    pipeline = Compose([Affine(20), Brightness(0.2), Contrast((0.8, 1.2))])
    small = 0.3 + 0.4 * photo[..., :12, :12]
    assert_slope(lambda at: pipeline(small, at), 0.25 + 0.5 * torch.rand(2, pipeline.dims, dtype=double))


def test_fused_tone_applies_to_the_composite_of_base_and_patch(photo):
    scene = scene_of(photo)
    scene = Scene(
        (*scene.layers, Layer(torch.rand(1, 3, 9, 9).to(double), None, torch.eye(3).to(double)[None])), scene.size
    )
    pipeline, u = Compose([Affine(20), Contrast((0.2, 1.8))]), torch.rand(3, 6, dtype=double)
    oracle = pipeline.stages[1](Compose(pipeline.stages[:1])(scene, u[:, :5]), u[:, 5:])
    torch.testing.assert_close(pipeline(scene, u), oracle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_gradient_passes_at_a_bound_and_within_its_rounding(dtype):
    eps = torch.finfo(dtype).eps
    near = torch.tensor([-ROUNDING * eps, 0, 0.5, 1, 1 + ROUNDING * eps], dtype=dtype)
    far = torch.tensor([-1, -(ROUNDING + 1) * eps, 1 + (ROUNDING + 2) * eps, 2], dtype=dtype)
    unit = torch.ones(1, 1, 1, 1, dtype=dtype)
    for clamp in (saturate, lambda x: apply_tone(x, first_tone(unit, 0 * unit))):
        x = torch.cat([near, far])[None, None, None].requires_grad_()
        out = clamp(x)
        assert torch.equal(out, x.clamp(0, 1))
        assert torch.autograd.grad(out.sum(), x)[0].flatten().tolist() == [1] * len(near) + [0] * len(far)


def test_saturate_has_a_second_derivative():
    x = torch.tensor([-0.5, 0.2, 0.9, 1.7], dtype=double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda at: saturate(at).pow(3), (x,))

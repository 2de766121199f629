"""Composition: a chain of geometric stages is one resample, and a scene is composited once."""

import itertools

import numpy as np
import pytest
import skimage.data
import skimage.transform
import torch

from transforms import Affine, Brightness, Compose, Contrast, Downscale, Perspective
from transforms.geometry import Lens
from transforms.sampling.homography import invert, transform
from transforms.sampling.warp import warp, warp_by_matrix

double = torch.float64
TURN = Affine(degrees=20, scale=(0.6, 1.3), shear=8, translate=0.1)
TILT = Perspective(0.2)


def frame(size, like):
    """From the stage frame to the pixel frame of an image of `size` (height, width)."""
    (height, width), half = size, min(size) / 2
    return like.new_tensor([[half, 0, (width - 1) / 2], [0, half, (height - 1) / 2], [0, 0, 1]])


def draw(pipeline, n=1):
    return torch.rand(n, pipeline.dims, dtype=double)


def stagewise(pipeline, images, u):
    """The same stages, with one resample each."""
    for stage, part in zip(pipeline.stages, u.split([s.dims for s in pipeline.stages], -1), strict=True):
        images = stage(images, part)
    return images


def to_pixels(pull):
    """A map of the stage frame as one of the pixels of an 80 x 120 image."""
    change = frame((80, 120), pull)
    return change @ pull @ invert(change)


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_fused_geometry_is_one_warp_by_the_product(photo, kernel, antialias):
    photo = 0.25 + photo / 2  # room for the overshoot of bicubic
    options = {"kernel": kernel, "border": "reflect", "antialias": antialias}
    pipeline = Compose([TURN, TILT, TURN], **options)
    u = draw(pipeline)
    a, b, c = u.split([5, 8, 5], -1)
    product = TURN.matrix(a) @ TILT.matrix(b) @ TURN.matrix(c)  # the last stage maps output points first
    oracle = warp_by_matrix(photo, to_pixels(product), (80, 120), **options)
    torch.testing.assert_close(pipeline(photo, u), oracle, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, double], ids=str)
def test_four_affine_stages_have_the_values_and_gradient_of_one_resample(dtype):
    crop = skimage.data.astronaut()[100:356, 100:356]
    photo = torch.tensor(crop, dtype=dtype).permute(2, 0, 1)[None] / 255
    stages = [
        Affine(degrees=(d, d), translate=(t, t)) for d, t in ((3, 0.0021), (-5, 0.0037), (4, -0.0013), (2, 0.0029))
    ]
    pipeline = Compose(stages, value=0.0)
    u = torch.zeros(1, pipeline.dims, dtype=double)
    change = frame((256, 256), u)
    single = np.eye(3)
    for stage in reversed(stages):  # the last stage maps output points first
        single = (change @ stage.matrix(u[:, :5])[0] @ invert(change)).numpy() @ single
    oracle = skimage.transform.warp(photo[0].permute(1, 2, 0).double().numpy(), single, order=1, clip=False)
    oracle = torch.tensor(oracle).permute(2, 0, 1)[None].to(dtype)
    fused, leaf = pipeline(photo.requires_grad_(), u), photo.detach().requires_grad_()
    torch.testing.assert_close(fused, oracle, rtol=0, atol=1e-12 if dtype == double else 5e-5)
    chain_view = stagewise(pipeline, leaf, u)

    cotangent = torch.randn(fused.shape, dtype=dtype)
    single_view = warp_by_matrix(photo, torch.tensor(single)[None], (256, 256))
    single_norm, four, chain = (
        float(torch.autograd.grad(view, at, cotangent)[0].norm())
        for view, at in ((single_view, photo), (fused, photo), (chain_view, leaf))
    )
    assert abs(four / single_norm - 1) < 1e-4
    assert chain < 0.8 * single_norm


@pytest.mark.parametrize(
    ("stages", "count"),
    [
        ([], 0),
        ([Brightness(), Downscale(8)], 0),
        ([TURN], 1),
        ([TURN, TILT, Lens(0.2), TURN], 1),
        ([TURN, TILT, Brightness()], 1),
        ([Brightness(), TURN, Contrast(), TILT, TILT], 2),
        ([TURN, Brightness(), TURN, Brightness(), TURN], 3),
    ],
)
def test_number_of_resamples_equals_the_number_of_warps(photo, monkeypatch, stages, count):
    calls = []
    monkeypatch.setattr("transforms.compose.warp", lambda *args, **options: calls.append(1) or warp(*args, **options))
    pipeline = Compose(stages)
    pipeline(photo, draw(pipeline))
    assert pipeline.resamples() == len(calls) == count


def test_pixel_stages_run_in_their_given_order(photo):
    u = torch.rand(1, 6, dtype=double)
    bright_first, bright_last = Compose([Brightness((0.3, 0.3)), TURN]), Compose([TURN, Brightness((0.3, 0.3))])
    oracle = TURN((photo + 0.3).clamp(max=1), u[:, 1:])
    torch.testing.assert_close(bright_first(photo, u), oracle)
    torch.testing.assert_close(bright_last(photo, u), (TURN(photo, u[:, :5]) + 0.3).clamp(max=1))
    assert not torch.allclose(bright_first(photo, u), bright_last(photo, u.roll(-1, -1)))  # the grey surround


def test_pipelines_nest(photo):
    flat = Compose([TURN, Brightness(0.1), TILT])
    u = draw(flat)
    nested = Compose([Compose([TURN, Brightness(0.1)]), Compose([TILT])])
    torch.testing.assert_close(nested(photo, u), flat(photo, u))


def test_empty_pipeline_returns_the_input_object(photo):
    assert Compose()(photo, torch.zeros(1, 0)) is photo


def test_horizon_of_one_stage_applies_to_the_whole_chain(photo):
    # The sides of the square meet just above it, and a portrait picture extends above it.
    portrait, pipeline = photo.mT, Compose([TURN, Lens(0.2), Perspective(0.49)], border="replicate", antialias=False)
    corners = torch.tensor([[1, 1, 0, 1, 1, 0, 0, 0]], dtype=double) * 0.999
    y, x = torch.meshgrid((torch.arange(120.0) - 59.5) / 40, (torch.arange(80.0) - 39.5) / 40, indexing="ij")
    _, w = transform(Perspective(0.49).matrix(corners), torch.stack([x, y], -1)[None].double())
    view = pipeline(portrait, torch.cat([draw(Compose([TURN, Lens(0.2)])), corners], 1))
    assert (w < 0).sum() > 500
    assert (view[0][:, w[0] < 0] == 0.5).all()


def test_describe_names_every_coordinate_and_its_value():
    pipeline = Compose([Affine(degrees=30, scale=(0.5, 1.5)), Brightness(0.2), Downscale((8, 16))])
    u = torch.tensor([[0.0, 0.5, 0.5, 0.5, 0.5, 0.75, 0.5], [0.5, 0.0, 0.5, 0.5, 0.5, 0.0, 0.999]], dtype=double)
    names = [
        "affine angle (deg)",
        "affine scale (x)",
        "affine shear (deg)",
        "affine shift right (of shorter side)",
        "affine shift down (of shorter side)",
        "brightness added (of full scale)",
        "downscale shorter side (px)",
    ]
    first, second = pipeline.describe(u)
    assert list(first) == names == list(pipeline.names)
    assert list(first.values()) == pytest.approx([-30, 1, 0, 0, 0, 0.1, 12])
    assert list(second.values()) == pytest.approx([0, 0.5, 0, 0, 0, -0.2, 16])
    assert pipeline.describe(u[0]) == [first]


@pytest.mark.parametrize("shape", [(2, 4), (2, 6), (3, 5), (1, 5), (0, 5), (5,)], ids=str)
def test_wrong_shape_of_u_is_refused(photo, shape):
    with pytest.raises(ValueError, match=r"`u` must hold rows of 5 coordinates, one .* for each of 2 images"):
        Compose([TURN])(torch.cat([photo, photo]), torch.rand(shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", [[], [TURN, TILT], [Brightness(0.1), TURN], [TURN, Lens(0.2), Downscale((20, 40))]]
)
@pytest.mark.parametrize("large", [False, True])
def test_views_of_one_image_equal_views_of_its_copies(photo, stages, large):
    for pictures, views in itertools.product((1, 2), (1, 3, 4, 6)):
        images = torch.cat([photo, 1 - photo])[:pictures]
        images, pipeline = (images if large else images[..., :30, :40]).clone().requires_grad_(), Compose(stages)
        u = torch.rand(pictures * views, pipeline.dims, dtype=double)
        shared, copy_views = pipeline(images, u), pipeline(images.repeat_interleave(views, 0), u)
        torch.testing.assert_close(shared, copy_views, rtol=0, atol=1e-12)
        cotangent = torch.randn_like(shared)
        ours, theirs = (torch.autograd.grad(view, images, cotangent)[0] for view in (shared, copy_views))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "options", [{"kernel": "area"}, {"border": "wrap"}, {"stages": [torch.sin]}, {"stages": Brightness()}]
)
def test_wrong_arguments_are_refused_by_name(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        Compose(**options)

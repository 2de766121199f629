"""Forward equals Pillow bit for bit, backward equals kornia; and the quality in the stages."""

import itertools
from io import BytesIO

import numpy as np
import pytest
import torch
from kornia.enhance import jpeg_codec_differentiable
from PIL import Image, features

from transforms.camera.codec import Jpeg, Webp, jpeg, webp

double = torch.float64
needs_webp = pytest.mark.skipif(not features.check("webp"), reason="Pillow without WebP")
CODECS = [pytest.param(jpeg, "JPEG", id="jpeg"), pytest.param(webp, "WEBP", id="webp", marks=needs_webp)]
every_codec = pytest.mark.parametrize(("function", "format_"), CODECS)


def pillow(images, format_, qualities, **options):
    """The oracle: each picture (C,H,W), rounded to 8 bits, saved and loaded."""
    views = []
    for image, quality in zip(images, qualities, strict=True):
        pixels = (image.double().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
        buffer = BytesIO()
        picture.save(buffer, format_, quality=quality, **options)
        pixels_back = np.asarray(Image.open(buffer).convert(picture.mode))
        views.append(torch.tensor(pixels_back).reshape(pixels.shape).permute(2, 0, 1))
    return torch.stack(views)


def vjp(function, images, weights):
    source = images.detach().clone().requires_grad_()
    return torch.autograd.grad(function(source), source, weights)[0]


@pytest.mark.slow
@every_codec
def test_forward_equals_pillow_bit_for_bit(function, format_, photo):
    sizes = ((80, 120), (37, 51), (16, 16), (5, 3), (1, 1))
    for quality, size, channels in itertools.product((1, 30, 50, 75, 95, 100), sizes, (1, 3)):
        images = torch.cat([photo, photo.flip(-1)])[:, :channels, : size[0], : size[1]]
        view, oracle = function(images, quality), pillow(images, format_, [quality] * 2)
        assert view.dtype == double and torch.equal(view, oracle.double() / 255)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_subsampling_equals_pillow(subsampling, photo):
    view = jpeg(photo, 60, subsampling=subsampling)
    assert torch.equal(view, pillow(photo, "JPEG", [60], subsampling=subsampling) / torch.tensor(255.0, dtype=double))
    if subsampling == "4:2:0":
        assert torch.equal(view, jpeg(photo, 60))


@every_codec
def test_quality_may_differ_between_pictures(function, format_, photo):
    images, qualities = photo.expand(3, -1, -1, -1).float(), [20, 60, 90]
    oracle = pillow(images, format_, qualities).float() / 255
    for quality in (torch.tensor(qualities), torch.tensor(qualities, dtype=double) + 0.3):
        assert torch.equal(function(images, quality), oracle)
    losses = (oracle - images).abs().mean((1, 2, 3))
    assert (losses.diff() < 0).all()


@every_codec
@pytest.mark.parametrize("channels", [1, 3])
def test_gradient_equals_kornia_bit_for_bit(function, format_, channels, photo):
    """Also of black and white: the ends of [0,1] count as inside, or a clamp would stop the gradient there."""
    black_and_white = (torch.rand_like(photo) > 0.5).to(photo)
    images = torch.cat([photo, 1 - photo, photo.flip(-1), black_and_white])[:, :channels, :37, :51].float()
    assert bool((images == images.clamp(0, 1)).all())
    weights, quality = torch.randn_like(images), torch.tensor([30.0, 75.0, 95.0, 80.0])

    def surrogate(x):
        return jpeg_codec_differentiable(x.expand(-1, 3, -1, -1), quality)[:, :channels]

    got, want = (vjp(f, images, weights) for f in (lambda x: function(x, quality), surrogate))
    assert torch.equal(got, want)
    assert got.isfinite().all() and (got.flatten(1).norm(dim=1) > 0.1).all()
    assert (got[3].abs() > 0).float().mean() > 0.99
    outside = vjp(lambda x: function(x, 80), images[3:] * 1.2 - 0.1, weights[3:])
    assert not outside.any(), "the clamp holds what lies outside"


@every_codec
def test_values_are_clamped_and_dtype_and_layout_do_not_matter(function, format_, photo):
    images = (photo * 1.4 - 0.2).float()
    view = function(images, 75)
    assert torch.equal(view, function(images.clamp(0, 1), 75))
    assert torch.equal(view, function(images.to(memory_format=torch.channels_last), 75))
    for dtype in (torch.float16, torch.bfloat16, double):
        typed = images.to(dtype)
        oracle = function(typed.to(torch.promote_types(dtype, torch.float32)), 75).to(dtype)
        view = function(typed, 75)
        assert view.dtype == dtype and torch.equal(view, oracle)


@every_codec
def test_surrogate_runs_only_for_gradients(function, format_, photo, monkeypatch):
    def refuse(*_):
        raise AssertionError("kornia was called")

    monkeypatch.setattr("kornia.enhance.jpeg_codec_differentiable", refuse)
    view = function(photo.float().requires_grad_(), 50)
    assert torch.equal(function(photo.float(), 50), view)
    with pytest.raises(AssertionError, match="kornia"):
        view.sum().backward()


def test_straight_is_the_codec_forward_and_the_identity_backward(photo):
    images, weights = photo.float(), torch.randn_like(photo.float())
    assert torch.equal(jpeg(images, 90, codec="straight"), jpeg(images, 90))
    assert torch.equal(vjp(lambda x: jpeg(x, 90, codec="straight"), images, weights), weights)


@pytest.mark.parametrize("make", [Jpeg, pytest.param(Webp, marks=needs_webp)])
def test_stage_draws_whole_qualities(make, photo):
    stage, u = make((30, 33)), torch.tensor([[0.0], [0.26], [0.5], [1 - 2**-24]])
    assert stage.values(u)[:, 0].tolist() == [30, 31, 32, 33]
    assert stage.dims == 1 and stage.discrete == (0,)
    images = photo.expand(4, -1, -1, -1).float()
    function = {Jpeg: jpeg, Webp: webp}[make]
    assert torch.equal(stage(images, u), function(images, torch.tensor([30, 31, 32, 33])))
    fixed = make((50, 50))
    assert fixed == make(50) and fixed.dims == 0 and fixed.names == () and fixed.discrete == ()
    assert torch.equal(fixed(images, torch.zeros(4, 0)), function(images, 50))


def test_empty_batch_stays_empty():
    images = torch.zeros(0, 3, 8, 8, requires_grad=True)
    assert torch.autograd.grad(jpeg(images, 75).sum(), images)[0].shape == (0, 3, 8, 8)


def test_missing_webp_support_is_named_in_the_error(monkeypatch):
    monkeypatch.setattr(features, "check", lambda name: False)
    for attempt in (lambda: webp(torch.zeros(1, 3, 8, 8)), lambda: Webp(50)):
        with pytest.raises(RuntimeError, match="without WebP"):
            attempt()


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: jpeg(torch.zeros(2, 3, 8, 8), 0), "quality"),
        (lambda: jpeg(torch.zeros(2, 3, 8, 8), float("nan")), "quality"),
        (lambda: jpeg(torch.zeros(2, 3, 8, 8), torch.tensor([1, 2, 3])), "quality"),
        (lambda: jpeg(torch.zeros(2, 4, 8, 8)), "images"),
        (lambda: jpeg(torch.zeros(3, 8, 8)), "images"),
        (lambda: jpeg(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)), "images"),
    ],
)
def test_invalid_arguments_are_refused_by_name(make, argument):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        make()

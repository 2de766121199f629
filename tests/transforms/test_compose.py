"""Composition: a chain of geometric stages is one resample, and every layer of a scene is sampled once."""

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
from transforms.scene import Layer, Scene

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


STAGES = (Affine(degrees=(25, 25), scale=(0.5, 1.2), translate=0.1), Perspective(0.2))
EYE = torch.eye(3, dtype=torch.float64)[None]
SIZE = (80, 120)
TOP, LEFT = 30, 40  # where the patch lies in the scene


@pytest.fixture
def patch(photo):
    """25 x 50 pixels of the photograph."""
    return photo[..., 5:30, 60:110].flip(-1).contiguous()


@pytest.fixture
def u():
    return torch.rand(1, 13, dtype=torch.float64)


def with_patch(base, patch, alpha=None):
    """A scene with the patch on whole pixels of the base."""
    size = (patch.shape[2], patch.shape[3])
    move = EYE.clone()
    move[0, :2, 2] = torch.tensor([-LEFT, -TOP])
    pull = invert(frame(size, base)) @ move @ frame(SIZE, base)
    return Scene((Layer(base, None, EYE), Layer(patch, alpha, pull)), SIZE)


def paste(base, patch, alpha):
    """The same pasted into one picture."""
    picture = base.clone()
    part = picture[..., TOP : TOP + patch.shape[2], LEFT : LEFT + patch.shape[3]]
    part.copy_(alpha * patch + (1 - alpha) * part)
    return picture


@pytest.mark.parametrize("antialias", [False, True])
def test_plain_base_gives_the_view_of_the_pasted_picture(photo, patch, u, antialias):
    base, alpha = torch.full_like(photo, 0.3), torch.rand_like(patch[:, :1])
    view = Compose(STAGES, value=0.3, antialias=antialias)
    oracle = view(paste(base, patch, alpha), u)
    torch.testing.assert_close(view(with_patch(base, patch, alpha), u), oracle, rtol=0, atol=1e-12)


def test_fine_patch_keeps_its_detail_at_close_range(photo):
    # Through an 80 x 120 picture of the scene, half of the patch's pixels would be lost.
    fine = torch.rand(1, 3, 160, 240, dtype=torch.float64)
    scene = Scene((Layer(photo, None, EYE), Layer(fine, None, EYE)), SIZE)
    view = Compose([Affine(scale=(2, 2))])(scene, torch.rand(1, 5, dtype=torch.float64))
    torch.testing.assert_close(view, fine[..., 40:120, 60:180], rtol=0, atol=1e-12)


def test_batch_of_scenes_equals_single_scenes(photo, patch):
    base, patches = torch.cat([photo, 1 - photo]), torch.cat([patch, patch.flip(-1)])
    alpha, u = torch.rand_like(patches[:, :1]), torch.rand(2, 13, dtype=torch.float64)
    view = Compose(STAGES)
    rows = [view(with_patch(base[i : i + 1], patches[i : i + 1], alpha[i : i + 1]), u[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(view(with_patch(base, patches, alpha), u), torch.cat(rows), rtol=0, atol=1e-12)


def test_gradient_reaches_every_texel_and_no_covered_pixel(photo, patch):
    photo.requires_grad_(), patch.requires_grad_()
    centre = Affine(scale=(0.4, 0.4))
    Compose([centre])(with_patch(photo, patch), torch.rand(1, 5, dtype=torch.float64)).sum().backward()
    assert (patch.grad != 0).all()
    inner = photo.grad[..., TOP + 10 : TOP + 15, LEFT + 10 : LEFT + 40]  # away from the edge, soft at this scale
    torch.testing.assert_close(inner, torch.zeros_like(inner), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gradient(patch):
    base, ink = torch.rand(1, 1, 6, 8, dtype=torch.float64), torch.rand(1, 1, 3, 4, dtype=torch.float64)
    alpha, pull = 0.2 + 0.6 * torch.rand_like(ink), EYE * torch.tensor([[1.7], [1.9], [1]], dtype=torch.float64)

    def view(base, ink, alpha, pull, u):
        scene = Scene((Layer(base, None, EYE), Layer(ink, alpha, pull)), (6, 8))
        return Compose(STAGES)(scene, u)

    inputs = (base, ink, alpha, pull, torch.rand(1, 13, dtype=torch.float64))
    assert torch.autograd.gradcheck(view, [value.requires_grad_() for value in inputs])


def test_base_with_an_alpha_is_refused(photo):
    with pytest.raises(ValueError, match="bottom layer of a scene must be opaque"):
        Compose()(Scene((Layer(photo, photo[:, :1], EYE),), SIZE), torch.zeros(1, 0))

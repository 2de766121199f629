"""Laws of every stage in the registry: each is differentiable where it says so, and no gradient is silently zero."""

import pytest
import torch
from torch.autograd import gradcheck

from transforms import (
    Affine,
    Brightness,
    ChannelGain,
    Compose,
    Contrast,
    Crop,
    Cutout,
    Cylinder,
    Defocus,
    Downscale,
    Exposure,
    Flip,
    Gain,
    Gamma,
    GaussianBlur,
    Hue,
    Jpeg,
    Lens,
    Moire,
    MotionBlur,
    OneOf,
    Perspective,
    Quantise,
    ResizePad,
    RollingShutter,
    Saturation,
    SensorNoise,
    Shading,
    Shadow,
    Sometimes,
    ThinPlate,
    Viewpoint,
    Vignette,
    Webp,
    WhiteBalance,
)
from transforms.compose import Geometry, Stage, discrete
from transforms.registry import STAGES

double = torch.float64

#: Of each stage of the registry at least one example, with ranges that are not neutral.
EXAMPLES = {
    "affine": [Affine(degrees=30, scale=(0.4, 1.5), shear=(-5, 10), translate=0.1)],
    "perspective": [Perspective(0.3)],
    "viewpoint": [Viewpoint(yaw=40, pitch=(-10, 30), roll=20, distance=(0.9, 1.5), fov=(20, 60))],
    "crop": [Crop((0.3, 0.9))],
    "flip": [Flip(), Flip(vertical=True)],
    "lens": [Lens(0.2, (0.0, 0.1))],
    "cylinder": [Cylinder((60, 180), turn=20, tilt=20, distance=(2, 5))],
    "thin_plate": [ThinPlate(0.15)],
    "rolling_shutter": [RollingShutter(0.2, (0.02, 0.1), (0.5, 2))],
    "sometimes": [Sometimes(Affine(30, (0.7, 1.3), 10, 0.1), 0.7), Sometimes(Contrast((0.5, 0.9)), 0.7)],
    "one_of": [OneOf([Lens(0.2, 0.1), Crop((0.3, 0.9))]), OneOf([Brightness((0.1, 0.2)), Contrast((0.5, 0.9))])],
    "brightness": [Brightness((-0.3, 0.2))],
    "contrast": [Contrast((0.5, 1.8))],
    "gain": [Gain((0.5, 1.2))],
    "channel_gain": [ChannelGain((0.7, 1.2), 0.1)],
    "gamma": [Gamma((0.4, 2.5))],
    "saturation": [Saturation((0, 1.5))],
    "hue": [Hue(100)],
    "exposure": [Exposure((-2, 0.5))],
    "white_balance": [WhiteBalance(0.5, 0.5)],
    "vignette": [Vignette((0.1, 0.8))],
    "shading": [Shading(0.5), Shading(0.5, grid=5)],
    "shadow": [Shadow((0.2, 0.8))],
    "moire": [Moire((0.1, 0.4))],
    "cutout": [Cutout((0.2, 0.5))],
    "gaussian_blur": [GaussianBlur((0.3, 3))],
    "defocus": [Defocus((0, 5))],
    "motion_blur": [MotionBlur((0, 12), 90)],
    "sensor_noise": [SensorNoise(read=(0.005, 0.02), shot=(0.001, 0.005))],
    "quantise": [Quantise()],
    "jpeg": [Jpeg((30, 95)), Jpeg(75, subsampling="4:4:4")],
    "webp": [Webp((30, 95))],
    "downscale": [Downscale(20), Downscale((10, 30)), Downscale(20, then_upscale=30)],
    "resize_pad": [ResizePad((0.6, 1.1))],
}
#: Maps of the image that are linear but for the clamp, at any fixed u (with a border value of 0).
LINEAR = {
    "gaussian_blur",
    "defocus",
    "motion_blur",
    "affine",
    "perspective",
    "downscale",
    "resize_pad",
    "viewpoint",
    "crop",
    "flip",
    "lens",
    "cylinder",
    "thin_plate",
    "rolling_shutter",
}
#: Stages whose gradient is by design another map's than their own forward's (straight-through, a surrogate).
SURROGATE = {"quantise", "jpeg", "webp"}

CASES = [
    pytest.param(name, stage, id=f"{name}{i or ''}")
    for name, made in EXAMPLES.items()
    for i, stage in enumerate(made)
]
every_stage = pytest.mark.parametrize(("name", "stage"), CASES)


@pytest.fixture
def soft(photo):
    """A photograph, small, within [0.3, 0.7], so that no clamp is near: (1,3,20,30) float64."""
    return 0.3 + 0.4 * photo[..., 10:30, 40:70]


def point(stage, n=1):
    """Points in the middle of the cube, off the kinks."""
    return 0.25 + 0.5 * torch.rand(n, stage.dims, dtype=double)


def test_every_stage_of_the_registry_has_an_example():
    assert list(EXAMPLES) == list(STAGES)
    for name, made in EXAMPLES.items():
        assert made and all(isinstance(stage, STAGES[name]) and isinstance(stage, Stage) for stage in made)


@every_stage
def test_says_what_its_coordinates_are(name, stage):
    assert len(stage.names) == stage.dims
    assert all(label.endswith(")") for label in stage.names), "each coordinate has its unit, in brackets"
    assert stage.values(point(stage, 3)).shape == (3, stage.dims)
    assert set(discrete(stage)) <= set(range(stage.dims))


@every_stage
def test_gradcheck_in_images(name, stage, soft):
    if name in SURROGATE:
        pytest.skip("its own test compares its gradient with the surrogate's")
    u = point(stage)
    small = soft[..., :12, :16].clone().requires_grad_()
    assert gradcheck(lambda images: stage(images, u), (small,), fast_mode=True)


@every_stage
def test_gradcheck_in_u(name, stage, soft):
    measures = [i for i in range(stage.dims) if i not in discrete(stage)]
    if not measures or name in SURROGATE:
        pytest.skip("no coordinate is continuous, or its own test looks at it")
    u = point(stage)

    def view(part):
        full = u.clone()
        full[:, measures] = part
        return stage(soft, full)

    assert gradcheck(view, (u[:, measures].requires_grad_(),), fast_mode=True, atol=1e-4)


@every_stage
def test_no_gradient_is_silently_zero(name, stage, photo):
    u = point(stage, 4).requires_grad_()
    images = photo.expand(4, -1, -1, -1).clone().requires_grad_()
    views = stage(images, u)
    (views * torch.randn(views.shape, dtype=double)).sum().backward()
    assert images.grad.isfinite().all()
    assert (images.grad.flatten(1).norm(dim=1) > 1e-3).all()
    measures = [i for i in range(stage.dims) if i not in discrete(stage)]
    if measures:
        assert u.grad.isfinite().all()
        assert (u.grad[:, measures].abs().amax(0) > 0).all(), [stage.names[i] for i in measures]


@pytest.mark.parametrize(("name", "stage"), [case for case in CASES if case.values[0] in LINEAR])
def test_linear_stages_equal_their_adjoint(name, stage, photo):
    for kernel in ("nearest", "bilinear", "bicubic"):
        pipeline = stage
        if isinstance(stage, Geometry):
            pipeline = Compose([stage], kernel, value=0.0)
        u = point(stage)
        # The values are small and the picture mid-grey, so that bicubic's clamp stays away.
        x = (0.4 + 0.01 * torch.rand_like(photo)).requires_grad_()
        base = pipeline(torch.zeros_like(photo), u)
        image = pipeline(x, u)
        v = torch.randn(image.shape, dtype=double)
        (pulled,) = torch.autograd.grad(image, x, v)
        assert not base.any()
        left, right = (image * v).sum(), (x * pulled).sum()
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@every_stage
def test_a_view_depends_on_its_own_row_alone(name, stage, photo):
    images = torch.cat([photo, photo.flip(-1), 1 - photo]).float()
    u = torch.rand(3, stage.dims)
    rows = [stage(images[i : i + 1], u[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(stage(images, u), torch.cat(rows), rtol=0, atol=1e-5)
    assert torch.equal(stage(images, u), stage(images.clone(), u.clone()))


@every_stage
def test_views_are_images(name, stage):
    for channels in (1, 3):
        images = (torch.rand(4, channels, 80, 120) > 0.5).float()
        views = stage(images, torch.rand(4, stage.dims))
        assert views.shape[:2] == images.shape[:2] and views.dtype == images.dtype
        assert views.min() >= 0 and views.max() <= 1


@every_stage
def test_dtype_is_the_images(name, stage, photo):
    u = torch.rand(1, stage.dims)
    for dtype, bound in ((torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float64, 1e-4)):
        views = stage(photo.to(dtype), u)
        assert views.dtype == dtype
        oracle = stage(photo.to(dtype).float(), u).double()
        assert (views.double() - oracle).abs().mean() < bound

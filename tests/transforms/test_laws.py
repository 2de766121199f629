"""Laws of every stage in the registry: it is differentiable where it declares it, and no gradient is silently 0."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from tests.helpers.slopes import assert_slope
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Jpeg, Perspective, Viewpoint, camera, colour
from transforms.compose import Geometry, Stage
from transforms.geometry import Crop, Cylinder, DenseGrid, Flip, Lens, RollingShutter, ThinPlate
from transforms.registry import STAGES
from transforms.wrappers import OneOf, Sometimes

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
    "dense_grid": [DenseGrid([[[-0.3, -0.6], [0.5, -0.3]], [[-0.7, 0.4], [0.4, 0.6]]], (0.2, 1))],
    "rolling_shutter": [RollingShutter(0.2, (0.02, 0.1), (0.5, 2))],
    "sometimes": [Sometimes(Affine(30, (0.7, 1.3), 10, 0.1), 0.7), Sometimes(Contrast((0.5, 0.9)), 0.7)],
    "one_of": [OneOf([Lens(0.2, 0.1), Crop((0.3, 0.9))]), OneOf([Brightness((0.1, 0.2)), Contrast((0.5, 0.9))])],
    "brightness": [Brightness((-0.3, 0.2))],
    "contrast": [Contrast((0.5, 1.8))],
    "gain": [colour.Gain((0.5, 1.2))],
    "channel_gain": [colour.ChannelGain((0.7, 1.2), 0.1)],
    "gamma": [colour.Gamma((0.4, 2.5))],
    "saturation": [colour.Saturation((0, 1.5))],
    "hue": [colour.Hue(100)],
    "exposure": [colour.Exposure((-2, 0.5))],
    "white_balance": [colour.WhiteBalance(0.5, 0.5)],
    "vignette": [colour.Vignette((0.1, 0.8))],
    "shading": [colour.Shading(0.5), colour.Shading(0.5, grid=5)],
    "shadow": [colour.Shadow((0.2, 0.8))],
    "moire": [colour.Moire((0.1, 0.4)), colour.Moire((0.1, 0.4), shift=0)],
    "reflection": [colour.Reflection((0.01, 0.1), (0.05, 0.3))],
    "cutout": [colour.Cutout((0.2, 0.5))],
    "gaussian_blur": [camera.GaussianBlur((0.3, 3))],
    "defocus": [camera.Defocus((0, 5))],
    "motion_blur": [camera.MotionBlur((0, 12), 90)],
    "sensor_noise": [camera.SensorNoise(read=(0.005, 0.02), shot=(0.001, 0.005))],
    "quantise": [camera.Quantise()],
    "jpeg": [Jpeg((30, 95)), Jpeg(75, subsampling="4:4:4")],
    "webp": [camera.Webp((30, 95))],
    "downscale": [Downscale(20), Downscale((10, 30)), Downscale((10, 30), then_size=20)],
    "resize_pad": [camera.ResizePad((0.6, 1.1))],
    "pixel_crop": [camera.PixelCrop(5)],
    "median_pool": [camera.MedianPool(9)],
}
#: Maps of the image that are linear but for the clamp, at any fixed u (with a border value of 0).
LINEAR = {name for name, (stage, *_) in EXAMPLES.items() if isinstance(stage, Geometry)} - {"sometimes", "one_of"}
LINEAR |= {"gaussian_blur", "defocus", "motion_blur", "downscale", "resize_pad", "pixel_crop"}
#: Stages whose gradient is by design another map's than their own forward's (straight-through, a surrogate).
SURROGATE = {"quantise", "jpeg", "webp"}

CASES = [
    pytest.param(name, stage, id=f"{name}{i or ''}")
    for name, stages in EXAMPLES.items()
    for i, stage in enumerate(stages)
]
PIPELINE = Compose([Perspective(0.1), *EXAMPLES["affine"], Downscale(10), Brightness(0.1)])
CASES.append(pytest.param("compose", PIPELINE, id="compose"))
CASES.append(pytest.param("bicubic", Compose([Perspective(0.3)], kernel="bicubic"), id="bicubic"))
every_stage = pytest.mark.parametrize(("name", "stage"), CASES)


@pytest.fixture
def soft(photo):
    """A photograph, small, within [0.3, 0.7], so that no clamp is near: (1,3,20,30) float64."""
    return 0.3 + 0.4 * photo[..., 10:30, 40:70]


def point(stage, n=1):
    """Points in the middle of the cube, off the kinks."""
    return 0.25 + 0.5 * torch.rand(n, stage.dims, dtype=double)


def test_every_stage_of_the_registry_has_an_example():
    assert EXAMPLES.keys() == STAGES.keys()
    for name, stages in EXAMPLES.items():
        assert stages and all(isinstance(stage, STAGES[name]) and isinstance(stage, Stage) for stage in stages)


@every_stage
def test_coordinates_have_unique_names_units_and_values(name, stage):
    assert len(stage.names) == stage.dims
    assert len(set(stage.names)) == stage.dims
    assert all(label.endswith(")") for label in stage.names), "each coordinate has its unit, in brackets"
    assert stage.values(point(stage, 3)).shape == (3, stage.dims)
    assert set(Compose([stage]).discrete) <= set(range(stage.dims))
    with pytest.raises(AttributeError):  # frozen
        stage.names = ()


@every_stage
def test_gradcheck_in_images(name, stage, soft):
    if name in SURROGATE:
        pytest.skip("its own test compares its gradient with the surrogate's")
    u = point(stage)
    small = soft[..., :12, :16]
    assert_slope(lambda images: stage(images, u), small + 1e-3 * torch.rand_like(small))  # a median has no ties


@every_stage
def test_gradcheck_in_u(name, stage, soft):
    measures = [i for i in range(stage.dims) if i not in Compose([stage]).discrete]
    if not measures or name in SURROGATE:
        pytest.skip("no coordinate is continuous, or it has a test of its own")
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
    measures = [i for i in range(stage.dims) if i not in Compose([stage]).discrete]
    if measures:
        assert u.grad.isfinite().all()
        assert (u.grad[:, measures].abs().amax(0) > 0).all(), [stage.names[i] for i in measures]


@pytest.mark.parametrize(
    ("stage", "kernel"),
    [
        (stage, kernel)
        for name in sorted(LINEAR)
        for stage in EXAMPLES[name]
        for kernel in (["nearest", "bilinear", "bicubic"] if isinstance(stage, Geometry) else [None])
    ],
    ids=str,
)
def test_linear_stages_equal_their_adjoint(stage, kernel, photo):
    pipeline = stage if kernel is None else Compose([stage], kernel, value=0.0)
    u = point(stage)
    # The values are small and the picture mid-grey, so that bicubic's clamp stays away.
    x = (0.4 + 0.01 * torch.rand_like(photo)).requires_grad_()
    base = pipeline(torch.zeros_like(photo), u)
    image = pipeline(x, u)
    v = torch.randn(image.shape, dtype=double)
    (slope,) = torch.autograd.grad(image, x, v)
    assert not base.any()
    left, right = (image * v).sum(), (x * slope).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@every_stage
def test_a_view_depends_on_no_other_row(name, stage, photo):
    images = torch.cat([photo, photo.flip(-1), 1 - photo]).float()
    u = torch.rand(3, stage.dims)
    rows = [stage(images[i : i + 1], u[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(stage(images, u), torch.cat(rows), rtol=0, atol=1e-5)
    assert torch.equal(stage(images, u), stage(images.clone(), u.clone()))


def test_a_view_through_a_lens_does_not_depend_on_views_that_shrink(photo):
    """Beyond the fold of a lens nothing is seen: a level of the pyramid is taken from the neighbours there."""
    fisheye = Compose([Lens(k1=(-0.5, 0.0)), Affine(degrees=15, scale=(0.6, 1.4))])
    u = torch.rand(16, fisheye.dims, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    batch, rows = fisheye(noise, u), torch.cat([fisheye(noise, row[None]) for row in u])
    torch.testing.assert_close(batch, rows, rtol=0, atol=1e-5)


@pytest.mark.gpu
@every_stage
@pytest.mark.parametrize("place", ["cpu", "cuda"], ids=["u_on_host", "u_on_gpu"])
def test_gpu_and_cpu_agree(name, stage, photo, place):
    """In the view, and in the gradients by pixels and by coordinates."""
    u, results = point(stage, 4), {}
    several = (photo + 1e-3 * torch.rand(4, *photo.shape[1:], dtype=double)).clamp(0, 1)  # a median has no ties
    for device in ("cpu", "cuda"):
        images = several.to(device, copy=True).requires_grad_()
        w = u.to("cpu" if device == "cpu" else place, copy=True).requires_grad_()
        views = stage(images, w)
        assert views.device == images.device
        weights = torch.linspace(-1, 1, views.numel(), dtype=double).view(views.shape).to(device)
        (views * weights).sum().backward()
        slopes = torch.zeros_like(w) if w.grad is None else w.grad
        results[device] = [value.detach().cpu() for value in (views, images.grad, slopes)]
    for expected, actual in zip(results["cpu"], results["cuda"], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-8 * float(expected.norm() + 1))


@every_stage
def test_views_are_images_of_the_same_dtype(name, stage, photo):
    for channels in (1, 3):
        images = (torch.rand(4, channels, 80, 120) > 0.5).float()
        views = stage(images, torch.rand(4, stage.dims))
        assert views.shape[:2] == images.shape[:2] and views.dtype == images.dtype
        assert views.min() >= 0 and views.max() <= 1
    u = torch.rand(1, stage.dims)
    types = ((torch.float16, 2e-2), (torch.bfloat16, 1e-1), (torch.float64, 1e-4), (torch.float32, 1e-4))
    for dtype, tolerance in types:
        views = stage(photo.to(dtype), u.double() if dtype == torch.float32 else u)
        assert views.dtype == dtype
        oracle = stage(photo.to(dtype).float(), u).double()
        assert (views.double() - oracle).abs().mean() < tolerance


#: Neutral settings, for a picture of 40 x 60, of the stages that are not neutral by default; none for files.
NEUTRAL = {
    "perspective": [Perspective(0)],
    "viewpoint": [Viewpoint(fov=(5, 120))],
    "crop": [Crop((1, 1), (1, 1))],
    "flip": [Flip(0)],
    "cylinder": [Cylinder(), Cylinder(distance=(1, 9))],
    "thin_plate": [ThinPlate(0)],
    "sometimes": [Sometimes(colour.Hue(), 0.5)],
    "one_of": [OneOf([Contrast(), Brightness()])],
    "jpeg": [],
    "webp": [],
    "downscale": [Downscale(40), Downscale((40, 40))],
    "resize_pad": [camera.ResizePad((1, 1))],
    "median_pool": [camera.MedianPool(40)],
}
COLOURS = [name for name, kind in STAGES.items() if kind.__module__.startswith("transforms.colour.")]
NEUTRAL_CASES = [(name, stage) for name in STAGES for stage in NEUTRAL.get(name, [None])]
NEUTRAL_CASES = [(name, STAGES[name]() if stage is None else stage) for name, stage in NEUTRAL_CASES]
NEUTRAL_CASES.append(("compose", Compose([stage for _, stage in NEUTRAL_CASES])))


def colours():
    """Every colour of nine levels, (1,3,27,27) float64: black, white, greys, ties between channels, the knee of sRGB;
    levels of 8 bits, of which sums are rounded, and dyadic ones, of which they are not."""
    eight_bit = torch.tensor([0, 1, 37, 101, 254, 255], dtype=double) / 255
    levels = torch.cat([eight_bit, torch.tensor([0.040448236277107606, 0.25, 0.5], dtype=double)])
    return torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 27, 27)


@pytest.mark.parametrize(("name", "stage"), NEUTRAL_CASES)
def test_neutral_ranges_are_the_identity_and_pass_every_gradient(name, stage, photo):
    photo = photo[..., ::2, ::2]
    corners = (torch.rand_like(photo) > 0.5).double()  # a clamp would stop the gradient there
    cases = [(photo, 1e-12, 1e-9), (corners, 1e-12, 1e-9), (corners.float(), 1e-5, 1e-3)]
    cases += [(corners.to(dtype), 1e-2, 2e-2) for dtype in (torch.bfloat16, torch.float16)]
    if name in COLOURS:
        cases += [(photo[:, :1], 1e-12, 1e-12), (photo[:, :1].float(), 3e-7, 1e-6), (photo.float(), 3e-7, 1e-6)]
        cases += [(colours(), 1e-12, 1e-12), (colours().float(), 1e-6, 1e-6)]
    for images, tolerance, slope in cases:
        leaf, v = images.clone().requires_grad_(), torch.randn_like(images)
        view = stage(leaf, torch.rand(1, stage.dims))
        torch.testing.assert_close(view, images, rtol=0, atol=tolerance)
        torch.testing.assert_close(torch.autograd.grad(view, leaf, v)[0], v, rtol=slope, atol=slope)
    if name in COLOURS:
        for images in (photo.bfloat16(), photo.half()):
            torch.testing.assert_close(stage(images, torch.rand(1, stage.dims)), images, rtol=1e-3, atol=1e-6)


#: Stages of which black has a gradient, and others, some with extreme ranges.
LIT = [colour.Exposure(2), colour.WhiteBalance(0.5, 0.5), colour.Vignette((0.1, 0.9)), colour.Shading(1, 4)]
LIT += [colour.Moire((0.5, 1), (0.02, 0.2)), colour.Reflection((0, 0.2), (0, 0.2))]
UNLIT = [colour.Gain((0.5, 2)), colour.Saturation((0, 2)), colour.Hue(180)]
UNLIT += [colour.Shadow((0.5, 1), softness=(0.001, 0.1))]
UNLIT += [colour.Moire((1, 1), (0.5, 0.5), 0, (0.5, 0.5))]  # no light at all at the centre
UNLIT += [stage for name in COLOURS for stage in EXAMPLES[name]]


@pytest.mark.parametrize("stage", [*LIT, *UNLIT], ids=lambda stage: type(stage).__name__)
def test_gradients_are_finite_at_every_kink(stage):
    for dtype in (torch.bfloat16, torch.float16, torch.float32, double):
        images = colours().to(dtype).repeat(4, 1, 1, 1)
        images[:, 0, 0, :2] += torch.tensor([1e-30, 1e-40]).to(dtype)  # so small that a square underflows
        images, u = images.requires_grad_(), torch.rand(4, stage.dims).requires_grad_()
        view = stage(images, u)
        view.double().sum().backward()
        assert view.dtype == dtype and all(value.isfinite().all() for value in (view, images.grad, u.grad))
        if isinstance(stage, colour.Hue):
            assert (images.grad.abs().amax(1) > 0).all()
        if stage in LIT:
            assert (images.grad[images < 0.3] > 0).all()


#: Values that no range takes, and a number, which stands for a range about 0 only.
NO_RANGES = [(10, -10), math.nan, (0, math.inf), (3, math.nan), (1, 2, 3), "10", 10**400, True, (True, True)]
NO_RANGES += [{1: 2, 2: 3}, ("1", "2"), (0, 1e39), (-1e9, 1e9)]
#: Stage and further arguments -> values that are refused by the argument's name.
BAD_VALUES = {
    "perspective": {"jitter": [0.5, -0.1, math.nan]},
    "crop": {"scale": [(0, 1), (0.5, 1.1)], "ratio": [(0, 1), ("1", "2")]},
    "flip": {"p": [1.1, "often"]},
    "cylinder": {"arc": [(-10, 10), 361], "tilt": [61], "distance": [0.9, ("1", "2")]},
    "thin_plate": {"jitter": [0.5, math.nan], "grid": [1, 3.0]},
    "dense_grid": {"grid": [3, [], [[[0, math.nan]]], [[[0, 101]]], [[0, 0]], [[["a", "b"]]], [[[0, 0], [0]]]]},
    "shading": {"strength": [20], "grid": [0, 2.0, 10**6]},
    "cutout": {"value": [2, True]},
    "quantise": {"bits": [0, 8.0]},
    "jpeg": {"quality": [0, (80, 30), (30, 101), 75.5], "subsampling": ["4:1:1"], "codec": ["best"]},
    "downscale": {"size": [2**31, 0, -1, 2.5, (0, 4), (8, 4), (4, 8, 16), (4.0, 8.0)]},
    "resize_pad": {"value": [True, 2], "kernel": ["cubic"]},
    "pixel_crop": {"margin": [-1, 2.0, True, 10**6]},
    "median_pool": {"size": [0, 2.0, 10**6]},
}
#: Arguments of which the last breaks a rule between them, and the message.
BAD_PAIRS = [
    ("crop", {"ratio": (1.5, 2), "scale": (0.5, 0.9)}, "`scale` must be at most 0.6667"),
    ("crop", {"ratio": (0.5, 0.8), "scale": (0.5, 0.9)}, "`scale` must be at most 0.8"),
    ("viewpoint", {"yaw": 60, "fov": (40, 120)}, "`distance` must be above 1.5"),
    ("cylinder", {"arc": 90, "turn": 10}, r"`turn` must lie within half of the smallest arc, \[-0, 0\]"),
    ("cylinder", {"arc": (20, 90), "turn": 10.1}, "`turn` must"),
    ("thin_plate", {"jitter": 0.5}, r"`jitter` must lie in \[0, 0.5\)"),
    ("downscale", {"size": 20, "then_size": 2**40}, "`then_size` must"),
    *(("downscale", {"size": (9, 40), "then_size": side}, "`then_size` must") for side in (0, -1, 40.0, (40, 50))),
    ("downscale", {"size": 32, "kernel": "bicubic"}, "`kernel` must be one of"),
    ("downscale", {"size": (9, 40), "then_kernel": "bicubic"}, "`then_kernel` must be one of"),
    ("downscale", {"size": 32, "then_kernel": "cv2_area"}, "`then_kernel` must have a `then_size`"),
]


def test_a_constructor_refuses_invalid_arguments_by_name():
    rows = [(name, key, value) for name, keys in BAD_VALUES.items() for key, bad in keys.items() for value in bad]
    for name, part in STAGES.items():
        coordinates = (coordinate for coordinate in getattr(part, "coordinates", ()) if coordinate.field)
        for _, key, low, high, is_pair in coordinates:
            beyond = [(low - 1, high), (low, high * 1.01), *([(low + high) / 2] if is_pair or low >= 0 else [])]
            rows += [(name, key, value) for value in (*NO_RANGES, *beyond)]
    for name, arguments, message in [*((n, {k: v}, f"`{k}` must") for n, k, v in rows), *BAD_PAIRS]:
        with pytest.raises(ValueError, match=message):
            pytest.fail(f"not refused: {STAGES[name](**arguments)}")

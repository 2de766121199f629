"""Reading between pixels: against `grid_sample`, scikit-image and Pillow, tap by tap, and the laws of a read."""

import itertools
from functools import partial

import numpy as np
import pytest
import skimage.transform
import torch
import torch.nn.functional as F
from PIL import Image

from tests.helpers.sampling import mostly_slow
from tests.helpers.slopes import assert_slope
from transforms import Affine, Compose, Perspective, warp_affine, warp_perspective
from transforms.sampling.homography import invert
from transforms.sampling.read import Resampling, read
from transforms.sampling.warp import warp

double = torch.float64
BORDERS = ["constant", "replicate", "reflect", "reflect101"]
KERNELS = ["nearest", "bilinear", "bicubic"]
borders = pytest.mark.parametrize("border", BORDERS)


def sample(images, points, visible=None, **options):
    """`images` (B,C,H,W) read at `points` (N,h,w,2) of the pixel frame, and the border value where not `visible`."""
    places = (2 * points + 1).to(torch.promote_types(images.dtype, points.dtype))
    w = torch.ones_like(places[..., 0]) if visible is None else visible.to(places)
    return warp(images, lambda *_: (places.clone(), w), points.shape[1:3], Resampling(**options))


@pytest.mark.slow
@borders
def test_equals_grid_sample_and_its_gradients(photo, border):
    for kernel, size in itertools.product(KERNELS, ((80, 120), (5, 4), (1, 9), (1, 1))):
        images = photo[..., : size[0], : size[1]].clone().requires_grad_()
        points = (torch.rand(2, 40, 50, 2, dtype=double) * 3 - 1) * torch.tensor(size[::-1], dtype=double)
        points.requires_grad_()
        options = {"kernel": kernel, "border": border, "value": 0.3}
        fast, slow = (sample(images, points, deterministic=flag, **options) for flag in (False, True))
        torch.testing.assert_close(slow, fast, rtol=0, atol=1e-11)
        v = torch.randn_like(fast)
        leaves = [images] if kernel == "nearest" else [images, points]
        for ours, theirs in zip(*(torch.autograd.grad(result, leaves, v) for result in (slow, fast)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("border", "mode"), [("constant", "constant"), ("replicate", "edge"), ("reflect", "symmetric")]
)
def test_keys_one_half_equals_scikit_image_cubic(photo, border, mode):
    matrix = np.array([[1.1, 0.3, -12.3], [-0.2, 0.9, 17.7], [0.0, 0.0, 1.0]])
    image = photo[0, 0].numpy()
    oracle = skimage.transform.warp(image, np.linalg.inv(matrix), None, (70, 90), 3, mode, 0.7, clip=False)
    ours = warp_affine(photo, torch.tensor(matrix)[:2], (70, 90), kernel="keys(-0.5)", border=border, value=0.7)
    np.testing.assert_allclose(ours[0, 0].numpy(), oracle, rtol=0, atol=1e-12)


def test_keys_one_equals_pillow_transform(photo):
    # Pillow takes the inverse map, in edge coordinates, and has a hard border: compare the interior.
    inverse = np.array([[0.9, 0.1, 5.0], [-0.05, 0.95, 6.0]])
    image = photo[0, 0].float().numpy()
    oracle = np.asarray(
        Image.fromarray(image).transform((120, 80), Image.Transform.AFFINE, inverse.ravel(), Image.Resampling.BICUBIC)
    )
    shift = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    pull = shift @ np.vstack([inverse, [0, 0, 1]]) @ np.linalg.inv(shift)
    ours = warp_affine(photo, torch.tensor(np.linalg.inv(pull)[:2]), (80, 120), kernel="keys(-1)")[0, 0].numpy()
    np.testing.assert_allclose(ours[4:-12, 4:-20], oracle[4:-12, 4:-20], rtol=0, atol=2e-6)


@borders
def test_gradcheck(border):
    images, points = torch.rand(1, 2, 5, 6, dtype=double), torch.rand(1, 4, 4, 2, dtype=double) * 8 - 1.5
    for kernel in ("bilinear", "bicubic", "keys(-0.5)"):
        read = partial(sample, kernel=kernel, border=border, value=0.2, deterministic=True)
        assert_slope(partial(read, points=points), images)
        assert_slope(partial(read, images), points)


@pytest.mark.parametrize("kernel", mostly_slow(["bilinear", "bicubic"], 2))
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_deterministic_pipeline_repeats_its_gradient_bit_for_bit(photo, kernel, device):
    pipeline = Compose([Affine(degrees=20, scale=(0.3, 1.2)), Perspective(0.2)], kernel, deterministic=True)
    images, u = photo.float().to(device), torch.rand(8, pipeline.dims, device=device)
    grads = []
    for _ in range(3):
        leaf = images.clone().requires_grad_()
        pipeline(leaf, u).square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])
    leaf = images.clone().requires_grad_()
    Compose(pipeline.stages, kernel)(leaf, u).square().sum().backward()
    torch.testing.assert_close(grads[0], leaf.grad, rtol=1e-3, atol=1e-3)


HUGE = [1e6, 1e30, float("inf")]
kernels = pytest.mark.parametrize("kernel", KERNELS)


def shrink(times, turn=0.0):
    """The (2,3) matrix that reduces by `times`: output pixels cover whole blocks when `turn` (radians) is 0."""
    c, s = np.cos(turn) / times, np.sin(turn) / times
    return torch.tensor([[c, -s, c / 2 - 0.5], [s, c, c / 2 - 0.5]], dtype=torch.float64)


# Output to source: w falls to the right, and the columns beyond 10 to 14 are behind the camera.
PULL = torch.tensor([[1.03, 0.21, 0.37], [0.11, 0.97, 0.73], [-0.103, 0.027, 1.0]], dtype=torch.float64)
HALF_BEHIND = invert(PULL)
X, Y = torch.meshgrid(torch.arange(24.0), torch.arange(16.0), indexing="xy")
BEHIND = 1 - 0.103 * X + 0.027 * Y < 0


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("times", [2, 4, 8])
def test_antialias_at_a_power_of_two_is_the_mean_of_the_pixels(photo, border, times):
    # Also past the edges: 80 x 120 pixels are 10 x 15 of the coarsest.
    view = warp_affine(photo, shrink(times), (14, 20), antialias=True, border=border, value=0.7)
    full_size = warp_affine(photo, shrink(1), (14 * times, 20 * times), border=border, value=0.7)
    mean = F.avg_pool2d(full_size, times)
    inside = (slice(None), slice(None), slice(0, 80 // times), slice(0, 120 // times))
    torch.testing.assert_close(view[inside], mean[inside], rtol=0, atol=1e-12)
    # Outside, replicate repeats the mean of the outermost pixels, and reflect101's mirror stands within one.
    if border in ("constant", "reflect"):
        torch.testing.assert_close(view, mean, rtol=0, atol=1e-12)


def test_antialias_depends_on_nothing_beyond_the_image(photo):
    # Towards the horizon the reduction is unbounded, but the image does not reach there.
    near = torch.tensor([[0.3, 0, 0], [0, 0.3, 0], [-0.06, 0, 1]], dtype=torch.float64)
    plain, smooth = (
        warp_perspective(photo[..., :4, :4], invert(near), (16, 24), antialias=flag) for flag in (False, True)
    )
    assert torch.equal(plain, smooth)


@borders
@kernels
@pytest.mark.parametrize("antialias", [False, True])
def test_beyond_the_horizon_is_exactly_the_border_value_without_a_gradient(photo, border, kernel, antialias):
    value = torch.tensor([0.1, 0.6, 0.9], dtype=torch.float64)
    options = {"border": border, "kernel": kernel, "value": value, "antialias": antialias}
    images, matrix = photo.requires_grad_(), HALF_BEHIND.clone().requires_grad_()
    view = warp_perspective(images, matrix, (16, 24), **options)
    if not antialias:
        for gradient in torch.autograd.grad(view[..., BEHIND].sum(), (images, matrix)):
            assert (gradient == 0).all()
    view = view.detach()
    assert view.isfinite().all()
    border_pixels = view[0][:, BEHIND & (X > 15 if antialias else True)]  # an antialiased pixel may see either side
    rounding = 1e-15 if antialias else 0  # of the mean
    torch.testing.assert_close(border_pixels, value[:, None].expand_as(border_pixels), rtol=0, atol=rounding)


def test_view_in_front_of_the_horizon_equals_scikit_image(photo):
    oracle = skimage.transform.warp(photo[0, 0].numpy(), PULL.numpy(), None, (16, 24), 1, "constant", 0.7)
    view = warp_perspective(photo, HALF_BEHIND, (16, 24), value=0.7)[0, 0]
    torch.testing.assert_close(view[~BEHIND], torch.from_numpy(oracle)[~BEHIND], rtol=0, atol=1e-12)


@borders
@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coordinates_of_any_size_give_values_within_the_image_range(photo, border, kernel, dtype):
    images = photo.to(dtype).requires_grad_()
    far = torch.tensor([*HUGE, *(-h for h in HUGE)], dtype=dtype)
    near = torch.full_like(far, 3.3)
    points = torch.stack([torch.cat([far, near, far]), torch.cat([near, far, far])], -1)[None, None]
    views = sample(images, points, kernel=kernel, border=border, value=0.7)
    views.sum().backward()
    assert views.isfinite().all() and images.grad.isfinite().all()
    assert ((views > -0.3) & (views < 1.3)).all()  # bicubic overshoots a little


@kernels
@pytest.mark.parametrize("far", HUGE)
def test_distant_points_have_the_border_value_or_the_edge_pixel(photo, kernel, far):
    points = torch.tensor([[far, 3.0], [5.0, -far]], dtype=torch.float64)[None, None]
    constant = sample(photo, points, kernel=kernel, value=0.7)
    torch.testing.assert_close(constant, torch.full_like(constant, 0.7))
    edge = torch.stack([photo[0, :, 3, -1], photo[0, :, 0, 5]], -1)
    torch.testing.assert_close(sample(photo, points, kernel=kernel, border="replicate")[0, :, 0], edge)


@pytest.mark.parametrize("border", ["replicate", "reflect", "reflect101"])
def test_image_of_one_pixel_is_constant(border):
    points = torch.cat([10 * torch.randn(1, 3, 5, 2), torch.zeros(1, 1, 5, 2)], 1)
    views = sample(torch.full((1, 1, 1, 1), 0.3), points.requires_grad_(), border=border)
    torch.testing.assert_close(views, torch.full((1, 1, 4, 5), 0.3))
    views.sum().backward()
    assert points.grad.isfinite().all()


@borders
@kernels
@pytest.mark.parametrize(("images", "views"), [(1, 9), (2, 5), (3, 2), (5, 1)])
def test_views_of_several_images_equal_those_of_one_image(border, kernel, images, views):
    pictures, weights = torch.rand(images, 3, 20, 24), torch.randn(images * views, 3, 20, 24)
    grid = F.affine_grid(torch.eye(2, 3) + torch.randn(images * views, 2, 3) / 4, [images * views, 3, 20, 24], False)

    def read_batch(source, places):
        return read(source, places, Resampling(kernel, border))

    def read_rows(source, places):
        return torch.cat(
            [read_batch(image, place) for image, place in zip(source.split(1), places.split(views), strict=True)]
        )

    def oracle(source, places):
        size = 1 if border != "reflect101" else torch.tensor([24 / 23, 20 / 19])
        padding = {"constant": "zeros", "replicate": "border"}.get(border, "reflection")
        options = {"padding_mode": padding, "align_corners": border == "reflect101"}
        return F.grid_sample(source.repeat_interleave(views, 0), places * size, kernel, **options)

    results = []
    for way in (read_batch, read_rows, oracle):
        source, places = pictures.clone().requires_grad_(), grid.clone().requires_grad_()
        out = way(source, places)
        results.append((out.detach(), *torch.autograd.grad((out * weights).sum(), (source, places))))
    for ours, row_result, near in zip(*results, strict=True):
        assert torch.equal(ours, row_result)
        torch.testing.assert_close(ours, near, rtol=1e-5, atol=1e-4)

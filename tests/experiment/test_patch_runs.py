"""A patch through whole pipelines: printed, bent and laid in several pictures, each from several views."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, Away
from attacks.perturbations.patch.patch import Patch
from attacks.perturbations.patch.placement import Placements
from attacks.schema.groups import PatchConfig
from attacks.study.make import make
from attacks.study.perturbation import patch
from attacks.study.printer import fixed, place_of
from tests.helpers.fellows import together
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import estimate
from transforms import Affine, Compose, Perspective
from transforms.colour import ChannelGain
from transforms.geometry import Cylinder, Placement
from transforms.wrappers import OnLayers

double = torch.float64
SIZE = (14, 16)
#: Two places in each of three pictures, a different pair in each.
PAIR = torch.tensor(
    [[[0.2, 0.2], [0.6, 0.25], [0.55, 0.7], [0.15, 0.6]], [[0.5, 0.1], [0.9, 0.15], [0.85, 0.5], [0.45, 0.4]]],
    dtype=double,
)
QUADS = torch.stack([PAIR, PAIR.flip(1) * 0.9 + 0.03, PAIR.flip(0)])
SHEET = OnLayers([ChannelGain((0.8, 1.2), 0.1), Cylinder((30, 60))], Placement((0.4, 0.6), 30))
VIEWS = Compose([SHEET, Affine(20), Perspective(0.2)])


def rand(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=double)


def cover(kind):
    if kind == "all":
        return None
    if kind == "region":
        return rand(3, 2, 4, 5, seed=4)
    cover_mask = torch.ones(3, 2, 1, 1, dtype=double)  # the second picture has one place only
    cover_mask[1, 1] = 0
    return cover_mask


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", "fewer", "region"])
@pytest.mark.parametrize("shape", ["rectangle", "ellipse"])
def test_pictures_with_several_views_are_independent(kind, shape):
    if (kind, shape) == ("region", "ellipse"):
        pytest.skip("a region has a shape of its own")
    poster = Patch((4, 5), Placements(QUADS, cover(kind)), shape=shape)
    images, texture, u = rand(3, 3, *SIZE), rand(1, 3, 4, 5, seed=1), rand(6, VIEWS.dims, seed=2)
    result = VIEWS(poster.scene(images, texture), u)
    for i in range(3):
        single_scene = poster.take(torch.tensor([i])).scene(images[i, None], texture)
        torch.testing.assert_close(
            result[2 * i : 2 * i + 2], VIEWS(single_scene, u[2 * i : 2 * i + 2]), rtol=0, atol=1e-12
        )
    rows = poster.scene(images, texture.expand(3, -1, -1, -1))
    torch.testing.assert_close(VIEWS(rows, u), result, rtol=0, atol=1e-12)


def encoder():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(168, 6)).to(double).eval()


def estimate_of(net, chunk, **world):
    """One step's estimate of a patch in three pictures."""
    poster = Patch((4, 5), Placements(QUADS, cover("fewer")), shape="ellipse")
    images, anchor, texture = rand(3, 3, *SIZE), rand(3, 6, seed=5) - 0.5, rand(1, 3, 4, 5, seed=1)

    def scene(part, indices):
        return poster.take(indices).scene(images[indices], part)

    def loss(pixels, indices):
        return Away()(net(pixels), F.normalize(anchor[indices], dim=1))

    u = rand(6, VIEWS.dims, seed=2)
    return estimate(EOT(VIEWS, views=6, chunk=chunk), texture, scene, loss, u, count=3, **world)


@pytest.mark.parametrize("chunk", mostly_slow([4, 1, 7], 3))
def test_the_pass_size_does_not_change_the_result(chunk):
    net = encoder()
    result, full = estimate_of(net, chunk), estimate_of(net, 100)
    torch.testing.assert_close(result.grad, full.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.mean, full.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", mostly_slow([2, 4], 2))
def test_the_number_of_processes_does_not_change_the_result(size):
    net = encoder()
    single = estimate_of(net, 5)
    for result in together(size, lambda world: estimate_of(net, 5, world=world)):
        torch.testing.assert_close(result.grad, single.grad, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(result.mean, single.mean, rtol=1e-12, atol=1e-12)


def test_without_views_a_patch_is_sampled_by_the_same_kernel():
    # Otherwise one arm would differ between runs with one seed on CUDA.
    views = Compose([SHEET, Affine(20)], kernel="bicubic", antialias=False, deterministic=True)
    left = fixed(views)
    assert (left.kernel, left.antialias, left.deterministic, left.dims) == ("bicubic", False, True, 0)


@pytest.mark.parametrize("size", [[48], [48, 48, 3], [0, 48], []])
def test_an_invalid_size_of_a_patch_anywhere_is_refused(size):
    node = PatchConfig(size=size, place={"scale": [0.3, 0.5]})
    assert make(place_of, node, "perturbation") is None
    with pytest.raises(ValueError, match=r"`perturbation\.size` must be"):
        patch(node, rand(1, 3, *SIZE), "")


def disc(size, quad, points=32):
    """How much of each pixel the ellipse in an upright quad covers."""
    (left, top), (right, bottom) = quad
    y, x = (((torch.arange(n * points, dtype=double) + 0.5) / points / n) for n in size)
    inside = ((x - left) / (right - left) * 2 - 1) ** 2 + (((y - top) / (bottom - top) * 2 - 1) ** 2)[:, None] < 1
    return F.avg_pool2d(inside.to(double)[None, None], points)[0, 0]


@pytest.mark.parametrize("texture", [(1, 1), (1, 9), (2, 3), (40, 4)])
def test_the_inside_of_an_ellipse_of_few_texels_is_opaque(texture):
    box = ((0.1, 0.15), (0.9, 0.8))
    quad = (box[0], (box[1][0], box[0][1]), box[1], (box[0][0], box[1][1]))
    poster, black = Patch(texture, quad, shape="ellipse"), torch.zeros(1, 3, 40, 50, dtype=double)
    result = Compose()(poster.scene(black, torch.ones(1, 3, *texture, dtype=double)), torch.zeros(1, 0))[0, 0]
    assert (result - disc((40, 50), box)).abs().max() < 2 / 255


@pytest.mark.slow
@pytest.mark.parametrize("texels", [24, 33, 36, 48])
def test_an_edge_between_two_pixel_centres_has_its_exact_coverage(texels):
    # About one texel per pixel: no sample of the mask is then between 0 and 1.
    quad, size = ((0.2, 0.25), (0.7, 0.2), (0.8, 0.75), (0.15, 0.7)), (60, 80)
    poster, black = Patch((texels, texels), quad), torch.zeros(1, 3, *size, dtype=double)
    result = Compose()(poster.scene(black, torch.ones(1, 3, texels, texels, dtype=double)), torch.zeros(1, 0))[0, 0]
    y, x = torch.meshgrid(*((torch.arange(32 * n, dtype=double) + 0.5) / 32 for n in size), indexing="ij")
    inside = torch.ones_like(x, dtype=torch.bool)
    for (x0, y0), (x1, y1) in zip(quad, quad[1:] + quad[:1], strict=True):
        inside &= (x1 - x0) * 80 * (y - y0 * 60) - (y1 - y0) * 60 * (x - x0 * 80) >= 0
    assert (result - F.avg_pool2d(inside.to(double)[None, None], 32)[0, 0]).abs().max() < 2 / 255

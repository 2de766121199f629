"""A patch seen from afar: every texel has a gradient, black is opaque, and edges are exact."""

import math
from functools import partial

import pytest
import torch

from attacks.perturbations.patch.shape import shape_alpha, shape_outline
from transforms import Compose
from transforms.sampling.homography import half_pixels, homography, invert, lattice, transform
from transforms.sampling.outline import Outline, cut
from transforms.sampling.read import Resampling
from transforms.sampling.warp import warp
from transforms.scene import Layer, Scene, premultiply

double = torch.float64
EYE = torch.eye(3, dtype=double)[None]
ARROW = [[0.1, 0.05], [0.9, 0.2], [0.6, 0.5], [0.95, 0.95], [0.2, 0.8]]
SHAPES = {"rectangle": "rectangle", "circle": "circle", "polygon": ARROW}
INK = (0.9, 0.2, 0.4)
#: Points along each side of a pixel.
POINTS = 64


def place(texture, size, side, degrees=0.0, bend=0.0, seed=0):
    """The pull of a texture (h, w) whose shorter side is `side` pixels of a picture of `size`, (1,3,3): turned, its
    middle at a random place of the middle pixel, and its corners moved by the share `bend`."""
    generator = torch.Generator().manual_seed(seed)
    height, width = (n * side / min(texture) for n in texture)
    box = torch.tensor([[-width, -height], [width, -height], [width, height], [-width, height]], dtype=double) / 2
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    quad = box @ torch.tensor([[c, s], [-s, c]], dtype=double)
    quad = quad * (1 + bend * torch.tensor([[1.0], [-1.2], [0.8], [-1.0]], dtype=double))
    quad = quad + torch.rand(2, generator=generator, dtype=double) - 0.5  # from the picture's middle
    unit = torch.tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=double) * (
        torch.tensor([texture[1], texture[0]], dtype=double) / min(texture)
    )
    return homography(quad * (2 / min(size)), unit)


def shares(pull, texture, size, pixels, points):
    """Where points (K,2) of the pixels (P,2), row and column, lie in the texture: shares of its sides, (P,K,2)."""
    height, width = size
    at = pixels.flip(-1).to(double)[:, None] + points - torch.tensor([width, height], dtype=double) / 2
    shift, w = transform(pull, at[None] * (2 / min(size)))
    assert (w > 0).all()
    return (shift[0] * min(texture) / torch.tensor([texture[1], texture[0]], dtype=double) + 1) / 2


def supersample(count=POINTS):
    """Points of a pixel (K,2), one in each of `count` x `count` cells, no row or column of them along an edge."""
    i, j = torch.cartesian_prod(*[torch.arange(count, dtype=double)] * 2).T
    golden = (5**0.5 - 1) / 2
    return torch.stack([(i + (j + 0.5) * golden % 1) / count, (j + (i + 0.5) * golden % 1) / count], dim=-1)


def inside(shape, at, texture):
    """Whether points, in shares of the texture's sides, lie in the shape."""
    x, y = at.unbind(-1)
    if shape == "rectangle":
        return (x > 0) & (x < 1) & (y > 0) & (y < 1)
    if isinstance(shape, str):
        sides = [n if shape == "ellipse" else min(texture) for n in texture]
        return (2 * (x - 0.5) * texture[1] / sides[1]) ** 2 + (2 * (y - 0.5) * texture[0] / sides[0]) ** 2 < 1
    odd = torch.zeros_like(x, dtype=torch.bool)
    for (x0, y0), (x1, y1) in zip(shape, [*shape[1:], shape[0]], strict=True):
        odd ^= ((y0 > y) != (y1 > y)) & (x < x0 + (y - y0) * (x1 - x0) / (y1 - y0))
    return odd


def points_around(pull, shape, texture, size):
    """All pixels (P,2) of a picture, and which of 49 points in and round each lie in the shape (P,49)."""
    rows = torch.cartesian_prod(torch.arange(size[0]), torch.arange(size[1]))
    points = torch.cartesian_prod(*[torch.linspace(-1, 2, 7, dtype=double)] * 2)
    return rows, inside(shape, shares(pull, texture, size, rows, points), texture)


def edges(pull, shape, texture, size):
    """The pixels (P,2) near an edge of the shape, and how much of each it covers (P,)."""
    rows, hits = points_around(pull, shape, texture, size)
    near = rows[hits.any(1) & ~hits.all(1)]
    return near, inside(shape, shares(pull, texture, size, near, supersample()), texture).double().mean(1)


def cut_view(base, layer, outline, size, **options):
    """The view of a scene whose upper layer ends at `outline`."""
    inner_map, out = (half_pixels(s, layer.pull) for s in ((layer.pixels.shape[2], layer.pixels.shape[3]), size))
    matrix = inner_map @ layer.pull @ invert(out)
    resampling = Resampling(antialias=True, **options)
    over = warp(premultiply(layer), partial(lattice, matrix), size, resampling, outline=outline)
    return over[:, :-1] + (1 - over[:, -1:]) * base


def take_view(edge, base, layer, size, **options):
    """The view of a scene whose upper layer has a soft edge, or is cut at its edge."""
    if edge == "cut":
        return cut_view(base, layer, Outline(), size, **options)
    return Compose(**options)(Scene((Layer(base, None, EYE), layer), size), torch.zeros(1, 0))


@pytest.mark.parametrize("degrees", [0, 17, 45, 71])
@pytest.mark.parametrize("side", [100, 300])
@pytest.mark.parametrize("edge", ["soft", "cut"])
def test_at_a_tenth_of_its_size_every_texel_has_a_gradient(side, degrees, edge):
    size = (side // 5,) * 2
    pull, base = place((side, side), size, side / 10, degrees, seed=degrees), torch.ones(1, 3, *size, dtype=double)
    texture = torch.full((1, 3, side, side), 0.5, dtype=double, requires_grad=True)
    view = take_view(edge, base, Layer(texture, None, pull), size)
    (view * torch.rand_like(view)).sum().backward()
    assert (texture.grad != 0).all()


@pytest.mark.parametrize("kernel", ["nearest", "bilinear", "bicubic", "keys(-0.5)"])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.25, 0.1])
@pytest.mark.parametrize("edge", ["soft", "cut"])
def test_black_on_white_is_opaque(scale, kernel, edge):
    size, texture = (48, 48), (round(24 / scale), round(30 / scale))
    pull, base = place(texture, size, 24, 17, 0.1), torch.ones(1, 3, *size, dtype=double)
    black = Layer(torch.zeros(1, 3, *texture, dtype=double), None, pull)
    view = take_view(edge, base, black, size, kernel=kernel)
    deep = points_around(pull, "rectangle", texture, size)[1].all(1)
    assert deep.sum() > 400
    assert view[0].permute(1, 2, 0).flatten(0, 1)[deep].abs().max() <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.3, 1.0, 0.5, 0.25, 0.1])
@pytest.mark.parametrize(("degrees", "bend"), [(0, 0.0), (17, 0.0), (45, 0.0), (17, 0.1)])
def test_edges_equal_those_of_a_supersampled_picture(shape, scale, degrees, bend, photo):
    # A patch of one colour, so that only its edge counts; and about as large in the view whatever its texture is.
    shape, size, texture = SHAPES[shape], (72, 72), (round(36 / scale), round(45 / scale))
    pull = place(texture, size, 36, degrees, bend, seed=degrees)
    ink = torch.tensor(INK, dtype=double)
    alpha = shape_alpha(shape, texture)
    layer = Layer(ink[None, :, None, None].expand(1, 3, *texture), None if alpha is None else alpha.to(double), pull)
    near, cover = edges(pull, shape, texture, size)
    (i, j), cover = near.T, cover[:, None]
    assert (cover > 0.02).sum() > 80
    for base in (torch.zeros(1, 3, *size, dtype=double), torch.ones(1, 3, *size, dtype=double), photo[..., :72, :72]):
        view = cut_view(base, layer, shape_outline(shape, texture), size)[0, :, i, j].T
        goal = cover * ink + (1 - cover) * base[0, :, i, j].T
        assert (view - goal).abs().max() <= 1.5 / 255  # most of it from the points, a 64th apart


def test_a_mirrored_or_oblique_patch_has_exact_edges():
    size, texture = (72, 72), (40, 50)
    pull = place(texture, size, 36, 25, 0.1) @ torch.diag(torch.tensor([-1.0, 2.5, 1.0], dtype=double))
    layer = Layer(torch.ones(1, 3, *texture, dtype=double), None, pull)
    near, cover = edges(pull, "rectangle", texture, size)
    view = cut_view(torch.zeros(1, 3, *size, dtype=double), layer, Outline(), size)
    assert (view[0, 0, near[:, 0], near[:, 1]] - cover).abs().max() <= 1 / 255


@pytest.mark.slow
@pytest.mark.parametrize(("side", "degrees"), [(4.3, 17), (5.0, 45)])
def test_the_cut_edge_passes_gradients_to_the_texture_and_its_place(side, degrees):
    size, texture = (9, 9), (5, 6)
    base = torch.rand(1, 1, *size, dtype=double)

    def view(ink, pull):
        return cut_view(base, Layer(ink, None, pull), Outline(), size)

    inputs = (torch.rand(1, 1, *texture, dtype=double), place(texture, size, side, degrees, 0.1))
    assert torch.autograd.gradcheck(view, [value.requires_grad_() for value in inputs])


def test_points_beyond_the_horizon_have_no_cover():
    places = torch.zeros(1, 4, 4, 2, dtype=double)
    ahead = torch.zeros(1, 4, 4, dtype=torch.bool)
    view = torch.full((1, 2, 4, 4), 0.5, dtype=double)
    assert torch.equal(cut(view.clone(), places, Outline(), ahead), view)

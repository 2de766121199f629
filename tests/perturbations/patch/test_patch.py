"""A patch: its placement by a quad, one texture for all pictures, and its optimisation through views."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, PGD, attack
from attacks.perturbations.patch.patch import Patch
from tests.helpers.sets import attack_pictures, double, random, seed, uniform
from tests.helpers.solving import Dot
from transforms import Affine, Compose, Perspective
from transforms.compose import view

QUAD = ((4 / 16, 2 / 12), (12 / 16, 2 / 12), (12 / 16, 8 / 12), (4 / 16, 8 / 12))


def images(count=2, height=12, width=16):
    return uniform(count, 3, height, width)


def texture(height=6, width=8):
    return uniform(1, 3, height, width, value=1)


def paste(base, patch):
    picture = base.clone()
    picture[..., 2:8, 4:12] = patch
    return picture


def test_textures_are_reduced_or_enlarged_in_the_view():
    result = attack_pictures(Patch((12, 16), QUAD), images(), texture(12, 16))
    torch.testing.assert_close(result, paste(images(), F.avg_pool2d(texture(12, 16), 2)), rtol=0, atol=1e-12)
    coarse = attack_pictures(Patch((1, 1), QUAD), images(), texture(1, 1))
    inner = coarse[..., 4:6, 7:9]  # away from the edge of a texel, which is soft
    torch.testing.assert_close(inner, texture(1, 1).expand_as(inner), rtol=0, atol=0.25)


@pytest.mark.parametrize(
    ("turn", "move"),
    [
        (lambda q: q, lambda t: t),
        (lambda q: (q[1], q[0], q[3], q[2]), lambda t: t.flip(-1)),
        (lambda q: (q[3], q[2], q[1], q[0]), lambda t: t.flip(-2)),
        (lambda q: (q[2], q[3], q[0], q[1]), lambda t: t.flip(-1, -2)),
    ],
)
def test_a_texture_at_the_resolution_of_the_picture_is_pasted_bit_for_bit(turn, move):
    result = attack_pictures(Patch((6, 8), turn(QUAD)), images(), texture())
    torch.testing.assert_close(result, paste(images(), move(texture())), rtol=0, atol=1e-12)


def test_a_quad_in_perspective_has_the_given_corners():
    quad = ((0.1, 0.2), (0.8, 0.1), (0.9, 0.9), (0.3, 0.7))
    base = torch.zeros(1, 3, 200, 300, dtype=double)
    view = attack_pictures(Patch((40, 40), quad), base, torch.ones(1, 3, 40, 40, dtype=double))[0, 0] > 0.5
    y, x = torch.meshgrid(torch.arange(200) + 0.5, torch.arange(300) + 0.5, indexing="ij")
    inside = torch.ones(200, 300, dtype=torch.bool)
    for (x0, y0), (x1, y1) in zip(quad, quad[1:] + quad[:1], strict=True):
        inside &= (x1 - x0) * 300 * (y - y0 * 200) - (y1 - y0) * 200 * (x - x0 * 300) >= 0
    assert (view != inside).sum() < 0.003 * inside.sum()


def test_rows_of_delta_are_textures_of_separate_pictures():
    patch, views = Patch((6, 8), QUAD, shape="ellipse"), Compose([Affine(degrees=30)])
    u = uniform(2, views.dims)
    rows = texture().expand(2, -1, -1, -1)
    batch, difference = (views(patch.scene(images(), item), u) for item in (texture(), rows))
    torch.testing.assert_close(batch, difference, rtol=0, atol=1e-12)


def test_start_noise_and_file():
    patch, source = Patch((6, 8)), texture()
    grey = Patch((6, 8), start_from="grey")
    assert torch.equal(grey.start(images(), seed()), torch.full((1, 3, 6, 8), 0.5, dtype=double))
    first, repeat, other = (patch.start(images(), seed(value)) for value in (1, 1, 2))
    assert torch.equal(first, repeat) and not torch.equal(first, other)
    assert 0 <= first.min() < 0.2 < 0.8 < first.max() <= 1
    assert torch.equal(Patch((6, 8), start_from=source[0]).start(images(), seed()), source)
    assert set(patch.noise(images(), seed()).unique().tolist()) == {0.0, 1.0}
    copy = patch.quantise(source, images())
    torch.testing.assert_close(copy * 255, (copy * 255).round(), rtol=0, atol=1e-9)
    assert (copy - source).abs().max() <= 0.5 / 255 + 1e-9


def test_moves_stay_in_the_box_and_steepest_attains_the_dual_norm():
    patch, grad = Patch((6, 8)), random(1, 3, 6, 8)
    by = patch.descend(grad, torch.tensor([0.7], dtype=double), texture(), images())
    assert torch.equal(by, -0.7 * grad.sign())
    result = patch.move(texture(), by, images())
    assert 0 == result.min() < result.max() == 1
    assert torch.equal(patch.project(result, images()), result)
    torch.testing.assert_close((patch.steepest(grad) * grad).sum(), grad.abs().sum())
    assert patch.norm(result).item() <= patch.eps


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["rectangle", "ellipse"])
def test_pgd_finds_the_optimum_of_a_linear_loss_through_views(shape):
    # Compositing is linear in the texture, and so is the mean over fixed views.
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 16, 6)).to(double).eval()
    patch, anchor = Patch((6, 8), QUAD, shape=shape), torch.randn(2, 6, dtype=double)

    class Fixed:
        def __call__(self, n, dims, *, seed, step=0):
            return torch.rand(n, dims, generator=torch.Generator().manual_seed(7))

    eot = EOT(Compose([Affine(degrees=30, scale=(0.7, 1.3)), Perspective(0.2)]), Fixed(), views=4)
    leaf, u = texture().requires_grad_(), eot.points(0, 0, images())
    losses = net(view(eot.transforms, patch.scene(images(), leaf), u)) * anchor.repeat_interleave(4, 0)
    (c,) = torch.autograd.grad(losses.sum() / 8, leaf)
    parts = {"encoder": net, "objective": Dot(), "perturbation": patch, "optimiser": PGD(), "eot": eot}
    *_, end = attack(images(), anchor, steps=60, **parts)
    best = torch.where(c > 0, 0.0, 1.0)
    # Every texel has a gradient, but for the corner ones of an ellipse.
    assert (c == 0).any(1).sum() == (0 if shape == "rectangle" else 4)
    gain, maximum = (c * (end.delta - 0.5)).sum(), (c * (best - 0.5)).sum()
    assert 0.999 <= gain / maximum <= 1 + 1e-9
    torch.testing.assert_close(end.estimate.grad, c, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (0, 8)}, "`size` must be"),
        ({"size": (6.0, 8)}, "`size` must be"),
        ({"size": (6, 8), "shape": "star"}, "`perturbation.shape` must be one of"),
        ({"size": (6, 8), "start_from": "white"}, "`start_from` must be grey, noise or an image"),
        ({"size": (6, 8), "start_from": torch.rand(3, 8, 6)}, "as large as `size`"),
        ({"size": (6, 8), "start_from": 255 * torch.rand(3, 6, 8)}, "`start_from` must be an image"),
        ({"size": (6, 8), "quad": ((0, 0), (64, 0), (64, 64), (0, 64))}, "not pixels"),
        ({"size": (6, 8), "quad": ((0, 0), (0.5, 0.5), (1, 1), (0, 1))}, "three corners in a line"),
        ({"size": (6, 8), "quad": ((0, 0), (1, 1), (0, 1))}, "four corners"),
    ],
)
def test_an_invalid_patch_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Patch(**arguments)


def test_a_texture_with_another_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="as many channels as the pictures, 3; got 1"):
        Patch((6, 8), start_from=torch.rand(1, 6, 8)).start(images(), seed())

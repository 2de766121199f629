"""The penalty on colours that cannot be printed: its formula, its memory, and its configuration."""

import math

import pytest
import torch

from attacks.objectives.penalties import EDGE
from attacks.objectives.printability import NonPrintability, nearest, read_palette
from attacks.perturbations.patch.inks import INKS
from attacks.schema import validate as schema
from attacks.study import assembly as build
from tests.schema.test_configs import composed

double = torch.float64


def colours(count, seed=0):
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed), dtype=double)


def price(texture, palette, weight=1.0, pictures=2):
    images = torch.zeros(pictures, 3, 20, 20, dtype=texture.dtype)
    return NonPrintability(weight, palette)(texture, images, images)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_price_is_the_mean_distance_to_the_nearest_colour(rows):
    palette, texture = colours(9), torch.rand(rows, 3, 6, 7, dtype=double)
    expected = [
        sum(min(math.dist(pixel, colour) for colour in palette.tolist()) for pixel in row.flatten(1).T.tolist()) / 42
        for row in texture
    ]
    result = price(texture, palette, 2.5)
    assert result.shape == (2,)
    below = 2.5 * torch.tensor(expected, dtype=double) - result
    assert (below >= 0).all() and (below <= 2.5 * EDGE).all()


def test_printable_colours_cost_nothing_and_have_a_finite_gradient():
    palette = colours(5)
    texture = palette[torch.randint(5, (1, 4, 6))].permute(0, 3, 1, 2).clone().requires_grad_()
    result = price(texture, palette)
    result.sum().backward()
    assert result.abs().max() == 0 and texture.grad.abs().max() == 0


def test_the_gradient_points_away_from_the_nearest_colour():
    palette, texture = colours(9), torch.rand(1, 3, 5, 5, dtype=double).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: price(t, palette), texture)
    price(texture, palette, pictures=1).sum().backward()
    direction = texture.detach() - nearest(texture.detach(), palette)
    cosine = torch.cosine_similarity(texture.grad, direction, dim=1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    torch.testing.assert_close(25 * texture.grad.norm(dim=1), torch.ones_like(cosine), rtol=0, atol=1e-3)


def test_the_generic_palette_holds_the_inks():
    palette = read_palette("generic") * 255
    assert palette.shape == (27, 3)
    for ink in INKS:
        assert (palette - torch.tensor(ink)).abs().amax(1).min() < 0.01


def test_a_palette_is_a_file_of_colours(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0, 0,0\n\n255,127.5 ,0\n12;13\t14\n")
    expected = torch.tensor([[0, 0, 0], [255, 127.5, 0], [12, 13, 14]]) / 255
    assert torch.equal(read_palette(str(path)), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold 1 to 4096 colours; it holds 0"),
        ("1,2,3\n" * 4097, "it holds 4097"),
        ("1,2,3\n" * 40_000, "more than 131072 bytes"),
        ("1,2,3\n1,2\n", 'line 2 of .* must be "r, g, b" from 0 to 255'),
        ("r,g,b\n", "line 1"),
        ("0,0,256\n", "line 1"),
        ("0,0,nan\n", "line 1"),
        (b"\xff\xfe\x00", "line 1"),
    ],
)
def test_a_wrong_palette_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "mine.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        read_palette(str(path))
    assert "`penalty.palette`" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: NonPrintability(0.0, colours(3)), ValueError, "`weight` must"),
        (lambda: NonPrintability(1.0, colours(3)[:, :2]), ValueError, r"`palette` must be \(K,3\)"),
        (lambda: NonPrintability(1.0, 255 * colours(3)), ValueError, "divide levels of 8 bits by 255"),
        (lambda: read_palette("mine.png"), ValueError, "`penalty.palette` must be generic, or a file .txt"),
        (lambda: read_palette("no.csv"), FileNotFoundError, "there is no file 'no.csv'"),
        (lambda: read_palette("no.icc"), FileNotFoundError, "`penalty.palette`: there is no file"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_a_printability_penalty_needs_a_patch():
    run = schema.validate(composed("config=patch", "penalty=nps", "penalty.weight=0.5"))
    penalty = build.make_part("penalty", run.penalty)
    assert isinstance(penalty, NonPrintability) and penalty.weight == 0.5 and len(penalty.colours) == 27
    with pytest.raises(ValueError, match=r"`penalty=nps` prices the colours of what is printed.*perturbation=linf"):
        build.build(schema.validate(composed("config=smoke", "penalty=nps")))

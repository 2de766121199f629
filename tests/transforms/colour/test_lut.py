"""A table of colours, interpolated between its nodes: against NumPy, and laws of every table."""

import itertools

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from transforms.colour.lut import ColourMap, apply_lut, nodes, powers, terms

double = torch.float64
MATRIX = torch.tensor([[0.5, 0.3, -0.1], [0.05, 0.5, 0.2], [0.2, 0.1, 0.55]], dtype=double)
OFFSET = torch.tensor([0.15, 0.1, 0.05], dtype=double)


def table(n=4, seed=0):
    return torch.rand(3, n, n, n, generator=torch.Generator().manual_seed(seed), dtype=double)


def between_nodes(shape, n=4, seed=1):
    """Colours at least a tenth of a cell away from every kink."""
    generator = torch.Generator().manual_seed(seed)
    cell = torch.randint(n - 1, shape, generator=generator)
    return (cell + 0.1 + 0.8 * torch.rand(shape, generator=generator, dtype=double)) / (n - 1)


def trilinear(colours, lut):
    """(K,3) through (3,n,n,n), corner by corner, in NumPy."""
    top_node = lut.shape[-1] - 1
    low = np.minimum(np.floor(colours * top_node), top_node - 1).astype(int)
    part, total = colours * top_node - low, 0
    for corner in itertools.product((0, 1), repeat=3):
        weight = np.prod(np.where(corner, part, 1 - part), axis=1)
        r, g, b = (low + corner).T
        total = total + weight * lut[:, r, g, b]
    return total.T


def flat(images):
    return images.permute(0, 2, 3, 1).reshape(-1, 3).numpy()


@pytest.mark.parametrize("n", [2, 5, 33])
def test_a_table_is_read_trilinearly(photo, n):
    images = torch.cat([photo, photo.round()])  # all corners of the cube too
    view = apply_lut(images, table(n))
    np.testing.assert_allclose(flat(view), trilinear(flat(images), table(n).numpy()), rtol=0, atol=1e-12)


def test_gradcheck_in_the_picture_and_in_the_table():
    images, lut = between_nodes((2, 3, 3, 4)).requires_grad_(), (0.1 + 0.8 * table()).requires_grad_()
    assert gradcheck(apply_lut, (images, lut))
    assert gradcheck(apply_lut, (torch.rand(1, 3, 2, 2, dtype=double), lut))


def test_black_and_white_keep_the_gradient_of_their_cell():
    # clamp and grid_sample have no gradient there, and a texture has many such pixels.
    lut = (nodes(3) @ MATRIX.T + OFFSET).T.reshape(3, 3, 3, 3)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=double)] * 3).T[None, :, None]
    expected = MATRIX.sum(0)[:, None].expand(3, 8)
    for dtype in (torch.float64, torch.float32):
        images = corners.to(dtype, copy=True).requires_grad_()
        apply_lut(images, lut).sum().backward()
        torch.testing.assert_close(images.grad[0, :, 0], expected.to(dtype), rtol=1e-4, atol=0)


def test_output_outside_the_cube_is_clipped_between_nodes_as_well():
    lut = (nodes(2) * 2 - 0.5).T.reshape(3, 2, 2, 2)
    grey = torch.linspace(0, 1, 21, dtype=double).expand(1, 3, 1, 21)
    torch.testing.assert_close(apply_lut(grey, lut), (grey * 2 - 0.5).clamp(0, 1), rtol=0, atol=1e-12)


def test_monomials_are_in_the_documented_order():
    r, g, b = colours = torch.rand(3, 7, dtype=double)
    unit = torch.ones_like(r)
    expected = [unit, r, g, b, r * r, r * g, r * b, g * g, g * b, b * b]
    expected += [r**3, r * r * g, r * r * b, r * g * g, r * g * b, r * b * b, g**3, g * g * b, g * b * b, b**3]
    for degree, count in ((1, 4), (2, 10), (3, 20)):
        assert len(powers(degree)) == count
        torch.testing.assert_close(terms(colours.T, degree), torch.stack(expected[:count], 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: apply_lut(torch.zeros(1, 1, 4, 4), table()), r"`images` must be \(N,3,H,W\)"),
        (lambda: apply_lut(torch.zeros(1, 3, 4, 4), table()[:2]), r"`lut` must be \(3,n,n,n\)"),
        (lambda: ColourMap(torch.zeros(3, 4, 4, 5)), r"`lut` must be \(3,n,n,n\)"),
        (lambda: ColourMap(torch.zeros(3, 1, 1, 1)), r"n of at least 2"),
        (lambda: ColourMap(torch.zeros(3, 2, 2, 2, dtype=torch.uint8)), "`lut` must hold floating-point"),
        (lambda: ColourMap(torch.full((3, 2, 2, 2), torch.nan)), "`lut` must be finite"),
        (lambda: powers(4), "`degree` must be 1, 2 or 3"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()

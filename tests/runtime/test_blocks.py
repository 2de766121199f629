"""Arithmetic block by block, against the same on whole pictures."""

import pytest
import torch

from attacks import Linf
from attacks.optimisers.gradient import l1_norm
from attacks.runtime.blocks import VALUES, columns, in_blocks, value_blocks

SHAPES = [(1, 3, 450, 211), (3, 3, 301, 260), (2, 3, 8, 8), (0, 3, 8, 8), (1, 1, 2, VALUES)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_all_rows_in_order_and_hold_few_values(shape):
    picture = torch.rand(shape)
    parts = [part for (part,) in value_blocks(picture)]
    assert torch.equal(torch.cat(parts, 2), picture)
    assert all(part.numel() <= VALUES or part.shape[2] == 1 for part in parts)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_columns_are_the_same_of_all_batches_in_order_and_hold_few_values_of_a_row(shape):
    rows = torch.rand(shape).flatten(1)
    parts = [*columns(rows, 2 * rows)]
    assert torch.equal(torch.cat([part for part, _ in parts], 1), rows)
    assert all(torch.equal(2 * part, double) and part.shape[1] <= VALUES for part, double in parts)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_step_of_an_linf_ball_is_its_move_along_the_steepest_descent_to_the_bit(shape):
    ball, images, delta, grad = Linf(0.1), torch.rand(shape), torch.rand(shape) / 5 - 0.1, torch.randn(shape)
    length = torch.linspace(0.01, 0.1, shape[0])
    reference = ball.move(delta, ball.descend(grad, length, delta, images), images)
    assert torch.equal(ball.step(delta, grad, length, images), reference)


def test_a_subclass_that_looks_at_the_whole_picture_is_given_the_whole():
    class Centring(Linf):
        def project(self, delta, images):
            return super().project(delta - delta.mean((2, 3), keepdim=True), images)

    images, delta, grad = torch.full((3, 1, 3, 450, 450), 0.5).unbind()
    delta = Centring(0.1).step(0 * delta, grad * torch.randn_like(grad), 0.05, images)
    assert float(delta.mean((2, 3)).abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_is_that_of_float64_whatever_the_neighbours(dtype):
    grad = torch.randn(4, 3, 500, 600, dtype=dtype)
    exact = grad.double().abs().sum((1, 2, 3), keepdim=True)
    torch.testing.assert_close(l1_norm(grad).double(), exact, rtol=1e-6, atol=0)
    assert float(l1_norm(0 * grad[:1])) > 0
    assert torch.equal(l1_norm(grad)[:1], l1_norm(grad[:1]))


def test_pictures_of_another_type_and_memory_format():
    picture = torch.rand(1, 3, 300, 300, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    assert torch.equal(in_blocks(torch.add, picture, picture.float()), picture + picture.float())

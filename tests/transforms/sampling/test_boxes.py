"""A layer sampled within its box gives the views and gradients that it gives sampled over whole views."""

import pytest
import torch

from transforms import Affine, Compose, Perspective
from transforms.geometry import Cylinder, Placement
from transforms.sampling import boxes as module
from transforms.sampling.boxes import Boxes
from transforms.sampling.outline import Outline
from transforms.scene import Layer, Scene
from transforms.wrappers import OnLayers

VIEWS, SIZE = 9, (56, 72)


def full_boxes(pull, views, size, source, level, groups):
    """In place of `boxes`: each view from edge to edge."""
    zero = torch.zeros(views, dtype=torch.long)
    return [Boxes(torch.arange(views), zero, zero, size, level)]


def scene(texture, picture, place, outline=None):
    middle = place.framed(SIZE).pull_of(torch.full((1, 4), 0.5))
    alpha = torch.ones_like(texture[:1, :1])
    return Scene((Layer(picture, None, torch.eye(3)[None]), Layer(texture, alpha, middle, outline=outline)), SIZE)


def results(pipeline, rows, outline, side=40):
    """Views and the gradients of texture, picture and coordinates."""
    seed = torch.Generator().manual_seed(1)
    texture, picture = (torch.rand(n, 3, *s, generator=seed) for n, s in ((rows, (side, side)), (rows, SIZE)))
    u = torch.rand(VIEWS, pipeline.dims, generator=seed)
    leaves = [leaf.requires_grad_() for leaf in (texture, picture, u)]
    views = pipeline(scene(texture, picture, pipeline.stages[0].place, outline), u)
    weight = torch.randn(views.shape, generator=seed)
    return views.detach(), *torch.autograd.grad((views * weight).sum(), leaves)


def placement(scale, x=(0.0, 1.0), stages=(), degrees=25.0):
    return OnLayers(stages, Placement(scale=scale, degrees=degrees, x=x, y=(0.0, 1.0)))


BORDER, TINY, LARGE = placement((0.3, 0.5), (0.0, 0.0)), placement((0.02, 0.03)), placement((1.5, 2.5))
CASES = {
    "anywhere": ([placement((0.3, 0.6))], 1),
    "a texture for each view": ([placement((0.2, 0.6))], VIEWS),
    "at the border": ([BORDER], 1),
    "mostly out of view": ([BORDER, Affine(translate=1.2)], 1),
    "tiny": ([TINY], 1),
    "the whole view": ([LARGE], 1),
    "oblique": ([placement((0.3, 0.6)), Perspective(0.45)], 1),
    "bent": ([placement((0.3, 0.6), stages=(Cylinder(),))], 1),
}


@pytest.mark.parametrize("outline", [None, Outline()], ids=["mask", "outline"])
@pytest.mark.parametrize("name", CASES)
def test_within_boxes_as_over_whole_views(name, outline, monkeypatch):
    stages, rows = CASES[name]
    pipeline = Compose(stages)
    ours = results(pipeline, rows, outline)
    monkeypatch.setattr("transforms.compose.boxes", full_boxes)
    for value, other in zip(ours, results(pipeline, rows, outline), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-5 * float(other.abs().max().clamp(min=1)))


def test_boxes_are_little_larger_than_what_they_show(monkeypatch):
    made_boxes, inner = [], module.boxes
    monkeypatch.setattr("transforms.compose.boxes", lambda *args: made_boxes.extend(inner(*args)) or made_boxes)
    results(Compose([placement((0.5, 0.5), degrees=0.0)]), 1, None)
    assert sum(len(box.rows) for box in made_boxes) == VIEWS
    assert all(28 <= side <= 28 + 8 for box in made_boxes for side in box.size)


def test_where_a_layer_is_out_of_view_the_gradient_is_zero_and_exists():
    views, texture, *_ = results(Compose([placement((0.3, 0.5)), Affine(translate=(4.0, 5.0))]), 1, Outline())
    assert not texture.any() and (views == 0.5).all()

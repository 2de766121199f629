"""A stage written against the `Stage` protocol alone (dims, names, a call) works wherever a built-in stage does."""

import pytest
import torch

from attacks.evaluation.ablation import without_stage
from tests.helpers.small import smooth
from transforms import Affine, Compose, Stage, audit
from transforms.compose import Geometry
from transforms.scene import Layer, Scene
from transforms.wrappers import OneOf, OnLayers, Sometimes, widened

EYE = torch.eye(3)[None]


class Fade:
    """Blend with mid-grey."""

    dims, names = 1, ("faded (share)",)

    def __call__(self, images, u):
        return images + u[:, :, None, None] * (0.5 - images)


class Swirl:
    """The same, with a map of points."""

    dims, names = 1, ("swirl (rad)",)

    def pull(self, points, v):
        angle = v[:, :, None] * points.square().sum(-1)
        x, y = points.unbind(-1)
        return torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y], -1)

    def __call__(self, images, u):
        return Compose([self])(images, u)


class Nothing:
    """No coordinates."""

    dims, names = 0, ()

    def __call__(self, images, u):
        return images


@pytest.mark.parametrize("stage", [Fade(), Swirl(), Nothing()], ids=["pixels", "points", "nothing"])
def test_a_stage_with_no_more_than_the_protocol_works_as_any_other_stage(stage):
    assert isinstance(stage, Stage) and isinstance(stage, Geometry) == hasattr(stage, "pull")
    images = smooth()
    pipeline = Compose([stage, Affine(10)])
    u = torch.rand(4, pipeline.dims)
    row = pipeline.describe(u)[0]
    assert [*row][: stage.dims] == [f"{type(stage).__name__.lower()} {name}" for name in stage.names]
    assert [*row.values()][: stage.dims] == pytest.approx(u[0, : stage.dims].tolist())  # it gives no physical values
    assert pipeline.discrete == () and pipeline.resamples() == 1
    wide = widened(pipeline, 2)
    assert wide.stages[0] is stage and wide.stages[1] == Affine(20.0)
    assert pipeline(images, u).shape == (4, 3, 20, 22)
    assert without_stage(pipeline, 0).dims == 5

    # A choice, and a layer of a scene.
    for choice in (Sometimes(stage), OneOf([stage, stage])):
        inner = Compose([choice, Affine(10)])
        assert inner(images, torch.rand(4, inner.dims)).isfinite().all() and 0 in inner.discrete
    scene = Scene((Layer(images, None, EYE), Layer(images[:1], None, 2 * EYE)), (20, 22))
    on_layer = Compose([OnLayers([stage]), Affine(10)])
    assert on_layer(scene, torch.rand(4, on_layer.dims)).shape == (4, 3, 20, 22)

    assert audit(pipeline, images[:1], draws=1).first_dead is None

"""Widened ranges: the `values` of a stage before and after are the oracle."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pytest
import torch

from attacks.encoders.randomness import EncoderDraws
from attacks.study.pipeline import CONFIGS, preset
from tests.helpers.sampling import mostly_slow
from tests.transforms.test_laws import every_stage
from transforms import Affine, Brightness, Compose, Downscale, Jpeg, Viewpoint
from transforms.camera import GaussianBlur, ResizePad, SensorNoise
from transforms.colour import Cutout
from transforms.geometry import Cylinder, Flip, Placement, ThinPlate
from transforms.wrappers import OneOf, OnLayers, Sometimes, widened

PRESETS = sorted(path.stem for path in (CONFIGS / "transforms").glob("*.yaml"))
LAST = 1 - 2**-40
#: Values are rounded to eight digits.
NEAR = 1e-7


def points(dims):
    """The two ends, single coordinates at the other end, and some points between: (N,dims)."""
    zeros, ends = torch.zeros(1, dims, dtype=torch.float64), torch.eye(dims, dtype=torch.float64) * LAST
    inner = torch.rand(8, dims, dtype=torch.float64)
    return torch.cat([zeros, zeros + LAST, ends, LAST - ends, inner])


def extent(stage):
    values = stage.values(points(stage.dims))
    return values.amin(0), values.amax(0)


def widen_stage(stage, factor=1.5):
    return widened(Compose([stage]), factor).stages[0]


@every_stage
def test_coordinates_are_unchanged_and_none_is_narrower(name, stage):
    original = Compose([stage])
    ends = [original, *(widened(original, factor) for factor in (1.1, 1.7, 40))]
    assert {(pipeline.names, pipeline.discrete) for pipeline in ends} == {(original.names, original.discrete)}
    for narrow, wide in pairwise(ends):  # a larger factor contains the smaller one's
        (low, high), (lower, higher) = extent(narrow), extent(wide)
        slack = NEAR * (high.abs() + low.abs())
        assert (lower <= low + slack).all() and (higher >= high - slack).all()


@every_stage
def test_views_stay_valid_and_keep_their_size(name, stage, photo):
    u = points(stage.dims)
    images = photo[..., ::2, ::2].float().expand(len(u), -1, -1, -1)
    views = widen_stage(stage, 3)(images, u.float().clamp(max=1 - 2**-24))
    assert views.shape == stage(images[:1], u[:1].float()).expand(len(u), -1, -1, -1).shape
    assert views.isfinite().all() and views.amin() >= 0 and views.amax() <= 1


@pytest.mark.parametrize("name", mostly_slow(PRESETS, 3))
def test_every_preset_can_be_widened(name, photo):
    original = preset(name)
    wide = widened(original, 1.5)
    assert widened(original, 1) == original and wide.names == original.names
    u = torch.rand(3, wide.dims)
    views = wide(photo.float(), u)
    assert views.isfinite().all() and views.shape == original(photo.float(), u).shape
    if (
        any(low < high for low, high in zip(*map(torch.Tensor.tolist, extent(original)), strict=True))
        and name != "si"
    ):
        assert wide != original


@pytest.mark.parametrize(
    ("stage", "positive"),
    [
        (Affine(degrees=(-10, 30), scale=(0.5, 2), shear=(-5, -1), translate=0.1), [1]),
        (Viewpoint(yaw=(5, 10), roll=(-3, 0), distance=(1.5, 2), fov=(20, 30)), [0, 3, 4]),
        (SensorNoise(read=(0.01, 0.03), shot=(0.001, 0.004)), [0, 1]),
        (ThinPlate(0.1), []),
        (Placement((0.2, 0.4), (-20, 10), (0.3, 0.6), (0.4, 0.5), aspect=2), [0, 2, 3]),
    ],
)
def test_width_is_multiplied_about_the_same_middle(stage, positive):
    scales = [extent(stage), extent(widen_stage(stage))]
    for i in (i for i, label in enumerate(stage.names) if not label.endswith("(seed)")):
        (low, high), (lower, higher) = (
            (a[i].log(), b[i].log()) if i in positive else (a[i], b[i]) for a, b in scales
        )
        assert float(higher - lower) == pytest.approx(1.5 * float(high - low), abs=1e-6)
        assert float(lower + higher) == pytest.approx(float(low + high), abs=1e-6)


@pytest.mark.parametrize(
    ("stage", "wide"),
    [
        (Jpeg((50, 95)), Jpeg((43, 100))),  # 68.9 / 1.378^1.5 and 68.9 * 1.378^1.5 = 111.5
        (SensorNoise(read=(0, 0.1)), SensorNoise(read=(0, 0.125))),
        (Viewpoint(yaw=(-80, 20), distance=(2, 2)), Viewpoint(yaw=(-89, 45), distance=(2, 2))),
        (GaussianBlur((0, 0)), GaussianBlur((0, 0))),
        (Cylinder(60, distance=4), Cylinder(90.0, distance=4)),  # an arc from 0 on, and one distance
        # Thumbnails become smaller, and views keep their size.
        (Downscale((48, 96)), Downscale((40, 96), then_size=96)),
        (Downscale((48, 96), then_size=200), Downscale((40, 114), then_size=200)),
        (Downscale(96), Downscale(96)),
    ],
)
def test_end_at_a_limit_stays_and_the_other_end_still_moves(stage, wide):
    assert widen_stage(stage) == wide


@pytest.mark.parametrize("factor", [2, 4, 20])
def test_interdependent_limits_are_used_fully(factor):
    # The turn of a cylinder is at most half of its least arc, and both would grow.
    wide = widen_stage(Cylinder((60, 180), turn=20), factor)
    assert wide.turn == pytest.approx(wide.arc[0] / 2, rel=1e-6)
    assert 20 < wide.turn < 30 and wide.arc[1] == pytest.approx(min(360, 180 * 3 ** ((factor - 1) / 2)), rel=1e-6)


def test_arguments_that_are_not_ranges_stay_unchanged():
    def pipeline(degrees, side, scale, share):
        choice = OneOf([Flip(0.3), Affine(scale=scale)], weights=(1.0, 3.0))
        inner, pad = Compose([Brightness((0.1, 0.1))]), ResizePad((share, 0.9), value=0.3)
        cover = Sometimes(Cutout(side, value=0.7), p=0.4)
        return Compose([Affine(degrees), cover, choice, inner, pad], "bicubic", value=0.2)

    wide = pipeline(20.0, (0.14142136, 0.56568542), (0.25, 4.0), 0.37267800)
    assert widened(pipeline(10, (0.2, 0.4), (0.5, 2), 0.5), 2) == wide


def test_wider_ranges_include_stages_of_layers_and_no_encoder_draws():
    encoder_draws = EncoderDraws(Compose([Brightness(0.1)]))  # these run in the encoder
    pipeline = Compose([OnLayers([Brightness(0.1)], Placement(degrees=10)), Affine(10), encoder_draws])
    layer, camera, draws_stage = widened(pipeline, 2).stages
    assert layer.stages == (Brightness(0.2),) and layer.place.degrees == 20 and layer.place.x == (0, 1)
    assert camera == Affine(20.0) and draws_stage == encoder_draws


@dataclass(frozen=True)
class Custom:
    """A user's stage."""

    sway: tuple = (1.0, 3.0)
    p: float = 0.5
    name: str = "x"
    on: bool = True

    dims: ClassVar[int] = 1
    names: ClassVar[tuple] = ("sway (deg)",)

    def values(self, u):
        return self.sway[0] + (self.sway[1] - self.sway[0]) * u

    def __call__(self, images, u):
        return images


class Foreign(Custom):
    def __init__(self):
        pass


def test_user_defined_stage_is_widened_where_possible():
    assert widen_stage(Custom(), 2) == Custom((0.57735027, 5.1961524))
    foreign = Foreign()  # it cannot be rebuilt
    assert widen_stage(foreign) is foreign


@pytest.mark.parametrize("factor", [0.99, 0, -1, float("nan"), float("inf"), "2"])
def test_a_factor_below_one_is_refused(factor):
    with pytest.raises(ValueError, match="`factor` must be a number of at least 1"):
        widened(Compose([Affine(10)]), factor)

"""Maps and curves over the space of views: against a loop, and with judges whose scores are known."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks import bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.clusters import Sample
from attacks.evaluation.judge import Judge
from attacks.evaluation.response import SlicePlan, coordinate, response, response_summary, slice_axes
from attacks.evaluation.scores import Scores
from attacks.experiment.sections.judged import CELLS
from attacks.inference.pairs import least_p
from attacks.run import compose
from tests.helpers.wrong import refused
from transforms import Affine, Brightness, Compose, Jpeg
from transforms.camera import MotionBlur, SensorNoise
from transforms.geometry import Crop, Flip
from transforms.wrappers import OneOf, Sometimes, widened

VIEWS = Compose([Affine(degrees=(-20, 30), scale=(0.8, 1.25), translate=0.1), Brightness(0.1)])
WIDE = widened(VIEWS, 1.5)
ROWS = torch.tensor([4, 0, 2])
SAMPLE = Sample(ROWS, ("a", "b", "c"), ("one", "two", "three"))


def linear(pictures):
    """A judge with a linear encoder."""
    net = torch.randn(pictures[0].numel(), 5, generator=torch.Generator().manual_seed(0)) / 10
    gallery = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    gallery[ROWS] = pictures.flatten(1) @ net
    return Judge(lambda x: x.flatten(1) @ net, gallery, gallery, Classes((), gallery), torch.arange(6))


class FunctionJudge:
    """A judge whose cosine is a function of the physical values of the view, minus the mean of the picture."""

    def __init__(self, cosine):
        self.cosine, self.calls = cosine, []

    def __call__(self, arms, rows, bank):
        self.calls.append(bank)
        values = dict(zip(bank.transforms.names, bank.transforms.values(bank.u).T, strict=True))
        cosine = self.cosine(values)[None] - arms.mean((1, 2, 3))[:, None]
        return Scores(cosine, (cosine < 0.5).long())

    def success(self, scores, rows):
        return scores.nearest == 1


@pytest.fixture
def pictures():
    return torch.rand(3, 3, 10, 12)


@pytest.fixture
def arms(pictures):
    return {
        "clean": pictures,
        "no_eot": (pictures + 0.1 * torch.randn_like(pictures)).clamp(0, 1),
        "eot": (pictures + 0.3 * torch.randn_like(pictures)).clamp(0, 1),
    }


def respond(arms, judge, sample=SAMPLE, **changes):
    plan = SlicePlan([("angle", "scale")], ["brightness"], VIEWS, WIDE, cells=3, curve_cells=4)
    plan = replace(plan, **changes)
    return response_summary(response(arms, sample, judge, plan, seed=3, views=2), plan)


def test_a_map_equals_a_loop_over_cells_and_views(arms, pictures):
    judge = linear(pictures)
    result = respond(arms, judge)
    (table,) = result["maps"]
    base = bank(WIDE, 2, seed=3, purpose="response").u
    clean = F.normalize(judge.encoder(pictures), dim=1)
    middles = [1 / 6, 3 / 6, 5 / 6]
    for arm, images in arms.items():
        for down, scale in enumerate(middles):
            for column, angle in enumerate(middles):
                cosine = torch.zeros(3, 2)
                for view in range(2):
                    u = base[view].clone()
                    u[0], u[1] = angle, scale
                    features = F.normalize(judge.encoder(WIDE(images, u.expand(3, -1))), dim=1)
                    cosine[:, view] = (features * clean).sum(1)
                cell = table["arms"][arm]["cosine"][down][column]
                assert cell["mean"] == pytest.approx(float(cosine.mean()), abs=1e-6)
    # -20 to 30 degrees, 1.5 times as wide, are -32.5 to 42.5.
    assert table["x"]["name"] == "affine angle (deg)" and table["x"]["trained"] == pytest.approx([-20, 30], abs=1e-4)
    assert table["x"]["values"] == pytest.approx([-20, 5, 30], abs=1e-4)
    assert table["y"]["name"] == "affine scale (x)" and table["y"]["trained"] == pytest.approx([0.8, 1.25], abs=1e-4)
    assert (result["pictures"], result["clusters"], result["views"]) == (3, 3, 2)


def test_cells_differ_only_in_their_own_coordinates(arms):
    judge = FunctionJudge(lambda values: values["affine angle (deg)"] / 100)
    result = respond(arms, judge, maps=[("angle", "scale"), ("scale", "angle")], curves=["angle", "scale"])
    for measure in ("cosine", "success"):
        for arm, cells in result["maps"][0]["arms"].items():
            assert all(row == cells[measure][0] for row in cells[measure]), arm  # scale changes nothing
            transpose = result["maps"][1]["arms"][arm][measure]
            assert [list(row) for row in zip(*transpose, strict=True)] == cells[measure]
    curve = result["curves"][1]["arms"]["eot"]["cosine"]
    assert all(cell == curve[0] for cell in curve)
    for cut in judge.calls:  # common random numbers: the other coordinates are equal in all cells
        cells = cut.u.unflatten(0, (-1, 2))
        assert all(len(cells[:, :, i].unique(dim=0)) == 1 for i in range(2, WIDE.dims))
    assert len(judge.calls) == 3 * 4


def test_the_preset_has_enough_pictures_for_significance():
    config = compose("evaluate").evaluate
    assert CELLS**2 * least_p(config.map_pictures) < 0.05


def test_a_discrete_coordinate_has_a_cell_for_each_value():
    pipeline = Compose([OneOf([Brightness(0.1), Jpeg((30, 90)), Jpeg((5, 9))], weights=(1, 2, 0)), Flip(0.2)])
    stage, mirrored, quality = slice_axes(
        SlicePlan([], ["stage", "mirrored", "jpeg1"], pipeline, widened(pipeline, 2))
    ).values()
    assert stage[0].values == (0, 1) and stage[0].at == pytest.approx((1 / 6, 4 / 6), abs=1e-3)
    assert mirrored[0].values == (1, 0) and mirrored[0].attack_range == (0, 1)
    assert len(quality[0].values) == 9 and all(value == round(value) for value in quality[0].values)
    assert quality[0].attack_range == (30, 90) and max(quality[0].values) > 90


@pytest.mark.parametrize(
    ("query", "name"),
    [
        *((query, "affine angle (deg)") for query in ("angle", "Affine: angle", "affine angle (deg)")),
        ("shift_right", "affine shift right (of shorter side)"),
        ("motion_blur.angle", "sometimes motionblur angle (deg)"),
        ("applied", "sometimes applied (0 or 1)"),
    ],
)
def test_a_coordinate_is_selected_by_any_unique_part_of_its_name(query, name):
    names = Compose([Affine(5), Sometimes(MotionBlur((0, 3), 10)), SensorNoise((0, 0.1)), Crop()]).names
    if query == "angle":  # two coordinates have this name
        with pytest.raises(ValueError, match=r"may be 'affine angle \(deg\)', 'sometimes motionblur angle \(deg\)'"):
            coordinate(query, names, "evaluate.maps")
        names = VIEWS.names
    assert names[coordinate(query, names, "evaluate.maps")] == name


@pytest.mark.parametrize(
    ("maps", "curves", "message"),
    [
        ([("angle", "tilt")], [], "`evaluate.maps` must name a coordinate of the views; got 'tilt'; known are 'aff"),
        ([("angle", "shift")], [], "`evaluate.maps` must name one coordinate of the views; 'shift' may be 'aff"),
        ([("angle", "affine: angle")], [], r"`evaluate.maps` must pair two coordinates; got 'affine angle \(deg\)'"),
        (["angle"], [], r"`evaluate.maps` must be a list of pairs of coordinates, \[\[angle,scale\]\]; got 'angle'"),
        ([(3, "angle")], [], "`evaluate.maps` must name a coordinate of the views; got 3; known"),
        ([], ["shear"], r"`evaluate.curves` must name a coordinate that varies; 'affine shear \(deg\)' is always 0"),
        ([], [""], "`evaluate.curves` must name a coordinate of the views; got ''"),
        ([], ["noise (seed)"], "`evaluate.curves` must name a quantity"),
    ],
)
def test_invalid_slices_give_a_one_line_error(maps, curves, message):
    pipeline = Compose([*VIEWS.stages, SensorNoise((0, 0.1))])
    refused(message, slice_axes, SlicePlan(maps, curves, pipeline, pipeline))


def test_without_views_there_is_no_coordinate():
    refused("known are none, for nothing varies", slice_axes, SlicePlan([], ["angle"], Compose(), Compose()))

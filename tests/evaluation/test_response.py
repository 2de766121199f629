"""Maps and curves over the view space: against a direct loop, and against judges whose answer is known."""

import csv

import pytest
import torch
import torch.nn.functional as F

from attacks import bank, evaluate, interval
from attacks.evaluation.intervals import rate
from attacks.evaluation.response import SlicePlan, axes_of, response
from attacks.evaluation.scores import Scores
from attacks.evaluation.significance import holm, least_p, sign_flip
from attacks.evaluation.slices import coordinate
from attacks.experiment.sections import CELLS
from attacks.report.warnings import FEW
from attacks.run import compose
from attacks.runtime.tables import write_rows
from transforms import (
    Affine,
    Brightness,
    Compose,
    Crop,
    Flip,
    Jpeg,
    MotionBlur,
    OneOf,
    Scene,
    SensorNoise,
    Sometimes,
    scene_of,
    widened,
)

VIEWS = Compose([Affine(degrees=(-20, 30), scale=(0.8, 1.25), translate=0.1), Brightness(0.1)])
WIDE = widened(VIEWS, 1.5)
NAMES = ["a", "b", "c"]
ROWS = torch.tensor([4, 0, 2])


class Linear:
    """A judge with a linear encoder and no gallery but the pictures' own rows."""

    def __init__(self, pictures):
        self.net = torch.randn(pictures[0].numel(), 5, generator=torch.Generator().manual_seed(0)) / 10
        self.clean = self(pictures)
        self.gallery = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
        self.gallery[ROWS] = self.clean

    def __call__(self, shown, rows=None, bank=None):
        if bank is None:
            return shown.flatten(1) @ self.net
        return evaluate(shown, self.clean, self.gallery, encoder=self, bank=bank)

    def success(self, scores, rows):
        return scores.nearest != rows[:, None]


class Known:
    """A judge that knows the views themselves: the cosine is a function of their physical values, less what an arm's
    pictures hold."""

    def __init__(self, cosine, goal=False):
        self.cosine, self.goal, self.calls = cosine, goal, []

    def __call__(self, shown, rows, bank):
        self.calls.append(bank)
        values = dict(zip(bank.transforms.names, bank.transforms.values(bank.u).T, strict=True))
        cosine = self.cosine(values)[None] - shown.mean((1, 2, 3))[:, None]
        ranks = torch.ones_like(cosine, dtype=torch.long) if self.goal else None
        return Scores(cosine, (cosine < 0.5).long(), goal_rank=ranks)

    def success(self, scores, rows):
        return scores.nearest == 1


@pytest.fixture
def pictures():
    return torch.rand(3, 3, 10, 12)


@pytest.fixture
def shown(pictures):
    return {
        "clean": pictures,
        "no_eot": (pictures + 0.1 * torch.randn_like(pictures)).clamp(0, 1),
        "eot": (pictures + 0.3 * torch.randn_like(pictures)).clamp(0, 1),
    }


def look(shown, judge, **changed):
    plan = {"maps": [("angle", "scale")], "curves": ["brightness"], "transforms": VIEWS, "wide": WIDE, "cells": 3}
    plan |= {"curve_cells": 4} | {key: changed.pop(key) for key in [*changed] if key in {*plan, "curve_cells"}}
    return response(shown, ROWS, judge, SlicePlan(**plan), **{"names": NAMES, "seed": 3, "views": 2} | changed)


def test_a_map_is_a_loop_over_cells_and_views(shown, pictures):
    judge = Linear(pictures)
    result = look(shown, judge).to_dict()
    (drawn,) = result["maps"]
    base = bank(WIDE, 2, seed=3, purpose="response").u
    clean = F.normalize(judge(pictures), dim=1)
    middles = [1 / 6, 3 / 6, 5 / 6]
    for arm, images in shown.items():
        for down, scale in enumerate(middles):
            for across, angle in enumerate(middles):
                cosine = torch.zeros(3, 2)
                for view in range(2):
                    u = base[view].clone()
                    u[0], u[1] = angle, scale
                    seen = F.normalize(judge(WIDE(images, u.expand(3, -1))), dim=1)
                    cosine[:, view] = (seen * clean).sum(1)
                cell = drawn["arms"][arm]["cosine"][down][across]
                assert cell["mean"] == pytest.approx(float(cosine.mean()), abs=1e-6)
    # The range from -20 to 30 degrees is -32.5 to 42.5 when it is 1.5 times as wide.
    assert drawn["x"] == {
        "name": "affine angle (deg)",
        "values": pytest.approx([-20, 5, 30], abs=1e-4),
        "trained": pytest.approx([-20, 30], abs=1e-4),
    }
    assert drawn["y"]["name"] == "affine scale (x)" and drawn["y"]["trained"] == pytest.approx([0.8, 1.25], abs=1e-4)
    assert result["pictures"] == 3 and result["views"] == 2


def test_cells_differ_by_their_own_coordinates_alone(shown):
    judge = Known(lambda values: values["affine angle (deg)"] / 100)
    result = look(shown, judge, maps=[("angle", "scale"), ("scale", "angle")], curves=["angle", "scale"])
    for measure in ("cosine", "success"):
        for arm, cells in result.to_dict()["maps"][0]["arms"].items():
            assert all(row == cells[measure][0] for row in cells[measure]), arm  # along scale nothing changes
            turned = result.to_dict()["maps"][1]["arms"][arm][measure]
            assert [list(row) for row in zip(*turned, strict=True)] == cells[measure]
    curve = result.to_dict()["curves"][1]["arms"]["eot"]["cosine"]
    assert all(cell == curve[0] for cell in curve)
    for cut in judge.calls:  # common random numbers: of what is not chosen each cell has the same
        cells = cut.u.unflatten(0, (-1, 2))
        assert all(len(cells[:, :, i].unique(dim=0)) == 1 for i in range(2, WIDE.dims))
    assert len(judge.calls) == 3 * 4


def test_a_map_has_a_row_for_each_y():
    views = Compose([Affine((-20, 30)), Flip(0.3)])
    judge = Known(lambda values: values["affine angle (deg)"] / 100 + values["flip mirrored (0 or 1)"])
    shown = {"eot": torch.zeros(3, 3, 4, 4)}
    (drawn,) = look(shown, judge, transforms=views, wide=views, maps=[("mirrored", "angle")], curves=[]).to_dict()[
        "maps"
    ]
    assert drawn["x"]["values"] == [1, 0] and len(drawn["y"]["values"]) == 3
    for y, row in zip(drawn["y"]["values"], drawn["arms"]["eot"]["cosine"], strict=True):
        assert [cell["mean"] for cell in row] == pytest.approx([y / 100 + 1, y / 100])


def test_the_worst_cell_is_where_the_encoder_resists_most(shown):
    judge = Known(lambda values: 0.9 - values["affine angle (deg)"].abs() / 100 - values["affine scale (x)"] / 10)
    (drawn,) = look(shown, judge).to_dict()["maps"]
    x, y = drawn["x"]["values"], drawn["y"]["values"]
    least = min(range(3), key=lambda i: abs(x[i]))
    assert (drawn["worst"]["x"], drawn["worst"]["y"]) == (x[least], y[0])
    assert (drawn["best"]["x"], drawn["best"]["y"]) == (x[2], y[2])
    assert drawn["worst"]["cosine"] == drawn["arms"]["eot"]["cosine"][0][least]
    assert drawn["best"]["success"] == drawn["arms"]["eot"]["success"][2][2]


def test_with_a_target_the_worst_cell_is_that_of_least_success(shown):
    # Here it succeeds where the cosine to the picture itself is low; that cosine alone would say nothing.
    judge = Known(lambda values: values["affine angle (deg)"] / 100 + 0.5, goal=True)
    judge.success = lambda scores, rows: scores.cosine > float(scores.cosine.median())
    (drawn,) = look(shown, judge).to_dict()["maps"]
    assert drawn["worst"]["x"] == min(drawn["x"]["values"]) and drawn["best"]["x"] == max(drawn["x"]["values"])
    assert drawn["worst"]["success"]["mean"] < drawn["best"]["success"]["mean"]


def test_every_number_can_be_had_from_the_rows(shown, pictures, tmp_path):
    result = look(shown, Linear(pictures))
    write_rows(tmp_path / "response.csv", result.rows())
    with (tmp_path / "response.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (9 + 4) * 3 * 3 * 2

    def table(measure, **where):
        some = [row for row in rows if all(row[key] == str(value) for key, value in where.items())]
        assert len(some) == 6
        values = {(row["picture"], int(row["view"])): row[measure] for row in some}
        return torch.tensor([[float(values[name, view]) for view in range(2)] for name in NAMES])

    content = result.to_dict()
    (drawn,), (curve,) = content["maps"], content["curves"]
    p = []
    for down, y in enumerate(drawn["y"]["values"]):
        for across, x in enumerate(drawn["x"]["values"]):
            place = {"kind": "map", "number": 0, "x_value": x, "y_value": y}
            cosines = {arm: table("cosine", arm=arm, **place) for arm in shown}
            for arm, cells in drawn["arms"].items():
                assert interval(cosines[arm])._asdict() == cells["cosine"][down][across]
                hits = table("success", arm=arm, **place).bool()
                assert rate(hits)._asdict() == cells["success"][down][across]
            difference = (cosines["eot"].double() - cosines["no_eot"].double()).mean(1)
            p.append(float(sign_flip(difference)))
    assert [each for row in drawn["p_holm"] for each in row] == pytest.approx(holm(p))
    for at, x in enumerate(curve["x"]["values"]):
        seen = table("cosine", kind="curve", arm="eot", x_value=x, y_value="")
        assert interval(seen)._asdict() == curve["arms"]["eot"]["cosine"][at]


def test_the_least_p_of_a_map_is_what_so_many_pictures_can_give(pictures):
    far = {"no_eot": torch.zeros(3, 3, 4, 4), "eot": torch.ones(3, 3, 4, 4)}  # as different as can be
    for goal in (False, True):
        judge = Known(lambda values: 0.7 + 0 * values["affine angle (deg)"], goal)
        (drawn,) = look(far, judge).to_dict()["maps"]
        assert {p for row in drawn["p_holm"] for p in row} == {drawn["p_least"]} == {1.0}
        assert drawn["tested"] == ("success" if goal else "cosine")
    many = {arm: torch.full((12, 3, 4, 4), float(arm == "eot")) for arm in ("no_eot", "eot")}
    (drawn,) = look(many, judge, names=[str(i) for i in range(12)]).to_dict()["maps"]
    assert drawn["p_least"] == 9 * 2**-11 == drawn["p_holm"][0][0]


def test_the_preset_looks_at_enough_pictures_for_a_star():
    asked = compose("evaluate").evaluate
    assert CELLS**2 * least_p(asked.map_pictures) < 0.05
    assert min(asked.left_out, asked.deploy, asked.explain, asked.map_pictures) >= FEW


def test_pictures_with_a_patch_are_scenes(pictures):
    scene = {"clean": scene_of(pictures), "eot": scene_of(pictures / 2)}
    assert isinstance(scene["eot"], Scene)
    result = look(scene, Linear(pictures)).to_dict()["maps"][0]
    plain = look({"clean": pictures, "eot": pictures / 2}, Linear(pictures)).to_dict()["maps"][0]
    assert result == plain and result["p_holm"] is None and result["worst"] is not None


def test_what_chooses_has_a_cell_for_each_choice():
    pipeline = Compose([OneOf([Brightness(0.1), Jpeg((30, 90)), Jpeg((5, 9))], weights=(1, 2, 0)), Flip(0.2)])
    which, mirrored, quality = axes_of(SlicePlan([], ["stage", "mirrored", "jpeg1"], pipeline, widened(pipeline, 2)))
    assert which[0].values == (0, 1) and which[0].at == pytest.approx((1 / 6, 4 / 6), abs=1e-3)
    assert mirrored[0].values == (1, 0) and mirrored[0].trained == (0, 1)
    assert len(quality[0].values) == 9 and all(value == round(value) for value in quality[0].values)
    assert quality[0].trained == (30, 90) and max(quality[0].values) > 90


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("angle", "affine angle (deg)"),
        ("Affine: angle", "affine angle (deg)"),
        ("affine.angle", "affine angle (deg)"),
        ("affine angle (deg)", "affine angle (deg)"),
        ("shift_right", "affine shift right (of shorter side)"),
        ("affine.shift down", "affine shift down (of shorter side)"),
        ("motion_blur.angle", "sometimes motionblur angle (deg)"),
        ("length", "sometimes motionblur length (px)"),
        ("applied", "sometimes applied (0 or 1)"),
        ("read", "sensornoise read noise (of full scale)"),
        ("area", "crop area (of the frame)"),
    ],
)
def test_a_coordinate_is_named_by_any_part_that_is_its_own(words, name):
    names = Compose([Affine(5), Sometimes(MotionBlur((0, 3), 10)), SensorNoise((0, 0.1)), Crop()]).names
    if words == "angle":  # written out, two are called so
        with pytest.raises(ValueError, match=r"may be 'affine angle \(deg\)', 'sometimes motionblur angle \(deg\)'"):
            coordinate(words, names, "evaluate.maps")
        names = VIEWS.names
    assert names[coordinate(words, names, "evaluate.maps")] == name


@pytest.mark.parametrize(
    ("maps", "curves", "message"),
    [
        (
            [("angle", "tilt")],
            [],
            "`evaluate.maps` must name a coordinate of the views; got 'tilt'; known are 'affine",
        ),
        (
            [("angle", "shift")],
            [],
            "`evaluate.maps` must name one coordinate of the views; 'shift' may be 'affine sh",
        ),
        ([("angle", "affine: angle")], [], r"`evaluate.maps` must pair two coordinates; got 'affine angle \(deg\)'"),
        (["angle"], [], r"`evaluate.maps` must be a list of pairs of coordinates, \[\[angle, scale\]\]; got 'angle'"),
        ([["angle"]], [], "`evaluate.maps` must be a list of pairs"),
        ([(3, "angle")], [], "`evaluate.maps` must name a coordinate of the views; got 3; known"),
        ([], ["shear"], r"`evaluate.curves` must name a coordinate that varies; 'affine shear \(deg\)' is always 0"),
        ([], [""], "`evaluate.curves` must name a coordinate of the views; got ''"),
        ([], ["noise (seed)"], "`evaluate.curves` must name a quantity"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(maps, curves, message):
    pipeline = Compose([*VIEWS.stages, SensorNoise((0, 0.1))])
    with pytest.raises(ValueError, match=message) as caught:
        axes_of(SlicePlan(maps, curves, pipeline, pipeline))
    assert "\n" not in str(caught.value)


def test_without_views_there_is_no_coordinate():
    with pytest.raises(ValueError, match="known are none, for nothing varies"):
        axes_of(SlicePlan([], ["angle"], Compose(), Compose()))

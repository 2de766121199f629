"""The patch rendered again with a measured printer, and in the poses of photographs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attacks.eot.bank import bank
from attacks.perturbations.patch.card import Box
from attacks.perturbations.patch.inks import Inks
from attacks.physical.colour_fit import ColourFit
from attacks.physical.rectify import from_corners, pose, project
from attacks.physical.score import make_judge, predict, score_views, with_poses
from attacks.physical.views import PlacementRecord, Rerun
from attacks.run import compose
from attacks.study.assembly import build
from attacks.study.printer import reprinted
from transforms import Affine, Compose, Perspective
from transforms.colour.lut import ColourMap, nodes
from transforms.wrappers import OnLayers

SIZE = (48, 64)
IDENTITY_FIT = ColourFit(1, np.hstack([np.zeros((3, 1)), np.eye(3)]), 32, 0.0, 0.0)


def seen(corners):
    """A photograph in whose view the scene has these corners, in the stage frame."""
    box = Box(0, 0, SIZE[1], SIZE[0])
    return SimpleNamespace(scene=pose(from_corners(box.corners, corners), box), photo=SimpleNamespace(row=0))


def test_a_pose_maps_the_view_back_to_the_scene():
    rng = np.random.default_rng(0)
    flat = np.array([[-1.3, -0.9], [1.2, -1.1], [1.4, 1.0], [-1.2, 0.8]])
    corners = [flat + rng.uniform(-0.15, 0.15, (4, 2)) for _ in range(5)]
    camera = Compose([OnLayers(), Perspective(0.2), Affine(degrees=20)])
    views = with_poses(camera, [seen(item) for item in corners], SIZE)
    assert len(views.stages) == 2
    matrices = views.stages[1].matrix((torch.arange(5, dtype=torch.float64)[:, None] + 0.5) / 5)
    square = np.array([[-4 / 3, -1], [4 / 3, -1], [4 / 3, 1], [-4 / 3, 1]])
    for matrix, item in zip(matrices.numpy(), corners, strict=True):
        np.testing.assert_allclose(project(matrix, item), square, atol=1e-6)


def test_only_the_colours_of_the_printer_are_replaced():
    table = nodes(2).T.reshape(3, 2, 2, 2).float()
    camera = Affine(degrees=5)
    for original in ([ColourMap(table, "other")], [Inks()], []):
        change = reprinted(Compose([OnLayers([*original, Perspective(0.1)]), camera]), table)
        sheet, second = change.stages
        assert [type(stage) for stage in sheet.stages] == [ColourMap, Perspective] and second is camera
    sheet, second = reprinted(Compose([camera]), table).stages
    assert [stage.name for stage in sheet.stages] == ["measured"] and second is camera


@pytest.mark.slow
def test_an_ideal_printer_predicts_what_the_run_has_measured():
    words = ["data.count=3", "data.size=64", "perturbation.size=[16,16]", "evaluate.views=16", "sanity=none"]
    run = compose("patch", words)
    parts = build(run)
    parts = replace(parts, queries=replace(parts.queries, clusters=("one", "one", "other")))
    view = parts.perturbation.evaluated(parts.queries.images, torch.rand(1, 3, 16, 16))
    quads = ((run.perturbation.quad,),) * 3
    placement = PlacementRecord(("a", "b", "c"), (64, 64), (16, 16), quads, None, True)
    origin, judge = Rerun(Path(), run, parts, {}, placement), make_judge(parts)
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], float)
    box = Box(0, 0, 64, 64)
    pose_of_all = pose(from_corners(box.corners, square), box)

    def photographs(*rows, scene=pose_of_all):
        return [SimpleNamespace(scene=scene, photo=SimpleNamespace(row=row)) for row in rows]

    rows, held_out = torch.arange(3), bank(parts.transforms, 16, seed=run.seed, purpose="evaluate")
    original = score_views(judge, view, rows, held_out._replace(u=held_out.u.float())).cosine.view(3, 16).mean(1)
    # A pose that changes nothing: the views differ in light and file alone.
    fixed = Compose([stage for stage in parts.transforms.stages if not isinstance(stage, Affine | Perspective)])
    u = bank(fixed, 64, seed=5, purpose="test").u.float()
    flat = score_views(judge, view, rows, held_out._replace(transforms=fixed, u=u)).cosine.view(3, 64).mean(1)
    for pictures, weights in (((1,), (0, 1, 0)), ((0, 1, 2, 2), (0.25, 0.25, 0.5)), ((0, 1), (0.5, 0.5, 0))):
        result = predict(origin, judge, view, photographs(*pictures), IDENTITY_FIT)
        assert result.printer["cosine"].mean == pytest.approx(
            float(original @ torch.tensor(weights).float()), abs=1e-3
        )
        assert result.poses["cosine"].mean == pytest.approx(float(flat @ torch.tensor(weights).float()), abs=0.03)
    # Of the second picture no pose is known, so there is no figure of the same pictures.
    assert predict(origin, judge, view, photographs(0) + photographs(1, scene=None), IDENTITY_FIT).poses is None

"""The pictures in docs/physical/, and the figures that docs/benchmarks.md has of the same run."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image

from attacks.perturbations.patch.card import Box
from attacks.physical.rectify import from_corners, pose, project
from scripts import show_patch as script

PATCH = Box(15, 15, 90, 60)


def lay_card(seed):
    """A homography from mm to pixels of a photograph."""
    random = np.random.default_rng(seed)
    frame = np.array([[100, 90], [400, 120], [380, 330], [80, 300]]) + random.uniform(-40, 40, (4, 2))
    return from_corners(PATCH.corners, np.roll(frame, seed, 0))


@pytest.mark.parametrize("seed", range(4))
def test_the_corners_of_a_pose_are_the_source_of_its_computation(seed):
    corners = script.corners(asdict(pose(lay_card(seed), PATCH)), PATCH.width, PATCH.height)
    assert np.abs(corners - project(lay_card(seed), PATCH.corners)).max() < 1e-9


@pytest.fixture
def photo_scores(tmp_path):
    """Two photographs: one detected at its place, one 3 px to the right of it."""
    run, photos = tmp_path / "run", tmp_path / "photos"
    for folder in (run / "print", run / "photos", photos):
        folder.mkdir(parents=True)
    (run / "print" / "sheet.json").write_text(json.dumps({"card": {"patch": asdict(PATCH)}}))
    truth, entries = [], []
    for i, fiducials in enumerate([[1, 2, 3, 4], [1, 2]]):
        name, true = f"a--{i}.jpg", project(lay_card(i), PATCH.corners)
        shift = from_corners(PATCH.corners, true + np.array([3 * i, 0]))
        truth.append({"file": name, "patch_px": true.tolist()})
        entries.append({"photo": name, "fiducials": fiducials, "patch": asdict(pose(shift, PATCH))})
        Image.new("RGB", (64, 48)).save(photos / name)
    (photos / "truth.json").write_text(json.dumps({"photos": truth}))
    (run / "photos" / "photos.json").write_text(json.dumps({"photos": entries}))
    for name, size in (("views.png", (90, 60)), ("print/sheet.png", (21, 30)), ("photos/overview.png", (628, 188))):
        Image.new("RGB", size).save(run / name)
    return run, photos


def test_errors_are_distances_to_the_truth_at_a_fixed_width_of_the_patch(photo_scores):
    offsets, count = script.errors(*photo_scores)
    true = project(lay_card(1), PATCH.corners)
    side = np.linalg.norm(true - np.roll(true, -1, 0), axis=1).mean()
    assert count == 2 and offsets["4"] == pytest.approx([0], abs=1e-9)
    assert offsets["2 or 3"] == pytest.approx([3 * script.WIDTH / side])


def test_the_script_writes_the_pictures_and_names_missing_files(photo_scores, tmp_path, capsys):
    assert script.main([*map(str, photo_scores), str(tmp_path / "out")]) == 0
    names = {path.stem for path in (tmp_path / "out").iterdir()}
    assert names == {"views", "sheet", "photographs", "overview", "README"}
    assert "2 of 2 photographs" in capsys.readouterr().out
    (photo_scores[0] / "print" / "sheet.png").unlink()
    capsys.readouterr()
    assert script.main([*map(str, photo_scores), str(tmp_path / "out")]) == 1
    assert "sheet.png is missing" in capsys.readouterr().err

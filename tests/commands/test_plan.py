"""`viewproof plan EFFECT`: answers that a simulated study confirms."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats

from attacks.commands import main
from attacks.eot.bank import bank
from attacks.perturbations.patch.card import Box
from attacks.physical.photos import list_photos
from attacks.physical.rectify import pose
from attacks.run import compose
from attacks.runtime.files import write_json
from attacks.runtime.tables import write_rows
from attacks.study.pipeline import pipeline
from tests.helpers.prints import fake_run


def pilot(folder, clusters, measure="success"):
    """A run directory with the files that a plan reads, and the differences of its clusters."""
    draw, rows = np.random.default_rng(0), []
    gains = draw.normal(0.2, 0.25, clusters)
    for i, gain in enumerate(gains):
        for arm, score in (("no_eot", 0.0), ("eot", gain)):
            for j in range(1 + i % 2):  # one photograph, one vote
                row = {"bank": "same", "arm": arm, "picture": f"{i}-{j}", "cluster": str(i)}
                rows.append(row | {"success": float(score), "cosine": float(-score)})
    write_rows(folder / "per_image.csv", rows)
    write_json(folder / "metrics.json", {"primary": {"measure": measure, "against": "no_eot"}})
    return gains


def answer(capsys, *arguments):
    """The number of pictures, and the rest of the answer."""
    assert main(["plan", *map(str, arguments)]) == 0
    count, text = capsys.readouterr().out.strip().split(" ", 1)
    assert "\n" not in text
    return int(count), text


def power(differences):
    """The share of B studies (B,n) in which scipy's permutation test gives p below 0.05."""
    test = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", axis=1, n_resamples=499, vectorized=True, batch=20, rng=0
    )
    return (test.pvalue < 0.05).mean()


@pytest.mark.parametrize("measure", ["success", "cosine"])
def test_a_plan_from_a_pilot_has_the_power(capsys, tmp_path, measure):
    gains = pilot(tmp_path, 12, measure)
    count, text = answer(capsys, 0.2, "--pilot", tmp_path)
    assert "12 clusters" in text and measure in text and "no_eot" in text
    draw = np.random.default_rng(1)
    studies = draw.choice(gains - gains.mean() + 0.2, (300, count))
    assert abs(power(studies) - 0.8) < 0.1  # 4 standard errors


@pytest.mark.slow
def test_a_plan_from_rates_has_the_power(capsys):
    count, text = answer(capsys, 0.3, "--baseline", 0.4, "--correlation", 0.3, "--views", 64)
    assert "64 views" in text
    draw, size = np.random.default_rng(1), 1 / 0.3 - 1
    levels = (draw.beta(rate * size, (1 - rate) * size, (300, count)) for rate in (0.4, 0.7))
    low, high = (draw.binomial(64, level) / 64 for level in levels)
    assert abs(power(high - low) - 0.8) < 0.1


@pytest.mark.parametrize("views", ["camera", "eot3d"])
def test_a_plan_of_photographs_covers_the_views_of_the_run(capsys, tmp_path, views):
    """Nine in ten views of another sample lie near a pose, whose files scoring assigns to their pictures."""
    config, names = compose("patch", [f"transforms={views}"]), ["square", "street"]
    fake_run(tmp_path, width=200.0)
    quads = [[[[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]]]] * 2
    record = json.loads((tmp_path / "placement.json").read_text())
    record |= {"pictures": names, "quads": quads, "masks": [[None]] * 2}
    write_json(tmp_path / "placement.json", record)
    write_json(tmp_path / "manifest.json", {"config": dataclasses.asdict(config)})
    assert main(["plan", "--photos", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith(".jpg")]
    camera, pulls = pipeline(config.transforms), np.eye(3)
    u = bank(camera, 256, seed=3, purpose="test").u.double().split([stage.dims for stage in camera.stages], 1)
    for stage, part in zip(camera.stages, u, strict=True):
        pulls = pulls @ stage.matrix(part).numpy() if hasattr(stage, "matrix") else pulls
    cameras = [pose(matrix, Box(-0.5, -0.5, 1, 1)) for matrix in np.linalg.inv(pulls)]
    distances, angles, count = *(np.array([float(row[i]) for row in rows]) for i in (0, 2)), 0
    for at in cameras:
        count += ((abs(np.log(distances / at.distance)) < 0.14) & (abs(angles - at.angle) < 8)).any()
    assert count > 0.8 * len(cameras)
    assert all(float(row[1]) == pytest.approx(20 * float(row[0]), abs=1.1) for row in rows)  # 20 cm wide
    (tmp_path / "in").mkdir()
    for row in rows:
        (tmp_path / "in" / row[-1]).touch()
    photos, notes = list_photos(tmp_path / "in", names)
    assert len(photos) == len(rows) and not notes and {photo.row for photo in photos} == {0, 1}


@pytest.mark.parametrize("words", [["0.1"], ["--bar", "0.5"]])
def test_a_plan_of_photographs_is_no_study(words, tmp_path, capsys):
    assert main(["plan", *words, "--photos", str(tmp_path)]) == 1
    assert "or --photos" in capsys.readouterr().err


def test_a_pilot_of_one_cluster_is_refused(tmp_path, capsys):
    pilot(tmp_path, 1)
    assert main(["plan", "0.1", "--pilot", str(tmp_path)]) == 1
    assert "has one cluster; a pilot needs two or more" in capsys.readouterr().err

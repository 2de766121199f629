"""A finished run is checked: honest ones pass, and every edit is named."""

import json
import shutil

import fsspec
import pytest
import torch
from torch import nn

from attacks import verify
from attacks.experiment import sections
from attacks.experiment.agreement import leaves, rows
from attacks.experiment.artefact_list import differences
from attacks.experiment.job import job
from attacks.run import compose
from tests.helpers.liars import all_of, cell, cells, entry, exchanged, gone, lines, pixel, sealed, tensors
from tests.run.test_run import call

TINY = ["data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none", "evaluate.views=8"]
TINY += ["evaluate.refine=1"]
LEAN = [*TINY, "evaluate.batch=2", "evaluate.wide=1.5"]
PARTS = [*TINY, "evaluate.maps=[[angle,scale]]", "evaluate.curves=[angle]", "evaluate.left_out=2", "evaluate.deploy=2"]
PARTS += ["evaluate.explain=2", "evaluate.layers=[stem]", "transforms=eot2d", "evaluate.map_pictures=2"]


def made(folder, overrides, preset="smoke", module=None):
    job(compose(preset, overrides), folder, preset, overrides, module=module)
    return folder


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "CELLS", 2)
        patch.setattr(sections, "CURVE_CELLS", 2)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small):
    """Runs by name, each made when it is first used."""
    work, done = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in done:
            preset = "patch" if name == "patch" else "smoke"
            done[name] = made(work / name, {"lean": LEAN, "parts": PARTS, "patch": TINY}[name], preset)
        return done[name]

    return get


def swapped(key, value):
    """An entry of the configuration, also in the identity."""
    *groups, last = key.split(".")
    return all_of(
        entry("manifest.json", "config", *groups, last, value=value),
        entry("manifest.json", "identity", key, value=json.dumps(value)),
    )


def scored(key, change):
    def edit(columns):
        columns[key] = change(columns[key].clone())

    return tensors("scores", edit)


def first(value):
    def change(column):
        column.view(-1)[0] = value(column.view(-1)[0])
        return column

    return change


A, B = "astronaut-4-2.png", "chelsea-2-0.png"
SCORES = "scores.safetensors"
#: An edit of a run, and how a line of the verdict begins where its digests fit again.
LIES = {
    "a pixel": ("lean", pixel(A), f"pictures/eot/{A}"),
    "a pixel of noise": ("lean", pixel(A, "noise"), f"pictures/noise/{A}"),
    "a pixel of a clean picture": ("lean", pixel(A, "clean"), f"pictures/clean/{A}"),
    "an area, also of the perturbation": ("lean", pixel(A, size=12, step=4, delta=True), SCORES),
    "more than eps": ("lean", pixel(A, size=6, step=60), f"pictures/eot/{A}"),
    "noise, also of the perturbation": ("lean", pixel(A, "noise", size=16, step=3, delta=True), "perturbation"),
    "exchanged pictures": ("lean", exchanged(f"pictures/eot/{A}", f"pictures/eot/{B}"), f"pictures/eot/{A}"),
    "exchanged arms": ("lean", exchanged(f"pictures/eot/{A}", f"pictures/no_eot/{A}"), f"pictures/eot/{A}"),
    "a missing picture": ("lean", gone(f"pictures/eot/{A}"), "pictures"),
    "a missing arm": ("lean", gone("pictures/noise"), "pictures"),
    "another sheet": ("lean", exchanged("adversarial.png", "views.png"), "adversarial.png"),
    "a cosine of per_image.csv": ("lean", cell("per_image", "cosine"), "per_image.csv line 2, cosine"),
    "the last bits of a cosine": ("lean", cell("per_image", "cosine", by=1e-9), "per_image.csv line 2, cosine"),
    "a success of per_image.csv": ("lean", cell("per_image", "success", 14, 0.125), "per_image.csv line 16, success"),
    "steps of per_image.csv": ("lean", cell("per_image", "step", 14, 1), "per_image.csv line 16, step"),
    "a name": ("lean", cells("per_image", lambda row: row.update(picture="x"), 2), "per_image.csv line 4, picture"),
    "a cluster": ("lean", cells("per_image", lambda row: row.update(cluster="x"), 2), "per_image.csv line 4, cluster"),
    "an added row": ("lean", lines("per_image.csv", lambda all: [*all, all[-1]]), "per_image.csv: it has 31 rows"),
    "a missing row": ("lean", lines("per_image.csv", lambda all: all[:-1]), "per_image.csv: it has 29 rows"),
    "another order": ("lean", lines("per_image.csv", lambda all: [all[0], *all[:0:-1]]), "per_image.csv line 2"),
    "a mean of an arm": ("lean", entry("metrics.json", "arms", "eot", "success", "mean"), "metrics.json arms eot"),
    "an end": ("lean", entry("metrics.json", "arms", "eot", "cosine", "low"), "metrics.json arms eot cosine low"),
    "the budget": ("lean", entry("metrics.json", "arms", "eot", "budget_used"), "metrics.json arms eot budget"),
    "the chosen step": ("lean", entry("metrics.json", "arms", "eot", "step", "most", by=1), "metrics.json arms eot"),
    "the wide bank": ("lean", entry("metrics.json", "wide", "arms", "eot", "knn", "mean"), "metrics.json wide arms"),
    "its factor": ("lean", entry("metrics.json", "wide", "factor"), "metrics.json wide factor"),
    "the primary p": ("lean", entry("metrics.json", "primary", "p", value=0.01), "metrics.json primary p"),
    "the primary arm": ("lean", entry("metrics.json", "primary", "against", value="clean"), "metrics.json primary ag"),
    "a comparison": ("lean", entry("metrics.json", "comparisons", 0, "difference", "mean"), "metrics.json comparis"),
    "the seed": ("lean", entry("metrics.json", "seed", by=1), "metrics.json seed"),
    "the threat's eps": ("lean", entry("metrics.json", "threat", "eps"), "metrics.json threat eps"),
    "its gradients": ("lean", entry("metrics.json", "threat", "gradients", by=9), "metrics.json threat gradients"),
    "a range of the bank": ("lean", entry("metrics.json", "bank", "ranges", 0, value=[-90, 90]), "metrics.json bank"),
    "a coordinate": ("lean", entry("metrics.json", "bank", "coordinates", 0, value="x"), "metrics.json bank"),
    "the views": ("lean", entry("metrics.json", "bank", "views", value=512), "metrics.json bank views"),
    "the draws": ("lean", entry("metrics.json", "bank", "draws", value="none"), "metrics.json bank draws"),
    "a digest of pixels": ("lean", entry("metrics.json", "pixels", 0, value="0" * 64), "metrics.json pixels 0"),
    "the gallery": ("lean", entry("metrics.json", "gallery", by=1), "metrics.json gallery"),
    "a query": ("lean", entry("metrics.json", "queries", 0, value="x"), "metrics.json queries 0"),
    "a threshold": ("lean", entry("metrics.json", "verification", "thresholds", "0.01"), "metrics.json verification"),
    "the impostors": ("lean", entry("metrics.json", "verification", "impostors", by=1), "metrics.json verification"),
    "the cost": ("lean", entry("metrics.json", "cost", "forward", by=9), "metrics.json cost forward"),
    "the encoder": ("lean", entry("metrics.json", "encoder", "fingerprint", value="0" * 64), "metrics.json encoder"),
    "an added key": ("lean", entry("metrics.json", "more", value=1), "metrics.json more"),
    "a cosine of a view": ("lean", scored("same/eot/cosine", first(lambda x: x - 0.001)), "scores.safetensors same"),
    "a nearest row": ("lean", scored("same/eot/nearest", first(lambda x: x + 1)), "scores.safetensors same/eot/near"),
    "a rank": ("lean", scored("wide/eot/rank", first(lambda x: x + 5)), "scores.safetensors wide/eot/rank"),
    "a success": ("lean", scored("same/noise/success", first(lambda x: ~x)), "scores.safetensors same/noise/success"),
    "a vote": ("lean", scored("same/clean/vote", first(lambda x: ~x)), "scores.safetensors same/clean/vote"),
    "the worst view": ("lean", scored("eot/worst", first(lambda x: x - 0.01)), "scores.safetensors eot/worst"),
    "an arm's scores": ("lean", tensors("scores", lambda x: x.pop("same/noise/cosine")), "scores.safetensors"),
    "a delta": ("lean", tensors("perturbation", lambda x: x["eot"].mul_(0.5)), f"pictures/eot/{A}"),
    "eps of the configuration": ("lean", entry("manifest.json", "config", "perturbation", "eps", value="4/255"), "man"),
    "eps, consistently": ("lean", swapped("perturbation.eps", "4/255"), f"pictures/eot/{A}: its change exceeds eps"),
    "a larger eps": ("lean", swapped("perturbation.eps", "32/255"), "perturbation.safetensors noise"),
    "the configured seed": ("lean", swapped("seed", 5), SCORES),
    "the stages": ("lean", swapped("transforms.stages.affine.degrees", [-2, 2]), SCORES),
    "other pictures": ("lean", swapped("data.photos", ["camera", "clock", "text"]), "manifest.json identity"),
    "other weights": ("lean", entry("manifest.json", "identity", "the encoder's weights", value="0" * 64), "manifest"),
    "the measure": ("lean", entry("manifest.json", "primary", "measure", value="cosine"), "manifest.json primary"),
    "no arm in the list": ("lean", entry("manifest.json", "artefacts", "pictures", "arms", value=["eot"]), "manifest"),
    "a map's cell": ("parts", cell("response", "cosine", 9), "response.csv map"),
    "a map's number": ("parts", entry("metrics.json", "response", "maps", 0, "x", "values", 0), "metrics.json resp"),
    "a curve": ("parts", entry("metrics.json", "response", "curves", 0, "arms", "eot", "cosine", 0, "mean"), "metr"),
    "successes of a map": ("parts", cells("response", lambda row: row.update(success=str(1 - int(row["success"]))), 3, 7), "response.csv map"),
    "left out": ("parts", cell("left_out", "cosine", 3, 0.2), "metrics.json left_out"),
    "its number": ("parts", entry("metrics.json", "left_out", "rows", 0, "cells", 0, "cosine", "mean"), "metrics.json le"),
    "a file format": ("parts", cell("deployment", "cosine", 3), "deployment.csv"),
    "its table": ("parts", entry("metrics.json", "deployment", "cells", 0, "arms", "eot", "cosine", "mean"), "metrics"),
    "an explanation": ("parts", cell("explanations", "deletion", 3), "explanations.csv"),
    "its coverage": ("parts", entry("metrics.json", "explanations", "coverage"), "metrics.json explanations cov"),
    "a ring": ("parts", cell("spectrum", "power", 3, 1e-3), "metrics.json explanations spectrum"),
    "a layer": ("parts", cell("drift", "cosine", 3), "drift.csv"),
    "its drift": ("parts", entry("metrics.json", "drift", "layers", 0, "eot", "mean"), "metrics.json drift layers"),
    "where the patch lies": ("patch", entry("placement.json", "quads", 0, value=[]), "placement.json quads"),
    "a texture": ("patch", exchanged("patches/noise.png", "patches/eot.png"), "patches/noise.png"),
    "the patch": ("patch", exchanged("patch.png", "patches/noise.png"), "patch"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_an_edit_is_named_with_and_without_new_digests(runs, tmp_path, name):
    kind, edit, beginning = LIES[name]
    folder = shutil.copytree(runs(kind), tmp_path / "run")
    edit(folder)
    content, record = (json.loads((folder / f"{each}.json").read_text()) for each in ("metrics", "manifest"))
    assert [*differences(folder, record, content)]
    sealed(folder)
    verdict = verify(folder, 1)
    assert not [line for line in verdict.problems if "sha256" in line]
    assert any(line.startswith(beginning) for line in verdict.problems), verdict.problems


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lean", "parts", "patch"])
def test_an_honest_run_passes_as_a_copy_and_with_any_sample(runs, tmp_path, kind):
    folder = shutil.copytree(runs(kind), tmp_path / "elsewhere")
    (folder / "mine.txt").write_text("a file of the user")
    for share in (0.1, 1):
        verdict = verify(folder, share)
        assert verdict.passed and not verdict.notes, verdict
    assert "PASS" in str(verdict)

"""Every edit of a finished run is named, also where its digests are made anew."""

import json
import shutil

import pytest
from PIL import Image

from attacks import verify
from attacks.experiment.directory import artefact_differences
from tests.helpers.check_runs import BATTERY, SCORES, A, B, both_records
from tests.helpers.check_runs import runs as runs
from tests.helpers.check_runs import small as small
from tests.helpers.liars import cell, cells, combine, delete, entry, file_bytes, lines, pixel, swap, tensors


def replace_value(key, value):
    """An entry of the configuration, also in the identity."""
    *groups, leaf = key.split(".")
    return combine(
        entry("manifest.json", "config", *groups, leaf, value=value),
        entry("manifest.json", "identity", key, value=json.dumps(value)),
    )


def score(key, change):
    def edit(columns):
        columns[key] = change(columns[key].clone())

    return tensors("scores", edit)


def first(value):
    def change(column):
        column.view(-1)[0] = value(column.view(-1)[0])
        return column

    return change


def metric(*place, **change):
    return entry("metrics.json", *place, **change)


def record(*place, **change):
    return entry("manifest.json", *place, **change)


def repaint(name, change):
    def edit(folder):
        with Image.open(folder / name) as picture_file:
            change(picture_file.convert("RGB")).save(folder / name)

    return edit


def paint(name):
    """A drawing with another number in it."""
    return repaint(name, lambda image: image.paste("black", (40, 40, 44, 48)) or image)


def cropped(name):
    return repaint(name, lambda image: image.crop((0, 0, 32, 32)))


def flip_success(row):
    row["success"] = str(1 - int(row["success"]))


def lower_probability(row):
    row.update(p="1e-9", low="1e-10", high="1e-8")


def rename(column):
    return lambda row: row.update({column: "x"})


#: An edit of a run, and how a line of the verdict begins where its digests fit again.
LIES = {
    "a pixel": ("lean", pixel(A), f"pictures/eot/{A}"),
    "a pixel of noise": ("lean", pixel(A, "noise"), f"pictures/noise/{A}"),
    "a pixel of a clean picture": ("lean", pixel(A, "clean"), f"pictures/clean/{A}"),
    "an area, also of the perturbation": ("lean", pixel(A, size=12, step=4, delta=True), SCORES),
    "more than eps": ("lean", pixel(A, size=6, step=60), f"pictures/eot/{A}"),
    "noise, also of the perturbation": ("lean", pixel(A, "noise", size=16, step=3, delta=True), "perturbation"),
    "exchanged pictures": ("lean", swap(f"pictures/eot/{A}", f"pictures/eot/{B}"), f"pictures/eot/{A}"),
    "exchanged arms": ("lean", swap(f"pictures/eot/{A}", f"pictures/no_eot/{A}"), f"pictures/eot/{A}"),
    "a missing picture": ("lean", delete(f"pictures/eot/{A}"), "pictures"),
    "a missing arm": ("lean", delete("pictures/noise"), "pictures"),
    "another sheet": ("lean", swap("adversarial.png", "views.png"), "adversarial.png"),
    "a cosine of per_image.csv": ("lean", cell("per_image", "cosine"), "per_image.csv line 2, cosine"),
    "the last bits of a cosine": ("lean", cell("per_image", "cosine", by=1e-9), "per_image.csv line 2, cosine"),
    "a success of per_image.csv": ("lean", cell("per_image", "success", 14, 0.125), "per_image.csv line 16, success"),
    "steps of per_image.csv": ("lean", cell("per_image", "step", 14, 1), "per_image.csv line 16, step"),
    "a name": ("lean", cells("per_image", rename("picture"), 2), "per_image.csv line 4, picture"),
    "a cluster": ("lean", cells("per_image", rename("cluster"), 2), "per_image.csv line 4, cluster"),
    "an added row": ("lean", lines("per_image.csv", lambda text: [*text, text[-1]]), "per_image.csv: it has 31 rows"),
    "a missing row": ("lean", lines("per_image.csv", lambda text: text[:-1]), "per_image.csv: it has 29 rows"),
    "another order": ("lean", lines("per_image.csv", lambda text: [text[0], *text[:0:-1]]), "per_image.csv line 2"),
    "a mean of an arm": ("lean", metric("arms", "eot", "success", "mean"), "metrics.json arms eot"),
    "an end": ("lean", metric("arms", "eot", "cosine", "low"), "metrics.json arms eot cosine low"),
    "the budget": ("lean", metric("arms", "eot", "budget_used"), "metrics.json arms eot budget"),
    "the chosen step": ("lean", metric("arms", "eot", "step", "most", by=1), "metrics.json arms eot"),
    "the wide bank": ("lean", metric("wide", "arms", "eot", "shift", "mean"), "metrics.json wide"),
    "its factor": ("lean", metric("wide", "factor"), "metrics.json wide factor"),
    "the primary p": ("lean", metric("primary", "p", value=0.01), "metrics.json primary p"),
    "the primary arm": ("lean", metric("primary", "against", value="clean"), "metrics.json primary ag"),
    "a comparison": ("lean", metric("comparisons", 0, "difference", "mean"), "metrics.json comparis"),
    "the seed": ("lean", metric("seed", by=1), "metrics.json seed"),
    "the threat's eps": ("lean", metric("threat", "eps"), "metrics.json threat eps"),
    "its gradients": ("lean", metric("threat", "gradients", by=9), "metrics.json threat gradients"),
    "a range of the bank": ("lean", metric("bank", "ranges", 0, value=[-90, 90]), "metrics.json bank"),
    "a coordinate": ("lean", metric("bank", "coordinates", 0, value="x"), "metrics.json bank"),
    "the views": ("lean", metric("bank", "views", value=512), "metrics.json bank views"),
    "the draws": ("lean", metric("bank", "draws", value="none"), "metrics.json bank draws"),
    "a digest of pixels": ("lean", metric("pixels", 0, value="0" * 64), "metrics.json pixels 0"),
    "the gallery": ("lean", metric("gallery", by=1), "metrics.json gallery"),
    "a query": ("lean", metric("queries", 0, value="x"), "metrics.json queries 0"),
    "a threshold": ("lean", metric("verification", "thresholds", "0.01"), "metrics.json verification"),
    "the impostors": ("lean", metric("verification", "impostors", by=1), "metrics.json verification"),
    "the cost": ("lean", metric("cost", "forward", by=9), "metrics.json cost forward"),
    "the encoder": ("lean", metric("encoder", "fingerprint", value="0" * 64), "metrics.json encoder"),
    "an added key": ("lean", metric("more", value=1), "metrics.json more"),
    "a cosine of a view": ("lean", score("same/eot/cosine", first(lambda x: x - 0.001)), "scores.safetensors same"),
    "a nearest row": ("lean", score("same/eot/nearest", first(lambda x: x + 1)), "scores.safetensors same/eot/near"),
    "a rank": ("lean", score("wide/eot/rank", first(lambda x: x + 5)), "scores.safetensors wide/eot/rank"),
    "a success": ("lean", score("same/noise/success", first(lambda x: ~x)), "scores.safetensors same/noise/success"),
    "a rank of the clean": ("lean", score("same/clean/rank", first(lambda x: x + 1)), SCORES),
    "the worst view": ("lean", score("eot/worst", first(lambda x: x - 0.01)), "scores.safetensors eot/worst"),
    "a detector's score": ("detector", score("same/eot/detector", first(lambda x: x + 1)), f"{SCORES} same/eot/det"),
    "an arm's scores": ("lean", tensors("scores", lambda x: x.pop("same/noise/cosine")), "scores.safetensors"),
    "a delta": ("lean", tensors("perturbation", lambda x: x["eot"].mul_(0.5)), f"pictures/eot/{A}"),
    "eps of the configuration": ("lean", record("config", "perturbation", "eps", value="4/255"), "man"),
    "eps, consistently": ("lean", replace_value("perturbation.eps", "4/255"), f"pictures/noise/{A}: its change"),
    "a larger eps": ("lean", replace_value("perturbation.eps", "32/255"), "perturbation.safetensors noise"),
    "the configured seed": ("lean", replace_value("seed", 5), SCORES),
    "the stages": ("lean", replace_value("transforms.stages.affine.degrees", [-2, 2]), SCORES),
    "other pictures": ("lean", replace_value("data.photos", ["camera", "clock", "text"]), "manifest.json identity"),
    "other weights": ("lean", record("identity", "the encoder's weights", value="0" * 64), "manifest"),
    "the start": ("lean", record("started", value="2999-01-01"), "the record says that the run ended at"),
    "the gallery's size": ("lean", record("gallery", "size", by=1), "manifest.json gallery size"),
    "the command": ("lean", record("identity", "the command", value="[]"), "manifest.json identity: the command"),
    "the measure": ("lean", record("primary", "measure", value="cosine"), "manifest.json primary"),
    "no arm in the list": ("lean", record("artefacts", "pictures", "arms", value=["eot"]), "manifest"),
    "a map's cell": ("parts", cell("response", "cosine", 9), "response.csv map"),
    "a map's number": ("parts", metric("response", "maps", 0, "x", "values", 0), "metrics.json resp"),
    "a curve": ("parts", metric("response", "curves", 0, "arms", "eot", "cosine", 0, "mean"), "metr"),
    "successes of a map": ("parts", cells("response", flip_success, 3, 7), "response.csv map"),
    "left out": ("parts", cell("left_out", "cosine", 3, 0.2), "metrics.json left_out"),
    "its number": ("parts", metric("left_out", "rows", 0, "cells", 0, "cosine", "mean"), "metrics.json le"),
    "a file format": ("parts", cell("deployment", "cosine", 3), "deployment.csv"),
    "its table": ("parts", metric("deployment", "cells", 0, "arms", "eot", "cosine", "mean"), "metrics"),
    "a resize": ("parts", cell("detection", "cosine", 3), "detection.csv"),
    "a flag": ("parts", cells("detection", lambda row: row.update(flagged="1"), 3), "detection.csv line 5, flagged"),
    "a doubled row": ("parts", lines("detection.csv", lambda x: [*x[:2], x[1], *x[3:]]), "detection.csv: two of its"),
    "its share": ("parts", metric("detection", "arms", "eot", "flagged", "mean"), "metrics.json detection arms eot"),
    "an explanation": ("parts", cell("explanations", "likeness", 3), "explanations.csv"),
    "its coverage": ("parts", metric("explanations", "coverage"), "metrics.json explanations cov"),
    "a layer": ("parts", cell("drift", "cosine", 3), "drift.csv"),
    "its views": ("parts", metric("drift", "views", by=1), "metrics.json drift views"),
    "a size": ("parts", metric("detection", "size", value=[1, 1]), "metrics.json detection size"),
    "its drift": ("parts", metric("drift", "layers", 0, "eot", "mean"), "metrics.json drift layers"),
    "a probability": ("failure", cell("failure", "p", 0, 0.5), "failure.csv astronaut"),
    "another probability": ("failure", cells("failure", lower_probability, 0), "failure.csv astronaut"),
    "its words": ("failure", metric("failure", "arms", "eot", 0, "words", value="never"), "metrics.json failure"),
    "where the patch lies": ("patch", entry("placement.json", "quads", 0, value=[]), "placement.json quads"),
    "a texture": ("patch", swap("patches/noise.png", "patches/eot.png"), "patches/noise.png"),
    "its figures": ("lean", lines("report.html", lambda text: [x.replace("0.", "1.") for x in text]), "report"),
    "a word of the report": ("lean", lines("report.html", lambda text: [*text, "<!-- passed -->"]), "report.html"),
    "a figure of a drawing": ("lean", paint("views.png"), "views.png"),
    "explanations": ("parts", paint("explanations.png"), "explanations.png"),
    "formats": ("parts", paint("deployment.png"), "deployment.png"),
    "checks that were not made": ("lean", metric("sanity", value=BATTERY), "metrics.json sanity"),
    "checks, configured": ("lean", replace_value("sanity.pictures", 2), "manifest.json config, of its preset"),
    "a larger budget": ("lean", replace_value("attack.steps", 2500), "steps.csv eot, batch 0: it has 2 steps"),
    "more views": ("lean", replace_value("attack.views", 5000), "steps.csv eot, batch 0"),
    "no overrides": ("lean", record("overrides", value=[]), "manifest.json config, of its preset"),
    "another override": ("lean", record("overrides", 4, value="sanity=short"), "manifest.json config, of its preset"),
    "another preset": ("lean", record("preset", value="quickstart"), "manifest.json config, of its preset"),
    "a checkpoint": ("lean", record("config", "checkpoint", "steps", value=7), "manifest.json config, of its preset"),
    "a missing step": ("lean", lines("steps.csv", lambda text: text[:-1]), "steps.csv eot"),
    "digits of a step": ("lean", lines("steps.csv", lambda x: [*x[:-1], x[-1][:-1] + ".0\n"]), "steps.csv: it"),
    "the passes of an arm": ("lean", metric("costs", "eot", "forward", by=90), "steps.csv eot: its steps took"),
    "a version": ("lean", record("versions", "torch", value="9"), "manifest.json versions torch"),
    "a setting": ("lean", record("engine", "settings", value=["engine.chunk=1"]), "manifest.json engine settings"),
    "no number": ("lean", cells("per_image", rename("cosine"), 2), "per_image.csv line 4, cosine"),
    "too many cells": ("lean", lines("per_image.csv", lambda x: [*x[:-1], "x," + x[-1]]), "per_image.csv: it"),
    "no finite score": ("lean", score("same/eot/cosine", first(lambda x: x * float("nan"))), SCORES),
    "fewer scores": ("lean", score("same/eot/cosine", lambda x: x[:2]), SCORES),
    "fewer perturbations": ("lean", tensors("perturbation", lambda x: x.update(eot=x["eot"][:1])), "pert"),
    "a picture of another size": ("lean", cropped(f"pictures/eot/{A}"), f"pictures/eot/{A}: its shape"),
    "the patch": ("patch", swap("patch.png", "patches/noise.png"), "patch"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_an_edit_is_named_with_and_without_new_digests(runs, tmp_path, name):
    kind, edit, beginning = LIES[name]
    folder = shutil.copytree(runs(kind), tmp_path / "run")
    edit(folder)
    assert [*artefact_differences(folder, *both_records(folder))]
    file_bytes(folder)
    verdict = verify(folder, 1)
    assert not [line for line in verdict.problems if "sha256" in line]
    assert any(line.startswith(beginning) for line in verdict.problems), verdict.problems

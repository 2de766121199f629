"""A finished run is checked: honest ones pass, and every edit is named."""

import json
import shutil

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import hypergeom
from torch import nn

from attacks import verify
from attacks.commands import main
from attacks.evaluation import splitting
from attacks.evaluation.sanity.battery import NAMES, masking
from attacks.evaluation.sanity.check import Check
from attacks.experiment import judged_again, sections
from attacks.experiment.agreement import leaves, rows
from attacks.experiment.artefact_list import differences
from attacks.experiment.directory import misfit
from attacks.experiment.job import job
from attacks.experiment.records import checked
from attacks.experiment.verify import CheckerError
from attacks.run import compose
from tests.helpers.liars import all_of, cell, cells, entry, exchanged, gone, lines, pixel, sealed, tensors
from tests.run.test_bad_directories import manifest

TINY = ["data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none", "evaluate.views=8"]
TINY += ["evaluate.refine=1"]
LEAN = [*TINY, "evaluate.batch=2", "evaluate.wide=1.5"]
PARTS = [
    *TINY,
    "evaluate.maps=[[angle,scale]]",
    "evaluate.curves=[angle]",
    "evaluate.left_out=2",
    "evaluate.deploy=2",
    "evaluate.pipeline=cv2_linear",
]
PARTS += ["evaluate.explain=2", "evaluate.layers=[stem]", "transforms=eot2d", "evaluate.map_pictures=2"]
FAILURE = [*TINY, "data.size=32", "evaluate.failure=1", "evaluate.particles=50"]
KINDS = {"lean": LEAN, "parts": PARTS, "failure": FAILURE, "patch": TINY}


def made(folder, overrides, preset="smoke", module=None):
    job(compose(preset, overrides), folder, preset, overrides, module=module)
    return folder


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "CELLS", 2)
        patch.setattr(sections, "CURVE_CELLS", 2)
        patch.setattr(splitting, "FIRST", 2)
        patch.setattr(splitting, "MOST", 8)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small):
    """Runs by name, each made when it is first used."""
    work, done = tmp_path_factory.mktemp("runs"), {}

    def get(name):
        if name not in done:
            preset = "patch" if name == "patch" else "smoke"
            done[name] = made(work / name, KINDS[name], preset)
        return done[name]

    return get


def both(folder):
    """What manifest.json and metrics.json hold."""
    return [json.loads((folder / f"{name}.json").read_bytes()) for name in ("manifest", "metrics")]


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


def metric(*place, **change):
    return entry("metrics.json", *place, **change)


def record(*place, **change):
    return entry("manifest.json", *place, **change)


BATTERY = {
    "failed": [],
    "checks": [{"name": name, "verdict": "passed", "words": "it passed", "figures": {}} for name in NAMES],
    "cost": {"forward": 900.0, "backward": 90.0},
}


def repainted(name, change):
    def edit(folder):
        with Image.open(folder / name) as opened:
            change(opened.convert("RGB")).save(folder / name)

    return edit


def painted(name):
    """A drawing with another number in it."""
    return repainted(name, lambda image: image.paste("black", (40, 40, 44, 48)) or image)


def cropped(name):
    return repainted(name, lambda image: image.crop((0, 0, 32, 32)))


def flipped(row):
    row["success"] = str(1 - int(row["success"]))


def unlikely(row):
    row.update(p="1e-9", low="1e-10", high="1e-8")


def renamed(column):
    return lambda row: row.update({column: "x"})


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
    "a name": ("lean", cells("per_image", renamed("picture"), 2), "per_image.csv line 4, picture"),
    "a cluster": ("lean", cells("per_image", renamed("cluster"), 2), "per_image.csv line 4, cluster"),
    "an added row": ("lean", lines("per_image.csv", lambda each: [*each, each[-1]]), "per_image.csv: it has 31 rows"),
    "a missing row": ("lean", lines("per_image.csv", lambda each: each[:-1]), "per_image.csv: it has 29 rows"),
    "another order": ("lean", lines("per_image.csv", lambda each: [each[0], *each[:0:-1]]), "per_image.csv line 2"),
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
    "a cosine of a view": ("lean", scored("same/eot/cosine", first(lambda x: x - 0.001)), "scores.safetensors same"),
    "a nearest row": ("lean", scored("same/eot/nearest", first(lambda x: x + 1)), "scores.safetensors same/eot/near"),
    "a rank": ("lean", scored("wide/eot/rank", first(lambda x: x + 5)), "scores.safetensors wide/eot/rank"),
    "a success": ("lean", scored("same/noise/success", first(lambda x: ~x)), "scores.safetensors same/noise/success"),
    "a rank of the clean": ("lean", scored("same/clean/rank", first(lambda x: x + 1)), SCORES),
    "the worst view": ("lean", scored("eot/worst", first(lambda x: x - 0.01)), "scores.safetensors eot/worst"),
    "an arm's scores": ("lean", tensors("scores", lambda x: x.pop("same/noise/cosine")), "scores.safetensors"),
    "a delta": ("lean", tensors("perturbation", lambda x: x["eot"].mul_(0.5)), f"pictures/eot/{A}"),
    "eps of the configuration": ("lean", record("config", "perturbation", "eps", value="4/255"), "man"),
    "eps, consistently": ("lean", swapped("perturbation.eps", "4/255"), f"pictures/noise/{A}: its change"),
    "a larger eps": ("lean", swapped("perturbation.eps", "32/255"), "perturbation.safetensors noise"),
    "the configured seed": ("lean", swapped("seed", 5), SCORES),
    "the stages": ("lean", swapped("transforms.stages.affine.degrees", [-2, 2]), SCORES),
    "other pictures": ("lean", swapped("data.photos", ["camera", "clock", "text"]), "manifest.json identity"),
    "other weights": ("lean", record("identity", "the encoder's weights", value="0" * 64), "manifest"),
    "the measure": ("lean", record("primary", "measure", value="cosine"), "manifest.json primary"),
    "no arm in the list": ("lean", record("artefacts", "pictures", "arms", value=["eot"]), "manifest"),
    "a map's cell": ("parts", cell("response", "cosine", 9), "response.csv map"),
    "a map's number": ("parts", metric("response", "maps", 0, "x", "values", 0), "metrics.json resp"),
    "a curve": ("parts", metric("response", "curves", 0, "arms", "eot", "cosine", 0, "mean"), "metr"),
    "successes of a map": ("parts", cells("response", flipped, 3, 7), "response.csv map"),
    "left out": ("parts", cell("left_out", "cosine", 3, 0.2), "metrics.json left_out"),
    "its number": ("parts", metric("left_out", "rows", 0, "cells", 0, "cosine", "mean"), "metrics.json le"),
    "a file format": ("parts", cell("deployment", "cosine", 3), "deployment.csv"),
    "its table": ("parts", metric("deployment", "cells", 0, "arms", "eot", "cosine", "mean"), "metrics"),
    "a resize": ("parts", cell("detection", "cosine", 3), "detection.csv"),
    "a flag": ("parts", cells("detection", lambda row: row.update(flagged="1"), 3), "detection.csv line 5, flagged"),
    "its share": ("parts", metric("detection", "arms", "eot", "flagged", "mean"), "metrics.json detection arms eot"),
    "an explanation": ("parts", cell("explanations", "likeness", 3), "explanations.csv"),
    "its coverage": ("parts", metric("explanations", "coverage"), "metrics.json explanations cov"),
    "a layer": ("parts", cell("drift", "cosine", 3), "drift.csv"),
    "its drift": ("parts", metric("drift", "layers", 0, "eot", "mean"), "metrics.json drift layers"),
    "a probability": ("failure", cell("failure", "p", 0, 0.5), "failure.csv astronaut"),
    "another probability": ("failure", cells("failure", unlikely, 0), "failure.csv astronaut"),
    "its words": ("failure", metric("failure", "arms", "eot", 0, "words", value="never"), "metrics.json failure"),
    "where the patch lies": ("patch", entry("placement.json", "quads", 0, value=[]), "placement.json quads"),
    "a texture": ("patch", exchanged("patches/noise.png", "patches/eot.png"), "patches/noise.png"),
    "its figures": ("lean", lines("report.html", lambda all_: [x.replace("0.", "1.") for x in all_]), "report"),
    "a word of the report": ("lean", lines("report.html", lambda each: [*each, "<!-- passed -->"]), "report.html"),
    "a figure of a drawing": ("lean", painted("views.png"), "views.png"),
    "explanations": ("parts", painted("explanations.png"), "explanations.png"),
    "formats": ("parts", painted("deployment.png"), "deployment.png"),
    "checks that were not made": ("lean", metric("sanity", value=BATTERY), "metrics.json sanity"),
    "checks, configured": ("lean", swapped("sanity.pictures", 2), "metrics.json sanity"),
    "a larger budget": ("lean", swapped("attack.steps", 2500), "steps.csv eot, batch 0: it has 2 steps"),
    "more views": ("lean", swapped("attack.views", 5000), "steps.csv eot, batch 0"),
    "no overrides": ("lean", record("overrides", value=[]), "manifest.json config, of its preset"),
    "another override": ("lean", record("overrides", 4, value="sanity=short"), "manifest.json config, of its preset"),
    "another preset": ("lean", record("preset", value="quickstart"), "manifest.json config, of its preset"),
    "a checkpoint": ("lean", record("config", "checkpoint", "steps", value=7), "manifest.json config, of its preset"),
    "a loss": ("lean", lines("steps.csv", lambda x: [x[0], x[1].replace(",0.9", ",0.1"), *x[2:]]), "events"),
    "a missing step": ("lean", lines("steps.csv", lambda each: each[:-1]), "steps.csv eot"),
    "digits of a step": ("lean", lines("steps.csv", lambda x: [*x[:-1], x[-1][:-1] + ".0\n"]), "steps.csv: it"),
    "an event": ("lean", lines("events.jsonl", lambda x: [x[0], x[1].replace("0.9", "0.1"), *x[2:]]), "events"),
    "a missing event": ("lean", lines("events.jsonl", lambda x: [*x[:-4], *x[-3:]]), "events.jsonl: it has no line"),
    "its end": ("lean", lines("events.jsonl", lambda x: [y.replace("/mean\": 0", "/mean\": 1") for y in x]), "e"),
    "the passes of an arm": ("lean", metric("costs", "eot", "forward", by=90), "steps.csv eot: its steps took"),
    "a version": ("lean", record("versions", "torch", value="9"), "manifest.json versions torch"),
    "a setting": ("lean", record("engine", "settings", value=["engine.chunk=1"]), "manifest.json engine settings"),
    "no number": ("lean", cells("per_image", renamed("cosine"), 2), "per_image.csv line 4, cosine"),
    "too many cells": ("lean", lines("per_image.csv", lambda x: [*x[:-1], "x," + x[-1]]), "per_image.csv: it"),
    "no finite score": ("lean", scored("same/eot/cosine", first(lambda x: x * float("nan"))), SCORES),
    "fewer scores": ("lean", scored("same/eot/cosine", lambda x: x[:2]), SCORES),
    "fewer perturbations": ("lean", tensors("perturbation", lambda x: x.update(eot=x["eot"][:1])), "pert"),
    "a picture of another size": ("lean", cropped(f"pictures/eot/{A}"), f"pictures/eot/{A}: its shape"),
    "the patch": ("patch", exchanged("patch.png", "patches/noise.png"), "patch"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_an_edit_is_named_with_and_without_new_digests(runs, tmp_path, name):
    kind, edit, beginning = LIES[name]
    folder = shutil.copytree(runs(kind), tmp_path / "run")
    edit(folder)
    assert [*differences(folder, *both(folder))]
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


#: Runs that differ in what `verify` has to make again.
HONEST = {
    "one picture": ["data.count=1"],
    "a seed": ["seed=7"],
    "in batches": ["evaluate.batch=2"],
    "l2": ["perturbation=l2", "perturbation.eps=3"],
    "l1": ["perturbation=l1", "perturbation.eps=40"],
    "l0": ["perturbation=l0", "perturbation.eps=50"],
    "universal": ["perturbation.shared=true"],
    "grey": ["perturbation.grey=true"],
    "smooth": ["perturbation.smooth=2"],
    "toward": ["objective=toward"],
    "retrieval": ["objective=retrieval"],
    "triplet": ["objective=triplet"],
    "infonce": ["objective=infonce"],
    "verification": ["objective=verification"],
    "mixed": ["objective=mixed"],
    "layers": ["objective=layers", "objective.layers=[stages.2:mean,stages.8]"],
    "apgd": ["optimiser=apgd", "attack.restarts=2"],
    "square": ["optimiser=square"],
    "adam": ["optimiser=adam"],
    "sgd": ["optimiser=sgd"],
    "a penalty": ["penalty=tv"],
    "a risk": ["risk=cvar", "draws=antithetic", "attack.views=4"],
    "an adversary": ["attack.adversary=4"],
    "views=auto": ["attack.views=auto", "attack.steps=8"],
    "a hash": ["encoder=phash", "objective=bits", "transforms=identity"],
    "a defence": ["defence=jpeg"],
    "a defence among the views": ["transforms=resizers", "defence=random_phase", "evaluate.deploy=2"],
    "drift": ["evaluate.layers=all"],
    "no views": ["transforms=identity"],
    "two dimensions": ["transforms=eot2d"],
    "a wide bank": ["evaluate.wide=1.5"],
    "maps": ["evaluate.maps=[auto]", "evaluate.curves=[auto]"],
    "left out": ["evaluate.left_out=2"],
    "formats": ["evaluate.deploy=3"],
    "a pipeline": ["evaluate.pipeline=torch_nearest"],
    "explanations": ["evaluate.explain=2"],
    "failures": ["evaluate.failure=2", "evaluate.particles=50", "data.size=32"],
    "a suite": ["attack=suite", "attack.nearest=0"],
    "radii": ["attack=radius"],
    "radii in batches": ["attack=radius", "evaluate.batch=2"],
    "no one_view": ["evaluate.one_view=false"],
    "by cosine": ["evaluate.primary=cosine"],
    "without refinement": ["evaluate.refine=0"],
    "patch printed": ["printer=paper"],
    "patch anywhere": ["perturbation.place.scale=[0.4,0.6]"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", HONEST)
def test_honest_runs_of_every_kind_pass(small, tmp_path, name):
    preset = "patch" if name.startswith("patch") else "smoke"
    verdict = verify(made(tmp_path / "run", [*TINY, *HONEST[name]], preset), 1)
    assert verdict.passed and not verdict.notes, verdict


@pytest.mark.nightly
def test_a_run_on_other_threads_passes_with_a_note(runs):
    run, before = runs("lean"), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        verdict = verify(run, 1)
    finally:
        torch.set_num_threads(before)
    assert verdict.passed and any("the number of threads was 1" in note for note in verdict.notes)


@pytest.mark.nightly
def test_a_labelled_run_passes(tmp_path, small):
    pictures = made(tmp_path / "first", TINY) / "pictures" / "clean"
    table = ["path,cluster,identity", *(f"{path},{i // 2},{i % 2}" for i, path in enumerate(pictures.iterdir()))]
    (tmp_path / "list.csv").write_text("\n".join(table))
    data = ["data=folder", f"data.path={tmp_path / 'list.csv'}", f"data.gallery={tmp_path / 'list.csv'}"]
    folder = made(tmp_path / "run", [*(word for word in TINY if "count" not in word), *data])
    assert verify(folder, 1).passed
    (tmp_path / "list.csv").write_text("\n".join([*table[:-1], table[-1][:-1] + "7"]))
    verdict = verify(folder, 1)
    assert any("what is right" in line or "the file of" in line for line in verdict.problems), verdict


@pytest.mark.nightly
def test_a_module_in_memory_is_needed_again(tmp_path):
    torch.manual_seed(1)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 16)).eval()
    folder = made(tmp_path / "run", TINY, module=module)
    assert verify(folder, 1, module).passed
    with pytest.raises(ValueError, match="module in memory"):
        verify(folder)
    with torch.no_grad():
        module[2].weight.mul_(1.01)
    problems = verify(folder, 1, module).problems
    assert any("the encoder's weights" in line for line in problems)
    assert any(line.startswith(SCORES) for line in problems)


@pytest.mark.slow
def test_a_run_in_memory_or_in_an_archive_passes(runs, tmp_path):
    folder, memory = runs("lean"), fsspec.filesystem("memory")
    memory.put(str(folder), "/runs/lean", recursive=True)
    archive = shutil.make_archive(str(tmp_path / "runs"), "zip", folder.parent, folder.name)
    for location in ("memory://runs/lean", f"zip://{folder.name}::{archive}", f"file://{folder}"):
        verdict = verify(location)
        assert verdict.passed, (location, verdict)
    memory.pipe(f"/runs/lean/pictures/eot/{A}", b"no picture")
    assert any(line.startswith(f"pictures/eot/{A}: its sha256") for line in verify("memory://runs/lean").problems)
    with pytest.raises(FileNotFoundError, match="no files"):
        verify("memory://runs/none")


def damages(data, seed):
    """A file with its head, middle and tail flipped, set to zero, cut, and with bytes added."""
    for at in (0, len(data) // 2, len(data) - 1):
        yield data[:at] + bytes([data[at] ^ (1 << seed % 8)]) + data[at + 1 :]
        yield data[:at] + bytes(min(16, len(data) - at)) + data[at + 16 :]
    yield from (data[: len(data) // 2], data[:-1], b"", data + b"\n", data + data[:16], b" " + data)


@pytest.mark.slow
def test_no_damage_is_silent(runs, tmp_path):
    folder, count = shutil.copytree(runs("lean"), tmp_path / "run"), 0
    names = [*json.loads((folder / "files.json").read_text())["files"], "files.json"]
    for seed, path in enumerate(folder / name for name in names):
        whole = path.read_bytes()
        for damaged in damages(whole, seed):
            if damaged == whole:
                continue
            count += 1
            path.write_bytes(damaged)
            try:
                content, record = (
                    json.loads((folder / f"{each}.json").read_bytes()) for each in ("metrics", "manifest")
                )
                assert [*differences(folder, record, content)], (path, len(damaged))
            except ValueError:  # no JSON, which `verify` names too
                assert not verify(folder).passed
        path.write_bytes(whole)
    assert count >= 300 and not [*differences(folder, *both(folder))]


@pytest.mark.nightly
@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b"])
def test_a_list_that_leads_elsewhere_is_refused(runs, tmp_path, path):
    folder = shutil.copytree(runs("lean"), tmp_path / "run")
    listed = json.loads((folder / "files.json").read_text())
    listed["files"][path] = {"sha256": "0" * 64, "size": 1}
    (folder / "files.json").write_text(json.dumps(listed))
    assert any("lead to no other folder" in line for line in verify(folder).problems)


@pytest.mark.slow
def test_what_is_no_finished_run_is_named(runs, tmp_path):
    folder = shutil.copytree(runs("lean"), tmp_path / "run")
    (folder / "metrics.json").unlink()
    assert "not finished" in verify(folder).problems[0]
    (folder / "metrics.json").symlink_to(runs("lean") / "metrics.json")
    with pytest.raises(ValueError, match="leads out"):
        verify(folder)
    with pytest.raises(FileNotFoundError, match="must be the directory"):
        verify(tmp_path / "none")


@pytest.mark.slow
def test_the_command_names_what_is_wrong(runs, tmp_path, capsys):
    folder = shutil.copytree(runs("lean"), tmp_path / "run")
    assert main(["verify", str(folder)]) == 0
    assert "PASS" in capsys.readouterr().out
    cell("per_image", "cosine")(folder)
    assert main(["verify", str(folder), "--sample", "0.5"]) == 1
    assert "per_image.csv line 2, cosine: recorded" in capsys.readouterr().out
    for words in (["--sample", "2"], ["--sample", "x"], ["--seed", "x"]):
        assert main(["verify", str(folder), *words]) == 1
        assert words[0].lstrip("-") in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AttributeError, TypeError, RuntimeError, ValueError, KeyError])
def test_an_error_of_the_check_is_no_damage_of_the_run(runs, monkeypatch, capsys, kind):
    monkeypatch.setattr(judged_again, "views", lambda *_: (_ for _ in ()).throw(kind("broken")))
    with pytest.raises(CheckerError, match=f"verify itself failed: {kind.__name__}.*says nothing about the run"):
        verify(runs("lean"))
    assert main(["verify", str(runs("lean"))]) == 5
    assert "verify itself failed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_maker_cannot_choose_the_sample(runs):
    folder = runs("lean")
    first_seed, other = verify(folder).seed, verify(folder).seed
    assert first_seed != other and verify(folder, seed=first_seed).seed == first_seed


@pytest.mark.parametrize(
    ("sizes", "views", "drawn"), [([1], 8, 1), ([3, 1], 32, 4), ([1] * 40, 32, 4), ([2, 5], 6, 6)]
)
def test_what_a_sample_can_miss_is_the_best_of_all_forgeries(sizes, views, drawn):
    """Against a search of all ways to alter views, by the hypergeometric distribution."""
    clusters = [f"{i}" for i, size in enumerate(sizes) for _ in range(size)]
    bound = judged_again.missed(clusters, views, drawn)
    weights = np.array([1 / (len(sizes) * sizes[int(name)] * views) for name in clusters])
    random, best = np.random.default_rng(0), 0.0
    for _ in range(2000):
        altered = np.minimum(random.multinomial(random.integers(1, 3 * views), random.dirichlet(weights * 40)), views)
        if hypergeom.pmf(0, views, altered, drawn).prod() > judged_again.ESCAPE:
            best = max(best, float(weights @ altered))
    hits = [3 in judged_again.Drawn(drawn / views, seed).of(views, "same/eot/0") for seed in range(2000)]
    assert abs(np.mean(hits) - drawn / views) < 0.04
    assert best <= bound + 1e-12 and bound <= best + 1.5 * weights.max() + 0.2 * bound


def test_sanity_checks_that_do_not_fit_are_named():
    run, sane = compose("smoke", ["sanity=short"]), json.loads(json.dumps(BATTERY))
    sane["checks"][-1]["words"] = masking([Check(x["name"], "passed", "") for x in sane["checks"][:-1]]).message
    assert not [*checked(run, {"sanity": sane, "failed": []})]
    for at in range(len(NAMES)):
        for edit in ({"verdict": "failed"}, {"name": "another"}):
            content = json.loads(json.dumps(sane))
            content["checks"][at] |= edit
            assert [*checked(run, {"sanity": content, "failed": []})]
    assert [*checked(compose("smoke", ["sanity=none"]), {"sanity": sane, "failed": []})]
    assert [*checked(run, {"sanity": None, "failed": []})]


def test_a_program_is_not_run_for_a_directory_alone(runs, tmp_path, monkeypatch):
    (tmp_path / "metrics.json").write_text('{"files": "0"}')
    config = {"encoder": {"name": "torchscript", "model": "evil.pt"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"config": config}))
    assert not verify(tmp_path).passed


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"files": "0"}'])
@pytest.mark.parametrize("record", ["metrics", "manifest"])
def test_a_record_without_its_keys_is_a_problem(tmp_path, record, content):
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "manifest.json").write_text(manifest())
    (tmp_path / f"{record}.json").write_text(content)
    (line,) = verify(tmp_path).problems
    assert ".json` " in line and ("is not what a run writes: " in line or "has no `config`" in line)


@pytest.mark.parametrize(
    ("value", "lacking"),
    [
        ({"a": [{"b": 1}], "c": None}, None),
        ({"a": [], "c": {"d": "x"}}, None),
        ({"a": [{"b": 1}, {}], "c": None}, "a.1.b"),
        ({"a": [{"b": "x"}], "c": None}, "a.0.b"),
        ({"a": {}, "c": None}, "a"),
        ({"a": []}, "c"),
        ({"a": [], "c": {"d": 1}}, "c.d"),
        ([], ""),
    ],
)
def test_the_first_key_that_does_not_fit_is_named(value, lacking):
    assert misfit(value, {"a": [{"b": int}], "c": ({"d": str}, None)}) == lacking


def test_leaves_and_rows_name_what_differs():
    was, now = {"a": [1, 2.0], "b": "x", "c": None}, {"a": [1, 2.5], "b": "y", "d": 1}
    assert sorted(leaves("f", was, now)) == [
        "f a 1: recorded 2.0, recomputed 2.5",
        "f b: recorded x, recomputed y",
        "f c: null is recorded, and there is none",
        "f d: it is missing; recomputed 1",
    ]
    assert not [*leaves("f", 1.0, 1.0 + 1e-12)] and [*leaves("f", True, 1)] and [*leaves("f", float("nan"), 1.0)]
    assert [*rows("t.csv", [{"a": "1"}], [{"a": 1}, {"a": 2}])] == ["t.csv: it has 1 rows; recomputed 2"]
    assert [*rows("t.csv", [{"b": "1"}], [{"a": 1}])] == ['t.csv line 2: its columns are ["b"]; recomputed ["a"]']

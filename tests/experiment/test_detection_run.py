"""The part detection of a run: what it writes, what `verify` checks of it, and pipelines that it refuses."""

import shutil
import sys

import cv2
import pytest

from attacks import verify
from attacks.experiment.directory import interrupted_run, read_json
from attacks.experiment.job import job
from attacks.resizers.pipeline import function_name
from attacks.run import compose
from attacks.runtime.tables import read_rows
from tests.helpers.liars import cell, file_bytes
from tests.helpers.wrong import refused

TINY = ["data.count=2", "data.size=96", "attack.steps=1", "attack.views=2", "sanity=none", "evaluate.views=2"]
TINY += ["evaluate.refine=0", "evaluate.one_view=false", "transforms=identity"]


def prepare(picture):
    return cv2.resize(picture[..., ::-1], (48, 48)) / 255.0


def run_folder(folder, *words, **options):
    job(compose("smoke", [*TINY, *words]), folder, "smoke", [*TINY, *words], **options)
    return folder


@pytest.fixture
def run(shared_runs):
    return shared_runs("config=smoke", *TINY, "evaluate.pipeline=cv2_linear")


@pytest.mark.slow
def test_a_run_has_a_row_for_each_arm_and_picture_and_passes(run, tmp_path):
    rows, metrics = read_rows(run / "detection.csv"), read_json(run / "metrics.json")
    content = metrics["detection"]
    pairs = [(arm, name) for arm in content["arms"] for name in metrics["queries"]]
    assert [(row["arm"], row["picture"]) for row in rows] == pairs and len(pairs) == 6
    assert (content["pipeline"], content["size"], content["bound"]) == ("cv2_linear", [48, 48], 0.5)
    verdict = verify(run, 1)
    assert verdict.passed and not verdict.notes, verdict
    cell("detection", "cosine", 3)(shutil.copytree(run, tmp_path / "edited"))
    file_bytes(tmp_path / "edited")
    problems = verify(tmp_path / "edited", 1).problems
    assert any(line.startswith("detection.csv") and "judged again" in line for line in problems), problems


@pytest.mark.slow
def test_a_function_has_the_rows_of_its_kernel_and_the_record_names_it(run, tmp_path):
    folder = run_folder(tmp_path / "run", pipeline=prepare)
    assert (folder / "detection.csv").read_bytes() == (run / "detection.csv").read_bytes()
    name = function_name(prepare)
    assert name.endswith("test_detection_run.prepare") and name.startswith("given in Python: ")
    assert read_json(folder / "manifest.json")["config"]["evaluate"]["pipeline"] == name
    page = (folder / "report.html").read_text()
    assert name in page and "pass the same function" in page
    no_pipeline = verify(folder, 1)
    assert no_pipeline.passed and [note for note in no_pipeline.notes if "its cosines were not judged again" in note]
    repeat = verify(folder, 1, pipeline=prepare)
    assert repeat.passed and not repeat.notes
    wrong = verify(folder, 1, pipeline=lambda picture: picture[::2, ::2])
    assert any(line.startswith("detection.csv clean") for line in wrong.problems)
    (folder / "metrics.json").unlink()
    refused("`pipeline` was a function in memory", interrupted_run, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["evaluate.pipeline=cv2_line"], {}, "`evaluate.pipeline` must be null or one of pil_box"),
        (["evaluate.pipeline=os:system"], {}, "`evaluate.pipeline` must be null or one of pil_box"),
        (["evaluate.pipeline='keys(-0.5)'"], {}, "`evaluate.pipeline` must be null or one of pil_box"),
        (["evaluate.pipeline='given in Python: x'"], {}, "a function is given from Python"),
        (["evaluate.pipeline={_target_: os.system}"], {}, "evaluate.pipeline"),
        ([], {"pipeline": len}, "`pipeline` must turn an 8-bit picture"),
        (["workers=2"], {"pipeline": prepare}, "`workers` must be 1 for a function in memory"),
    ],
)
def test_what_is_no_pipeline_is_refused_in_one_line(tmp_path, words, options, message):
    refused(message, run_folder, tmp_path / "run", *words, **options)
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_library_that_is_not_installed_is_named_before_the_attack(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    refused(r"cv2 cannot be imported .*pip install", run_folder, tmp_path / "run", "evaluate.pipeline=cv2_linear")
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_a_function_that_fails_on_a_picture_costs_only_this_part(tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("`pipeline` must turn an 8-bit picture")

    monkeypatch.setattr("attacks.experiment.sections.judged.detection.cosines", fails)
    folder = run_folder(tmp_path / "run", "evaluate.pipeline=pil_nearest")
    content = read_json(folder / "metrics.json")
    assert content["detection"] is None and "`pipeline`" in content["failed_parts"]["detection"]

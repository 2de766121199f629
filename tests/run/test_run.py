"""The command line as a user sees it: a whole run, the same run again, and every wrong input."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.helpers.processes import without_times
from tests.helpers.runs import call

ROOT = Path(__file__).resolve().parents[2]


def process(folder):
    """The directory of a run in a process of its own, warnings as errors."""
    command = [sys.executable, "-W", "error", "-m", "attacks.run", "config=smoke", f"hydra.run.dir={folder}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return folder


def step_rows(folder):
    """The rows of steps.csv."""
    return list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))


@pytest.fixture
def finished(shared_runs):
    """The directory of a run, and what it printed."""
    folder = shared_runs("config=smoke")
    return folder, SimpleNamespace(**{name: (folder.parent / name).read_text() for name in ("stdout", "stderr")})


def test_the_run_directory_is_complete(finished):
    folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        *("metrics.json", "manifest.json", "steps.csv", "adversarial.png", "perturbation.safetensors"),
        *("views.png", "report.html", "pictures", ".lock"),
    }
    assert not list(folder.rglob("*.tmp"))


def test_metrics_hold_five_arms_with_intervals(finished):
    content = json.loads((finished[0] / "metrics.json").read_text())
    assert list(content["arms"]) == ["clean", "noise", "no_eot", "one_view", "eot"]
    for row in content["arms"].values():
        assert row["worst_cosine"]["mean"] >= row["cosine"]["mean"]
        for key in ("cosine", "worst_cosine", "recall_at_1", "success"):
            assert row[key]["low"] <= row[key]["mean"] <= row[key]["high"]
    assert content["gallery"] >= 200 and content["bank"]["views"] == 16
    # The gradients of the three optimised arms; then, in all five, 4 views of each picture refined 5 times.
    evals = {row["arm"]: int(row["evals"]) for row in step_rows(finished[0])}  # the last line of each arm
    assert content["cost"]["backward"] == sum(evals.values()) + 5 * 2 * 4 * (5 + 1)


def test_manifest_report_and_terminal_describe_the_run(finished):
    folder, output = finished
    content = json.loads((folder / "manifest.json").read_text())
    encoder, page = content["encoder"], (folder / "report.html").read_text()
    assert json.loads((folder / "metrics.json").read_text())["encoder"] == encoder
    assert all(encoder[key][:12] in text for key in ("sha256", "fingerprint") for text in (page, output.stdout))
    assert "<dd>pocket</dd>" in page and re.search("(?m)^encoder: pocket; .*; defence none$", output.stdout)
    assert content["preset"] == "smoke" and "config=smoke" in content["overrides"]
    assert re.fullmatch("[0-9a-f]{64}", content["encoder"]["sha256"])
    assert content["versions"]["torch"] == torch.__version__.split("+")[0] or content["versions"]["torch"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits(finished, tmp_path):
    first, second = finished[0], process(tmp_path / "second")
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.suffix in (".png", ".csv", ".safetensors"))
    assert len(files) >= 11
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    contents = [without_times(json.loads((folder / "metrics.json").read_text())) for folder in (first, second)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("arm", ["noise", "no_eot", "one_view", "eot"])
def test_saved_pictures_are_within_the_budget_and_equal_the_saved_delta(finished, arm):
    folder, _ = finished
    delta = load_file(folder / "perturbation.safetensors")[arm]
    for row, path in zip(delta, sorted((folder / "pictures" / arm).iterdir()), strict=True):
        clean = np.asarray(Image.open(folder / "pictures" / "clean" / path.name)).astype(int)
        change = np.asarray(Image.open(path)).astype(int) - clean
        assert 0 < np.abs(change).max() <= 16
        assert np.array_equal(change, (row * 255).round().permute(1, 2, 0).numpy().astype(int))


def test_steps_are_written_one_per_line(finished):
    rows = step_rows(finished[0])
    plain = sum(row["arm"] == "no_eot" for row in rows)
    assert 4 <= plain <= 8  # it may stop early
    assert [row["arm"] for row in rows[plain:]] == ["one_view"] * 8 + ["eot"] * 4
    assert rows[-1]["held_out"] and rows[-1]["evals"] == str(2 * 4 * 2)


def test_the_output_ends_with_the_answer_the_report_and_a_command(finished):
    folder, output = finished
    lines = [line for line in output.stdout.splitlines() if not line.startswith("warning: ")]
    (head,) = (i for i, line in enumerate(lines) if line.startswith("arm "))
    assert [line.split()[0] for line in lines[head + 1 : head + 6]] == ["clean", "noise", "no_eot", "one_view", "eot"]
    assert any(
        re.fullmatch(rf"record: sha256 [0-9a-f]{{64}} \(viewproof verify {folder} .*\)", line) for line in lines
    )
    answer_text = lines[lines.index("") + 1 :]
    assert re.match(r"After the attack, \d+ % .* of unseen camera views are taken for", answer_text[0])
    place = answer_text.index(f"report: {folder / 'report.html'}")
    assert (
        answer_text[place + 1].startswith("Next: ")
        and answer_text[-1] == "    viewproof check pocket PICTURES --for USE"
    )


def test_progress_without_a_terminal_is_plain_lines(finished):
    error = finished[1].stderr
    assert "\r" not in error and "\x1b" not in error and len(re.findall(r"(?m)^[a-z_, ]+: \d+ %", error)) <= 10
    assert re.search(r"(?m)^[a-z_]+: \d+ %  \d\d:\d\d, \d\d:\d\d left  loss -?\d", error)
    first = (
        r"smoke: attack 2 pictures within linf 16/255 .*, 8 gradients each; judge the encoder pocket on 16 unseen "
    )
    assert re.match(rf"{first}views; about [\d.]+ to [\d.]+ s\n", error)


def test_a_dry_run_says_what_the_run_does_and_writes_no_file(finished, monkeypatch, capsys, tmp_path):
    folder, output = finished
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "config=smoke", "--dry-run") == 0
    task, memory, files, views = capsys.readouterr().out.splitlines()
    assert task.rpartition("; about ")[0] == output.stderr.split("; about ")[0].replace("\n", " ")
    count, size = re.fullmatch(r"files: at most (\d+), ([\d.]+) MB of pictures", files).groups()
    pictures = [*(folder / "pictures").rglob("*.png")]
    assert int(count) >= len([path for path in folder.rglob("*") if path.is_file()]) - 1  # .lock
    assert 1e6 * float(size) >= 0.9 * sum(path.stat().st_size for path in pictures) > 0
    assert re.fullmatch(r"memory: about [\d.]+ GB", memory) and views in output.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_torch_is_not_loaded_for_help_or_a_typo():
    text = (
        "import sys\nfrom attacks.run import cli\n"
        "for line, code in (('--help', None), ('config=quikstart', 1), ('config=smoke attack.stepz=1', 1)):\n"
        "    sys.argv, ended = ['viewproof', *line.split()], None\n"
        "    try: cli()\n    except SystemExit as stop: ended = stop.code\n"
        "    assert ended == code, line\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
def test_a_sweep_runs_every_job_and_reports_failures(monkeypatch, capsys, tmp_path):
    words = "config=smoke -m perturbation.eps=8/255,9 data.count=1 attack.steps=1 evaluate.views=2 evaluate.refine=0"
    words += f" data.size=64 evaluate.one_view=false hydra.sweep.dir={tmp_path}"
    assert call(monkeypatch, *words.split()) == 1
    assert (tmp_path / "0" / "metrics.json").exists() and not (tmp_path / "1" / "metrics.json").exists()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "did you mean 9/255?" in errors[0] and errors[0].startswith("error: job 1: ")
    assert (tmp_path / "index.csv").exists()


@pytest.mark.slow
def test_conversions_of_the_users_pictures_are_noted(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (150, 200, 4), dtype=np.uint8)).save(folder / "alpha.png")
    Image.fromarray(rng.integers(0, 65535, (96, 96), dtype=np.uint16)).save(folder / "deep.png")
    short = ["config=smoke", "attack.steps=1", "evaluate.views=2", "evaluate.refine=0", "data=folder", "data.size=96"]
    code = call(monkeypatch, *short, "sanity=none", f"data.path={folder}", f"hydra.run.dir={tmp_path / 'out'}")
    output = capsys.readouterr().err
    assert code == 0
    for note in ("alpha.png: alpha channel laid over white", "alpha.png: 200x150 resized", "deep.png: "):
        assert f"note: {note}" in output
    assert json.loads((tmp_path / "out/metrics.json").read_text())["queries"] == ["alpha.png", "deep.png"]


PRESETS = ("targeted", "quickstart", "sgd_l2", "suite")
PRESETS += ("patch", "patch_quickstart", "patch_eot3d", "patch_universal")
LARGE = pytest.param("downscale", marks=pytest.mark.nightly)


@pytest.mark.parametrize("preset", [*(pytest.param(name, marks=pytest.mark.slow) for name in PRESETS), LARGE])
def test_every_preset_runs_in_a_short_version(monkeypatch, capsys, tmp_path, preset):
    short = ["sanity=none", "attack.steps=3", "attack.views=2", "evaluate.views=4", "data.count=1"]
    assert call(monkeypatch, f"config={preset}", *short, f"hydra.run.dir={tmp_path}") == 0
    assert (tmp_path / "report.html").exists()

"""The whole evaluation from Python: a short call, and the same run as on the command line."""

import html
import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import notebook
from attacks.notebook import Robustness, robustness
from attacks.schema.composition import words
from tests.helpers.page import Page
from tests.helpers.wrong import refused

#: The smallest run with all its arms.
SMALL = {"transforms.stages.downscale.size": [24, 32]}  # views of another size than the picture's
TINY = {"data.count": 2, "attack.steps": 2, "attack.views": 2, "evaluate.views": 4, "evaluate.refine": 0}

POLICY = """
claim: it withstands the attack
date: 2026-11-24
threat: {perturbation: linf, perturbation.eps: 16/255}
requirements:
  - {measure: cosine, arm: eot, at_least: -0.999}
"""
PAGE = '<!doctype html><title>a "page" & more</title><script>alert(1)</script>'


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """Calls of `job`, which runs nothing."""
    calls = []

    def job(run, out, preset, overrides, *, module=None, pipeline=None):
        calls.append({"run": run, "out": out, "preset": preset, "overrides": overrides, "module": module})
        calls[-1]["pipeline"] = pipeline
        return {"arms": {}} if run.shard is None else {}

    monkeypatch.setattr(notebook, "job", job)
    monkeypatch.chdir(tmp_path)
    return calls


def test_arguments_set_the_configuration_like_overrides(calls, tmp_path):
    result = robustness("timm:vit_tiny", tmp_path, preset="smoke", eps="4/255", seed=3, **{"attack.steps": 5})
    (call,) = calls
    run = call["run"]
    assert (run.encoder.name, run.encoder.model, run.seed, run.attack.steps) == ("timm", "vit_tiny", 3, 5)
    assert (run.data.path, run.perturbation.eps, call["module"]) == (str(tmp_path), "4/255", None)
    assert call["preset"] == "smoke" and "data=folder" in call["overrides"]
    assert result.folder == call["out"] and result.folder.parts[0] == "outputs"
    module = torch.nn.Flatten().eval()
    for out in (None, None, tmp_path / "here"):
        robustness(module, preset="smoke", out=out)
    assert all(call["module"] is module for call in calls[1:])
    assert len({call["out"] for call in calls}) == 4 and calls[3]["out"] == tmp_path / "here"


def conv(*layers):
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(16), torch.nn.Conv2d(3, 4, 8, stride=8), *layers)


class Pair(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1), x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "message"),
    [
        (conv(), r"one floating-point tensor \(N,D\), .*; got shape \(\d+, 4, 2, 2\): it is a map"),
        (conv(torch.nn.Flatten(0)), r"got shape \(\d+,\): keep one row a picture"),
        (Pair(), "got a tuple of 2"),
        (torch.nn.Flatten(), "as many features for every size of picture; it gave 3072 before and 12288"),
        (
            torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 8)),
            r"`encoder` fails on pictures shaped \(\d.*begin with a resize \(attacks.encoders.with_preprocess, .*mat",
        ),
    ],
)
def test_the_error_for_a_module_that_is_no_encoder_names_its_output_or_the_resize(module, message, tmp_path):
    refused(message, robustness, module.eval(), preset="smoke", out=tmp_path, **TINY | SMALL, **{"data.size": 64})
    assert not module._forward_hooks and not module._forward_pre_hooks


@pytest.mark.slow
@pytest.mark.parametrize("error", ["unsupported operation", "a size that no call of the encoder met"])
def test_another_error_stays_as_it_is(error, calls, monkeypatch):
    def job(run, out, preset, overrides, *, module, pipeline):
        module(torch.zeros(1, 3, 4, 4))
        raise RuntimeError(error)

    monkeypatch.setattr(notebook, "job", job)
    with pytest.raises(RuntimeError, match=error):
        robustness(torch.nn.Flatten().eval(), preset="smoke")


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_the_state_of_a_module_is_restored(fails, calls, monkeypatch):
    """Training may continue after an evaluation, even after one that failed."""

    def job(run, out, preset, overrides, *, module, pipeline):
        module.eval().requires_grad_(False)
        if fails:
            raise ValueError("no")
        return {"arms": {}}

    monkeypatch.setattr(notebook, "job", job)
    module = conv(torch.nn.BatchNorm2d(4).eval(), torch.nn.Flatten()).train()
    module[2].eval().bias.requires_grad_(False)

    def state():
        return [part.training for part in module.modules()], [p.requires_grad for p in module.parameters()]

    first = state()
    with pytest.raises(ValueError, match="no") if fails else nullcontext():
        robustness(module, preset="smoke")
    assert state() == first and not module._forward_hooks and {True, False} == set(first[0]) == set(first[1])


def test_a_preset_may_be_a_file_of_the_user(calls, tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [/config/smoke, _self_]\nattack: {steps: 7}\n")
    robustness(preset="./mine.yaml")
    assert (calls[0]["run"].attack.steps, calls[0]["preset"]) == (7, "mine")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attack.stepz": 3}, "stepz"),
        ({"data.count": "many"}, "data.count"),
        ({"data.count": object()}, "`data.count`"),
        ({"+attack.steps": 3}, "keys of the configuration"),
        ({"preset": "nothing"}, "nothing"),
        ({"pipeline": 3}, "`pipeline` must be a kernel's name, such as cv2_linear, or a function; got int"),
        ({"encoder": abs}, "`encoder` must be a name or a torch.nn.Module"),
        ({"pictures": 3}, "`pictures` must be a path, a list of paths, a tensor, or .* got int"),
        ({"pictures": []}, "at least one picture"),
        ({"encoder": {"../x": "pocket"}}, "names of letters"),
        ({"eps": "8/255", "perturbation.eps": "4/255"}, "`perturbation.eps` is given twice: '8/255' by its own"),
    ],
)
def test_a_wrong_argument_gives_a_one_line_error_and_runs_nothing(calls, values, message):
    refused(message, robustness, **{"preset": "smoke"} | values)
    assert calls == []


@pytest.mark.parametrize("encoder", ["pocket", ["pocket", "phash"]])
def test_a_file_in_place_of_the_folder_stays_unchanged(calls, tmp_path, encoder):
    (tmp_path / "index.html").write_text("my site")
    with pytest.raises(ValueError, match=r"`out` must be a folder, and .*index.html is a file; name another"):
        robustness(encoder, torch.rand(2, 3, 8, 8), preset="smoke", out=tmp_path / "index.html")
    refused(r"`out`: .*index.html was not written by viewproof", robustness, ["phash"], preset="smoke", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"] and calls == []


def test_a_shard_that_is_not_the_last_has_no_result(calls):
    refused("`shard=0/2` is done, and others are at work", robustness, preset="smoke", shard="0/2", out="run")


@pytest.mark.slow
def test_a_pipeline_is_a_name_of_the_configuration_or_a_function(calls):
    robustness(preset="smoke", pipeline="torch_bilinear")
    robustness(preset="smoke", pipeline=abs)
    assert [call["run"].evaluate.pipeline for call in calls] == ["torch_bilinear", None]  # `job` records a function
    assert [call["pipeline"] for call in calls] == [None, abs]


@pytest.mark.slow
def test_an_online_tracker_must_be_named_in_the_call_and_not_in_a_preset(calls, tmp_path):
    online = "defaults: [/config/smoke, {override /tracker: wandb}, _self_]\ntracker: {mode: online}\n"
    (tmp_path / "theirs.yaml").write_text(online)
    refused("sends the run over the network", robustness, preset="./theirs.yaml")
    server = "https://tracking.example"
    robustness(preset="smoke", tracker="mlflow", **{"tracker.uri": server})
    assert [call["run"].tracker.uri for call in calls] == [server]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | FLOATS
LEAVES |= FLOATS.map(np.float64) | st.integers(-9, 9).map(np.int64)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")))


@given(st.recursive(LEAVES | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
@settings(max_examples=60, deadline=None)
def test_hydra_parses_every_value_back_unchanged(value):
    """Its own parser is the oracle."""
    override = OverridesParser.create().parse_override(*words({"key": value}))
    assert override.key_or_group == "key"
    assert override.value() == value


def test_a_result_reads_its_rows_and_shows_its_report(tmp_path):
    (tmp_path / "report.html").write_text(PAGE)
    (tmp_path / "per_image.csv").write_text("picture,arm,cosine,rank,knn\n0001,eot,0.1,3,\n")
    result = Robustness(tmp_path, {"arms": {"eot": {"success": {"mean": 0.5}}}})
    assert result.per_image == [{"picture": "0001", "arm": "eot", "cosine": 0.1, "rank": 3, "knn": None}]
    assert result.arms["eot"]["success"]["mean"] == 0.5

    ((tag, attributes),) = Page(result._repr_html_()).elements  # nothing of the page is outside of the frame
    assert tag == "iframe" and attributes["srcdoc"] == PAGE
    assert not attributes["sandbox"]  # no scripts, no forms, no navigation
    assert html.escape(PAGE) in result._repr_html_()


@pytest.mark.slow
def test_notebook_cell_is_short_and_equals_the_command_line_run(tmp_path, monkeypatch):
    """The tutorial's cell, counted, against `python -m attacks.run` with the same overrides."""
    from attacks.experiment.job import job
    from attacks.run import compose

    root = Path(__file__).resolve().parents[2]
    cells = re.findall(r"(?ms)^```python\n(.*?)^```", (root / "docs" / "tutorial.md").read_text())
    (cell,) = [cell for cell in cells if "robustness(" in cell and "import" in cell and "module" not in cell]
    assert len([line for line in cell.splitlines() if line.strip()]) < 15
    monkeypatch.chdir(tmp_path)
    result = robustness(preset="smoke", out="a", **TINY)
    job(compose("smoke", words(TINY)), tmp_path / "b", "smoke", [])
    assert (tmp_path / "a" / "per_image.csv").read_bytes() == (tmp_path / "b" / "per_image.csv").read_bytes()
    assert result.metrics["arms"] == json.loads((tmp_path / "b" / "metrics.json").read_text())["arms"]

    def events(name):
        lines = (tmp_path / name / "events.jsonl").read_text().splitlines()
        return [json.loads(line) | {"seconds": 0} for line in lines]

    first = events("a")
    assert first == events("b") and len(first) > 8
    robustness(preset="smoke", out="a", overwrite=True, **TINY)  # its events are those of one run
    assert events("a") == first
    pictures = {row["picture"] for row in result.per_image}
    assert pictures == set(result.metrics["queries"]) and "eot" in str(result)
    assert "<iframe sandbox" in result._repr_html_()


@pytest.mark.nightly
def test_several_encoders_are_compared_on_the_same_pictures(tmp_path):
    values = {key: value for key, value in (TINY | SMALL).items() if key != "attack.steps"}
    encoders = {"one": "pocket", "two": conv(torch.nn.Flatten()).eval()}
    values["data.size"] = 96  # what the pocket encoder reads, so that both encoders get the same views
    result = robustness(encoders, torch.rand(2, 3, 96, 96), preset="smoke", steps=2, out=tmp_path, **values)
    first, two = result.runs.values()
    assert first.metrics["pixels"] == two.metrics["pixels"] and first.folder == tmp_path / "one"
    table = result.table()
    assert {dict(zip(table.head, row, strict=True))["run"] for row in table.rows} == {"one", "two"}
    assert "one" in str(result) and table.head[-1] == "clean"
    assert "<iframe sandbox" in result._repr_html_() and "<table>" in result.table()._repr_html_()
    assert {row[0] for row in first.table().rows} == set(first.arms) and first.plot().axes
    assert len(list(tmp_path.glob("pictures-*"))) == 1
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    assert first.gate(policy).verdict == "UNDECIDED"  # the attack was not checked

"""The engine's decision: fixed, measured, or read from an earlier run."""

import json

import pytest

from attacks.encoders.engine import Decision, tuner
from attacks.experiment.tuning import earlier
from tests.run.test_run import call

SHORT = ["config=smoke", "attack.steps=2", "evaluate.views=4", "evaluate.refine=1", "data.count=2"]


@pytest.fixture
def job(monkeypatch, tmp_path):
    """Run a configuration; gives its exit status and its directory."""

    def start(name, *arguments):
        folder = tmp_path / name
        return call(monkeypatch, *SHORT, *arguments, f"hydra.run.dir={folder}"), folder

    return start


def engine(folder):
    return json.loads((folder / "manifest.json").read_text())["engine"]


def figures(folder):
    return json.loads((folder / "metrics.json").read_text())["arms"]


@pytest.mark.slow
def test_fixed_settings_are_kept_and_nothing_is_measured(job):
    code, folder = job("a", "engine.layout=channels_last", "engine.fold=true", "engine.chunk=3")
    assert code == 0
    assert engine(folder)["decision"] == Decision("channels_last", fold=True, chunk=3).to_dict()
    assert engine(folder)["measurements"] == []


@pytest.mark.slow
def test_a_short_run_is_not_worth_measuring(job):
    code, folder = job("a", "engine=auto")
    assert code == 0
    (only,) = engine(folder)["measurements"]
    assert "not measured" in only["why"] or "too short" in only["why"]
    assert engine(folder)["decision"]["precision"] == "float32"


@pytest.mark.slow
@pytest.mark.parametrize("views", ["2", "auto"])
def test_the_measured_decision_is_written_and_can_be_reused(job, monkeypatch, capsys, views):
    monkeypatch.setattr(tuner, "SHORT", 0.0)
    monkeypatch.setattr(tuner, "BUDGET", 1e9)
    code, measured = job("a", "engine=auto", "engine.compile=false", f"attack.views={views}")
    assert code == 0
    result = engine(measured)
    names = {m["name"] for m in result["measurements"]}
    assert {"start", "channels_last", "fold", "mixed", "bfloat16", "float16"} <= names
    for m in result["measurements"]:
        assert m["why"] and "noise is unknown" not in m["why"]
        if m["taken"] and m["settings"]["precision"] != "float32":
            assert m["rounding"] ** 2 < 0.15 * m["noise"] ** 2
    output = capsys.readouterr().err
    assert "rounding" in output and "sampling noise" in output
    assert f"note: engine: {' '.join(result['settings'])}" in output
    monkeypatch.setattr("attacks.experiment.tuning.choose", None)  # nothing is measured again
    again = {"overrides": result["settings"], "run": [f"engine.reuse={measured}"]}
    for name, overrides in again.items():
        code, repeated = job(name, "engine=auto", *overrides, f"attack.views={views}")
        assert code == 0
        assert engine(repeated)["decision"] == result["decision"]
        assert figures(repeated) == figures(measured)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"engine": 3}', '{"engine": {"decision": {"speed": 9}}}'])
def test_refuses_a_manifest_without_a_decision(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="engine"):
        earlier(str(tmp_path))


@pytest.mark.slow
def test_a_weak_attack_is_reported_as_weak(job, capsys):
    code, _ = job("a", "optimiser.rel_step_size=1e-6")
    assert code == 0
    assert "hardly more than random noise" in capsys.readouterr().out
    code, _ = job("b", "attack.steps=8")
    assert code == 0
    assert "hardly more than random noise" not in capsys.readouterr().out

"""The engine's decision: fixed, measured, or read from an earlier run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attacks.experiment.units
from attacks.data.images import save_image
from attacks.encoders.engine import Choice, Decision, tuner
from attacks.experiment.bench import Place, bench_of
from attacks.experiment.preparation import prepare_run, read_decision
from attacks.run import compose
from attacks.runtime.distributed import ALONE
from attacks.verification.judgement import Slack
from attacks.verification.verify import verify
from tests.helpers.processes import facts
from tests.helpers.runs import LEAN, TINY, call

SHORT = ["config=smoke", "attack.steps=2", "evaluate.views=4", "evaluate.refine=1", "data.count=2", "data.size=64"]


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
def test_fixed_settings_are_kept_and_nothing_is_measured_and_a_weak_attack_is_reported(job, capsys):
    settings = ["engine.layout=channels_last", "engine.fold=true", "engine.chunk=3"]
    code, folder = job("a", *settings, "optimiser.rel_step_size=1e-6")
    assert code == 0
    assert engine(folder)["decision"] == Decision("channels_last", fold=True, chunk=3).to_dict()
    assert engine(folder)["measurements"] == []
    assert "random noise reaches" in capsys.readouterr().out


@pytest.mark.slow
def test_a_short_run_is_not_worth_measuring_and_eight_steps_are_not_weak(job, capsys):
    code, folder = job("a", "engine=auto", "attack.steps=8")
    assert code == 0
    (measurement,) = engine(folder)["measurements"]
    assert "not measured" in measurement["why"] or "too short" in measurement["why"]
    assert engine(folder)["decision"]["precision"] == "float32"
    assert "random noise reaches" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("views", "reuse"), [("2", ("overrides", "run")), ("auto", ("run",))])
def test_the_measured_decision_is_written_and_can_be_reused(job, monkeypatch, capsys, views, reuse):
    monkeypatch.setattr(tuner, "SHORT", 0.0)
    monkeypatch.setattr(tuner, "BUDGET", 1e9)
    code, measured_run = job("a", "engine=auto", f"attack.views={views}")
    assert code == 0
    result = engine(measured_run)
    names = {m["name"] for m in result["measurements"]}
    assert {"start", "channels_last", "fold", "bfloat16"} <= names
    for m in result["measurements"]:
        assert m["why"] and "noise is unknown" not in m["why"]
        if m["taken"] and m["settings"]["precision"] != "float32":
            assert m["rounding"] ** 2 < 0.15 * m["noise"] ** 2
    output = capsys.readouterr().err
    assert "rounding" in output and "sampling noise" in output
    assert f"note: engine: {' '.join(result['settings'])}" in output
    monkeypatch.setattr("attacks.experiment.preparation.choose", None)  # nothing is measured again
    commands = {"overrides": result["settings"], "run": [f"engine.reuse={measured_run}"]}
    for name in reuse:
        code, second_run = job(name, "engine=auto", *commands[name], f"attack.views={views}")
        assert code == 0
        assert engine(second_run)["decision"] == result["decision"]
        assert figures(second_run) == figures(measured_run)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"engine": 3}', '{"engine": {"decision": {"speed": 9}}}'])
def test_refuses_a_manifest_without_a_decision(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="engine"):
        read_decision(str(tmp_path))


LOWER = Decision("channels_last", "bfloat16", fold=True, chunk=5)


@pytest.mark.nightly
def test_an_evaluation_that_was_stopped_goes_on_with_its_decision_and_can_be_verified(monkeypatch, tmp_path):
    monkeypatch.setattr("attacks.experiment.preparation.choose", lambda *_, **__: Choice(LOWER, ()))
    words, reference, stopped_run = [*TINY, *LEAN], tmp_path / "whole", tmp_path / "stopped"
    assert call(monkeypatch, *words, f"hydra.run.dir={reference}") == 0
    with monkeypatch.context() as patch:
        patch.setattr(attacks.experiment.units, "attack_unit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call(patch, *words, f"hydra.run.dir={stopped_run}") == 130
    monkeypatch.setattr("attacks.experiment.preparation.choose", None)  # nothing is measured again
    assert call(monkeypatch, f"resume={stopped_run}") == 0
    assert engine(stopped_run)["decision"] == engine(reference)["decision"] == LOWER.to_dict()
    assert facts(stopped_run) == facts(reference)
    assert "bfloat16 in the attack" in (reference / "report.html").read_text()
    assert verify(reference, sample=1.0).problems == ()


@pytest.mark.slow
def test_judged_numbers_do_not_depend_on_the_precision_of_the_attack(tmp_path):
    for seed in range(2):
        save_image(tmp_path / f"{seed}.png", torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(seed)))
    pictures = ["data=folder", f"data.path={tmp_path}", f"data.gallery={tmp_path}", "data.size=64"]
    run = compose("evaluate", [*pictures, "evaluate.views=4"])
    assert {run.engine.name, run.engine.precision} == {"auto"}
    study = prepare_run(run, ALONE, "evaluate", []).study
    images = study.queries.images
    noisy = (images + 0.03 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)

    def judge_of(decision):
        bench = bench_of(study, study.encoder, decision, Place(Path()))
        return bench.judge(noisy, torch.arange(len(noisy)), bench.banks["same"])

    plain = judge_of(Decision(chunk=5))
    for score, other in zip(judge_of(Decision(precision="bfloat16", chunk=5)), plain, strict=True):
        torch.testing.assert_close(score, other, rtol=0, atol=0, equal_nan=True)
    for decision in (replace(LOWER, chunk=12), LOWER.exact):  # exact in real numbers, within what `verify` allows
        torch.testing.assert_close(judge_of(decision).cosine, plain.cosine, rtol=0, atol=Slack().cosine)


@pytest.mark.slow
def test_tf32_is_refused_on_a_cpu():
    run = compose("evaluate", [*TINY[1:], "engine.precision=tf32"])
    with pytest.raises(ValueError, match=r"`engine.precision` must not be tf32 on cpu"):
        prepare_run(run, ALONE, "evaluate", [])

"""`viewproof gate` and `require=` on runs: verdicts, exit codes, stop and resume, and what is refused."""

import json
import shutil

import pytest

from attacks.commands import main
from attacks.gate.policy import read_policy
from attacks.verification.verify import verify
from tests.helpers.runs import call

POLICY = """claim: Clean views are recognised, and some attacked ones.
date: 2026-11-24
threat: {perturbation: linf}
requirements:
  - {measure: success, arm: clean, at_most: 0.6}
  - {measure: success, arm: eot, at_most: 0.999}
"""
FAST = "config=quickstart evaluate.views=16 evaluate.refine=0 evaluate.one_view=false data.size=32"
FAST += " perturbation.eps=2/255 sanity.pictures=1 sanity.steps=10"


def required(folder):
    """A run that was required to meet `POLICY`, and its exit code."""
    (folder / "policy.yaml").write_text(POLICY)
    with pytest.MonkeyPatch.context() as patch:
        code = call(patch, *FAST.split(), f"require={folder / 'policy.yaml'}", f"hydra.run.dir={folder / 'run'}")
    (folder / "code").write_text(str(code))


@pytest.fixture
def finished(shared_runs):
    folder = shared_runs.folder("required", required)
    return folder, int((folder / "code").read_text())


@pytest.mark.slow
def test_a_run_ends_with_the_verdict_of_its_policy(finished, capsys):
    folder, code = finished
    content = json.loads((folder / "run" / "metrics.json").read_text())
    gate = content["gate"]
    assert gate["policy"]["digest"] == read_policy(folder / "policy.yaml").digest
    assert code == {"PASS": 0, "FAIL": 3, "UNDECIDED": 4}[gate["verdict"]]
    means = [content["arms"][arm]["success"]["mean"] for arm in ("clean", "eot")]
    assert [row["value"] for row in gate["rows"]] == means
    page = (folder / "run" / "report.html").read_text()
    assert page.index('class="verdict"') < page.index('id="gate"') and gate["policy"]["claim"] in page
    assert main(["gate", str(folder / "policy.yaml"), str(folder / "run")]) == code
    assert f"{gate['verdict']}: Clean views are recognised" in capsys.readouterr().out
    assert verify(folder / "run").passed


@pytest.mark.slow
def test_exit_codes_follow_the_bars_and_several_runs_give_the_worst(finished, tmp_path, capsys):
    folder, _ = finished
    for bar, code in (("0.01", 3), ("0.999", 0)):
        (tmp_path / "p.yaml").write_text(POLICY.replace("at_most: 0.6", f"at_most: {bar}"))
        assert main(["gate", str(tmp_path / "p.yaml"), str(folder / "run"), str(folder / "run")]) == code
        output = capsys.readouterr().out
        assert [output.count(words) for words in (f"({folder / 'run'})", "first seen after the run")] == [2, 2]


@pytest.mark.slow
def test_a_changed_run_or_policy_and_another_threat_are_refused(finished, tmp_path, capsys):
    folder, _ = finished
    copy = shutil.copytree(folder / "run", tmp_path / "run")
    table = copy / "per_image.csv"
    table.write_text(table.read_text().replace("0.", "1.", 1))
    assert main(["gate", str(folder / "policy.yaml"), str(copy)]) == 1
    assert "was changed after its run: per_image.csv" in capsys.readouterr().err
    (copy / "policy.yaml").write_text(POLICY.replace("0.6", "0.7"))
    problems = verify(copy).problems
    assert any(line.startswith("policy.yaml: its sha256") for line in problems)
    assert any("gate" in line for line in problems)
    (tmp_path / "p.yaml").write_text(POLICY.replace("linf", "l2"))
    assert main(["gate", str(tmp_path / "p.yaml"), str(folder / "run")]) == 1
    assert "the policy needs perturbation=l2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_of_other_words_keeps_its_verdict(finished, tmp_path, capsys):
    folder, _ = finished
    for word in ("seed=7", "perturbation.eps=1/255"):
        words = ["--run", f"{FAST} {word}", "--into", str(folder / "run")]
        assert main(["gate", str(folder / "policy.yaml"), *words]) == 1
        assert f"{word.partition('=')[0]} was" in capsys.readouterr().err


@pytest.mark.nightly
def test_pictures_are_attacked_until_the_policy_is_decided(tmp_path, monkeypatch, capsys):
    (tmp_path / "p.yaml").write_text(POLICY.replace("at_most: 0.6", "at_most: 0.9"))
    words = f"{FAST} data.count=40 evaluate.batch=4 attack.gradients=8"
    command = ["gate", str(tmp_path / "p.yaml"), "--run", words, "--most", "36", "--into", str(tmp_path / "run")]
    code = main(command)
    content = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < content["left"] == 36 - len(content["queries"]) and content["gate"]["sequential"]
    assert {row["verdict"] for row in content["gate"]["rows"]} <= {"PASS", "UNDECIDED"}  # a check may have failed
    clusters = content["clusters"]
    assert all(clusters.count(name) == clusters[clusters.index(name) :].count(name) for name in clusters)
    assert verify(tmp_path / "run").passed
    capsys.readouterr()
    assert main(command) == code  # finished: it is only decided again
    assert "judging" not in capsys.readouterr().err
    (tmp_path / "other.yaml").write_text(POLICY)
    assert main(["gate", str(tmp_path / "other.yaml"), str(tmp_path / "run")]) == 1
    assert "another policy" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("config=smoke require=missing.yaml", "bundled policies"),
        ("config=smoke require=bad.yaml", "unknown key `claims`"),
        ("config=smoke evaluate.most=4", "`require`"),
        ("config=smoke evaluate.most=4 require=p.yaml", "`evaluate.batch`"),
        ("config=smoke evaluate.most=4 require=p.yaml evaluate.batch=2 workers=2", "`workers`"),
        ("config=smoke evaluate.most=4 require=p.yaml evaluate.batch=2 perturbation.shared=true", "shared"),
        ("config=smoke require=p.yaml perturbation=l2", "the policy needs perturbation=linf; the run has l2"),
        ("config=smoke require=other.yaml", "about weights 0123456789ab"),
        ("config=smoke require=wide.yaml", "the run has no bank wide; it has same"),
        ("config=smoke require=one.yaml evaluate.one_view=false", "the run has no arm one_view; it has clean, noise"),
        ("config=smoke require=plain.yaml transforms=identity", "the attack is made once: ask for `arm: eot`"),
        ("config=smoke require=goal.yaml objective=away", "the run has no measure goal_cosine; it has cosine"),
        ("config=smoke require=tar.yaml", "the run has no measure tar_0.0001"),
    ],
)
def test_a_requirement_that_cannot_be_decided_is_refused_first(tmp_path, monkeypatch, capsys, words, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(POLICY)
    row = "{measure: success, arm: eot, "
    for name, old, new in (
        ("bad", "claim:", "claims:"),
        ("other", "threat", "encoder: '0123456789ab'\nthreat"),
        ("wide", row, row + "bank: wide, "),
        ("one", row, "{measure: success, arm: one_view, at_most: 0.5}\n  - " + row),
        ("plain", row, "{measure: success, arm: no_eot, at_most: 0.5}\n  - " + row),
        ("goal", row, "{measure: goal_cosine, arm: eot, "),
        ("tar", row, "{measure: tar_0.0001, arm: eot, at_least: 0.5}\n  - " + row),
    ):
        (tmp_path / f"{name}.yaml").write_text(POLICY.replace(old, new))
    assert call(monkeypatch, *words.split(), "hydra.run.dir=run") == 1
    error = capsys.readouterr().err
    assert part in error and error.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "run" / "manifest.json").exists()

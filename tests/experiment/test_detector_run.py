"""Runs of an encoder with a detector: what they record, and what is asked of them."""

import json

import pytest

from attacks.experiment.arms import trace_of
from attacks.experiment.chance import chance_levels
from attacks.experiment.required import refuse_lacking
from attacks.runtime.tables import read_rows
from attacks.schema.composition import compose
from attacks.study.assembly import build
from tests.helpers.runs import LEAN, TINY

DETECTOR = ["defence=consistency", "defence.views=2"]
WORDS = [*TINY, *LEAN, "evaluate.wide=1", "engine=fixed", *DETECTOR]


@pytest.mark.slow
def test_the_score_of_a_detector_is_recorded(shared_runs):
    folder = shared_runs(*WORDS)
    content, rows = json.loads((folder / "metrics.json").read_text()), read_rows(folder / "per_image.csv")
    attacks_of_eot = dict.fromkeys(line.attack for line in trace_of(folder) if line.arm == "eot")
    assert [*attacks_of_eot] == ["wiener at price 1", "wiener at price 20"] and content["threat"]["prices"] == [1, 20]
    for arm, row in content["arms"].items():
        shares = [float(line["flagged"]) for line in rows if line["arm"] == arm]
        assert row["flagged"]["mean"] == pytest.approx(sum(shares) / len(shares))
        assert row["fooled_accepted"]["mean"] <= row["success"]["mean"]
    page = (folder / "report.html").read_text()
    assert "fooled and accepted" in page and "ViewConsistency(false_alarms=0.05)" in page


@pytest.mark.slow
def test_an_attack_that_knows_a_detector_passes_its_checks(shared_runs):
    words = [
        "data.count=2",
        "data.size=64",
        "evaluate.views=4",
        "sanity=short",
        "sanity.pictures=1",
        "sanity.steps=8",
    ]
    folder = shared_runs("config=smoke", *DETECTOR, *words)
    verdicts = {
        row["name"]: row["verdict"] for row in json.loads((folder / "metrics.json").read_text())["sanity"]["checks"]
    }
    needed = ("finite differences", "gradient scale", "transfer", "untouched picture")
    assert [verdicts[name] for name in needed] == ["passed"] * 4, verdicts


def test_a_policy_may_be_about_what_a_detector_accepts(tmp_path):
    row = "{measure: fooled_accepted, arm: eot, at_most: 0.1}, {measure: flagged, arm: clean, at_most: 0.1}"
    (tmp_path / "p.yaml").write_text(f"claim: It holds.\ndate: 2026-11-24\nrequirements: [{row}]\n")
    words = ["data.count=2", "data.size=64", "defence.views=2"]
    study = build(compose("smoke", [*words, "defence=consistency", "defence.false_alarms=0.2"]))
    refuse_lacking(tmp_path / "p.yaml", study)
    levels = chance_levels(study, 5, 4, None, ())
    assert levels["flagged"] == (0.2, 0, 1) and levels["fooled_accepted"].chance == 0.8 * levels["success"].chance
    with pytest.raises(ValueError, match="the run has no measure fooled_accepted"):
        refuse_lacking(tmp_path / "p.yaml", build(compose("smoke", [*words, "defence=tte"])))


def test_prices_that_an_attack_cannot_pay_are_refused():
    small_run = ["data.count=2", "data.size=64", *DETECTOR]
    for words, message in (
        (["attack.prices=[-1]"], r"`attack\.prices` must be numbers from 0 up, at least one; got \[-1"),
        (["attack.prices=[]"], r"`attack\.prices` must be numbers from 0 up"),
        (["objective.anchor=paired"], r"`attack\.prices` .*fit no .*attack\.prices=\[0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            build(compose("smoke", [*small_run, *words]))
    assert build(compose("smoke", [*small_run, "attack.prices=[0]"])).attack.prices == (0.0,)
    assert build(compose("smoke", small_run[:2])).attack.prices == (0.0,)

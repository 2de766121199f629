"""Runs of a defence over several views: what they record and count, that they pass verify, and that they resume."""

import json

import pytest

import attacks.experiment.units
from attacks import verify
from attacks.encoders import Counterattack, Panel
from attacks.experiment.arms import trace_of
from attacks.schema.composition import compose
from attacks.schema.groups import CHOICES
from attacks.study.assembly import check_black_box
from attacks.study.encoder import behind_defence
from tests.helpers.processes import facts
from tests.helpers.runs import LEAN, TINY, call
from tests.helpers.small import small

WORDS = [*TINY, *LEAN, "evaluate.wide=1", "engine=fixed"]
KINDS = {"tte": ["defence=tte", "defence.views=2"], "ttc": ["defence=ttc", "defence.threshold=10"]}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes", "back"), [("tte", 3, 3), ("ttc", 4, 3)])
def test_a_run_counts_all_passes_and_passes_verify(shared_runs, name, passes, back):
    folder = shared_runs(*WORDS, *KINDS[name])
    content = json.loads((folder / "metrics.json").read_text())
    record, cost = content["encoder"], content["costs"]["eot"]
    last_rows = {line.batch: line for line in trace_of(folder) if line.arm == "eot"}
    views = sum(line.evals for line in last_rows.values())
    assert record["draws"] == ["defence (seed)"] and record["passes"] == passes and record["defence"]
    assert cost["forward"] - cost["selection"] == views * passes
    assert cost["backward"] == views * back + (cost["selection"] // passes * 2 if name == "ttc" else 0)
    assert "BPDA" in (folder / "report.html").read_text() or name == "tte"
    assert verify(folder, 1).passed


@pytest.mark.slow
def test_a_stopped_run_of_a_panel_ends_with_the_same_bytes(shared_runs, tmp_path, monkeypatch):
    real = attacks.experiment.units.attack_unit

    def stop(bench, unit):
        if unit.number == 1:
            raise KeyboardInterrupt
        return real(bench, unit)

    with monkeypatch.context() as patch:
        patch.setattr(attacks.experiment.units, "attack_unit", stop)
        assert call(patch, *WORDS, *KINDS["tte"], f"hydra.run.dir={tmp_path / 'run'}") == 130
    assert call(monkeypatch, f"resume={tmp_path / 'run'}") == 0
    assert facts(tmp_path / "run") == facts(shared_runs(*WORDS, *KINDS["tte"]))


def test_keys_of_a_defence_reach_its_parts_and_wrong_ones_are_refused():
    def encoder(name, **keys):
        return behind_defence(small(), CHOICES["defence"][name](**keys))

    panel = encoder("dbd", gain=3.0, threshold=0.5, views=2, stages={"flip": {}})
    assert isinstance(panel, Panel) and (panel.views, panel.rule.gain, panel.rule.threshold) == (2, 3.0, 0.5)
    counterattack = encoder("ttc", eps="2/255", steps=3)
    assert isinstance(counterattack, Counterattack) and (counterattack.eps, counterattack.steps) == (2 / 255, 3)
    for name, keys, message in (
        ("tte", {"views": 0}, r"`defence\.views` must be .*at least 1.*got 0"),
        ("rtpt", {"share": 0.0}, r"`defence\.share` must be above 0 and at most 1; got 0"),
        ("ttc", {"step": "0"}, r"`defence\.step` must be above 0"),
        ("ttc", {"eps": "x"}, r"`defence\.eps` must be a number or a fraction"),
        ("tte", {"stages": {"crop": {"scale": [0, 1]}}}, r"`defence\.stages\.crop`: `scale`"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder(name, **keys)
    words = ["defence=tte", "encoder=callable", "encoder.model=x:y"]
    with pytest.raises(ValueError, match="`defence=tte` encodes views of its own"):
        check_black_box(compose("smoke", words))

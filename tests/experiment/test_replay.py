"""The view that stopped a run is in its directory, and the command shows it."""

from dataclasses import dataclass

import pytest
import torch

from attacks import Away, attack
from attacks.commands import main
from attacks.data.images import load_image
from attacks.eot.estimator import EOT
from attacks.eot.faults import NotFinite, fault
from attacks.experiment.job import job
from attacks.schema import validate as schema
from attacks.study.assembly import build
from tests.helpers.faulty import Turn
from tests.schema.test_configs import composed
from transforms.registry import STAGES

SMALL = (
    "config=smoke",
    "sanity=none",
    "attack.steps=2",
    "attack.views=4",
    "evaluate.views=4",
    "evaluate.refine=0",
    "evaluate.one_view=false",
    "data.count=2",
    "data.size=64",
    "engine=fixed",
)


def run_of(*overrides, **stages):
    run = schema.validate(composed(*SMALL, *overrides))
    if stages:
        run.transforms.stages = stages
    return run


@pytest.mark.slow
def test_missing_or_truncated_files_are_refused_in_one_line(stopped_run, capsys, tmp_path):
    out, _ = stopped_run
    (out / fault.NAME).write_bytes((out / fault.NAME).read_bytes()[:3000])
    for path, message in ((out / "none", "does not exist: name the directory"), (out, "does not hold a view")):
        assert main(["replay", str(path)]) == 1
        output = capsys.readouterr().err
        assert message in output and output.count("\n") == 1


@pytest.fixture
def stopped_run(tmp_path, monkeypatch):
    """The directory of a run that has stopped, and the error."""
    return _stop_run(tmp_path, monkeypatch, Turn)


def _stop_run(out, monkeypatch, kind):
    """The attack of a run, on its own parts."""
    monkeypatch.setitem(STAGES, "turn", kind)
    parts = build(run_of(affine={"degrees": 20}, turn={"limit": 8.0}, brightness={"amount": 0.1}))
    images = parts.queries.images
    with torch.no_grad():
        anchor = parts.encoder(images)
    setup = {"encoder": parts.encoder, "objective": Away(), "perturbation": parts.perturbation}
    setup |= {"optimiser": parts.optimiser, "eot": EOT(parts.transforms, parts.draws, views=16), "steps": 2}
    with pytest.raises(NotFinite) as failure:
        for _ in attack(images, anchor, **setup):
            pass
    fault.write(out, failure.value)
    return out, failure.value


@pytest.mark.slow
def test_the_view_that_stopped_a_run_can_be_replayed(stopped_run, capsys):
    out, error = stopped_run
    bad = {line.name: line.bad for line in fault.read_fault(out / fault.NAME).lines}
    assert bad["affine"] == bad["picture"] == 0
    assert bad["turn"] > 0
    command = str(error).partition("viewproof replay ")[2]
    assert main(["replay", command, "--out", str(out / "view.png")]) == 0
    output = capsys.readouterr().out
    assert "NaN or inf begins at stage `turn`" in output
    for word in ("picture", "affine", "turn", "encoder", "objective"):
        assert f"\n{word} " in output
    assert load_image(out / "view.png")[0].shape[0] == 3
    assert f"turn angle (deg): {error.fault.values['turn angle (deg)']:.6g}" in output


@dataclass(frozen=True)
class Steep(Turn):
    """The same, with an infinite slope instead of NaN."""

    slope: bool = True


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_can_be_replayed(tmp_path, monkeypatch, capsys):
    out, error = _stop_run(tmp_path, monkeypatch, Steep)
    assert error.fault.where == "the gradient of stage `turn`"
    assert main(["replay", str(out)]) == 0
    output = capsys.readouterr().out
    assert "NaN or inf begins at the gradient of stage `turn`" in output


SHARED = "perturbation.shared=true"


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[SHARED], ["evaluate.batch=1", "data.count=3"]], ids=["a delta for all", "picture by picture"]
)
def test_a_run_stopped_by_a_view_saves_it_and_prints_the_command(tmp_path, monkeypatch, capsys, overrides):
    monkeypatch.setitem(STAGES, "turn", Turn)
    run = run_of(*overrides, affine={"degrees": 20}, turn={"limit": -9.9})
    with pytest.raises(FloatingPointError) as failure:
        job(run, tmp_path, "smoke", [])
    name = str(failure.value).partition("viewproof replay ")[2]
    capsys.readouterr()
    assert main(["replay", name]) == 0
    output = capsys.readouterr().out
    assert "NaN or inf begins at stage `turn`" in output
    if SHARED in overrides:
        assert name == str(tmp_path)
        return
    assert main(["replay", str(tmp_path)]) == 1
    output = capsys.readouterr().err
    assert "holds 3 views that were not finite; name one of them" in output and name in output

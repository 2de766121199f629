"""A view of an attack is replayed exactly from the directory of the run."""

import json
import shutil
from dataclasses import dataclass

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from attacks import Away, attack
from attacks.commands import main
from attacks.eot.estimator import EOT
from attacks.eot.faults import NotFinite, fault
from attacks.eot.faults.trace import first_fault
from attacks.experiment.job import job
from attacks.experiment.replay import ViewAddress, of_fault, of_run
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


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("shared", "targeted")]


@pytest.fixture(params=["batches", *SLOW])
def finished(request, shared_runs):
    """(directory, the views of every step of the arm eot by batch, its kind)."""
    overrides = {
        "batches": ["evaluate.batch=1"],
        "shared": ["perturbation.shared=true"],
        "targeted": ["objective=toward", "objective.target=another"],
    }[request.param]
    coordinates, plain = [], EOT.estimate

    def spy(self, problem, delta, u, **options):
        if self.views == 4:
            coordinates.append(u)
        return plain(self, problem, delta, u, **options)

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EOT, "estimate", spy)
            job(run_of(*overrides), folder / "run", "smoke", [])
        torch.save(coordinates, folder / "views.pt")

    folder = shared_runs.folder(f"replay, {request.param}", make)
    return folder / "run", torch.load(folder / "views.pt"), request.param


@pytest.mark.slow
def test_a_replayed_view_equals_the_view_of_the_attack(finished):
    out, coordinates, kind = finished
    deltas = load_file(out / "perturbation.safetensors")["eot"]
    for step, view, picture in ((0, 0, 0), (1, 3, 1)):
        u = coordinates[(picture if kind == "batches" else 0) * 2 + step]
        u = u[picture, view] if kind == "shared" else u[view]
        replay = of_run(out, ViewAddress(step, view, picture))
        pipeline = build(run_of()).transforms
        assert replay.values == pipeline.describe(u[None])[0]
        assert first_fault(replay.lines) is None
        if len(deltas) > 1:
            clean = build(run_of()).queries.images[picture]
            adversarial = clean + deltas[picture]
            assert replay.lines[0].least == pytest.approx(float(adversarial.min()), abs=1e-5)
            assert replay.lines[0].greatest == pytest.approx(float(adversarial.max()), abs=1e-5)


@pytest.mark.slow
def test_the_script_prints_a_line_for_each_stage_and_writes_the_view(finished, capsys, tmp_path):
    out, _, _ = finished
    overrides = [str(out), "--step", "1", "--view", "2", "--picture", "1", "--out", str(tmp_path / "view.png")]
    assert main(["replay", *overrides]) == 0
    output = capsys.readouterr().out
    for word in ("picture", "affine", "perspective", "encoder", "objective"):
        assert f"\n{word} " in output
    assert "affine angle (deg): " in output
    assert "with the perturbation that the run has written" in output
    with Image.open(tmp_path / "view.png") as image:
        assert image.mode == "RGB"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--step 2 --view 0 --picture 0", "`--step` must be one of 0 to 1"),
        ("--step 0 --view 4 --picture 0", "`--view` must be one of 0 to 3"),
        ("--step 0 --view 0 --picture 2", "`--picture` must be one of 0 to 1"),
        ("--step 0", "needs all of"),
        ("", "met no view"),
    ],
)
def test_a_view_that_does_not_exist_is_refused_in_one_line(finished, capsys, overrides, message):
    assert main(["replay", str(finished[0]), *overrides.split()]) == 1
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


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
    bad = {line.name: line.bad for line in of_fault(out / fault.NAME).lines}
    assert bad["affine"] == bad["picture"] == 0
    assert bad["turn"] > 0
    command = str(error).partition("viewproof replay ")[2]
    assert main(["replay", command]) == 0
    output = capsys.readouterr().out
    assert "NaN or inf begins at stage `turn`" in output
    assert f"turn angle (deg): {error.fault.values['turn angle (deg)']:.6g}" in output


@pytest.mark.slow
def test_a_program_must_be_named_to_be_loaded(finished, capsys, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished[0], out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["config"]["encoder"] |= {"name": "torchscript", "model": "net.pt"}
    manifest["config"]["encoder"].pop("weights", None)
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert main(["replay", str(out), "--step", "0", "--view", "0", "--picture", "0"]) == 1
    assert "say --encoder-code net.pt" in capsys.readouterr().err


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

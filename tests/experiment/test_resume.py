"""A stopped run is resumed and ends with the same bytes; a different run is refused."""

import json
import shutil
from pathlib import Path

import pytest

import attacks.experiment.job
import attacks.experiment.units
from attacks.experiment.identity import identity_digest
from attacks.runtime.values import load_values, write_values
from tests.helpers.processes import facts
from tests.helpers.report_pages import ARMS
from tests.helpers.runs import FIRST, LEAN, TINY, call


@pytest.fixture
def reference(shared_runs):
    """A run without interruption."""
    return shared_runs(*TINY, *LEAN)


@pytest.fixture
def half(shared_runs):
    """The same run, stopped in its second batch, after the first was written."""
    real = attacks.experiment.units.attack_unit

    def attack_unit(bench, unit):
        if unit.number == 1:
            raise KeyboardInterrupt
        return real(bench, unit)

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attacks.experiment.units, "attack_unit", attack_unit)
            assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder / 'run'}") == 130

    folder = shared_runs.folder("half", make) / "run"
    files = {FIRST, "gallery.safetensors", "clean views.safetensors"}
    assert {path.name for path in (folder / "checkpoint").glob("*.safetensors")} == files
    return folder


@pytest.fixture
def stopped_run(half, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(half, tmp_path / "run"))


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bytes(reference, stopped_run, monkeypatch):
    unit_numbers, real = [], attacks.experiment.units.attack_unit
    monkeypatch.setattr(
        attacks.experiment.units, "attack_unit", lambda b, unit: (unit_numbers.append(unit.number), real(b, unit))[1]
    )
    began = json.loads((stopped_run / "manifest.json").read_text())["started"]
    assert call(monkeypatch, f"resume={stopped_run}") == 0
    assert unit_numbers == [1]
    assert facts(stopped_run) == facts(reference)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (stopped_run, reference)]
    assert manifests[0].pop("started") == began and manifests[1].pop("started")
    assert manifests[0] == manifests[1]
    assert not (stopped_run / "checkpoint").exists()


def change_identity(folder, name):
    """As if the run had been started with another setting."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["identity"] = [] if name is None else manifest["identity"] | {name: "0" * 64}
    path.write_text(json.dumps(manifest))


def edit_steps(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["attack"]["steps"] = 3
    path.write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "overrides"),
    [
        (lambda folder: shutil.rmtree(folder), "there is none"),
        (edit_steps, "attack.steps was 2 and is 3"),
        (lambda folder: change_identity(folder, None), "has no `identity`: was it written by another version?"),
        (
            lambda folder: change_identity(folder, "the encoder's weights"),
            "the encoder's weights was 000000000000 and is ",
        ),
        (
            lambda folder: change_identity(folder, "the code of attacks and transforms"),
            "the code of attacks and transforms was 0",
        ),
        (
            lambda folder: change_identity(folder, "the version of torch"),
            "the version of torch was 000000000000 and is 2.",
        ),
    ],
    ids=["gone", "changed", "unnamed", "weights", "code", "library"],
)
def test_a_run_that_cannot_be_resumed_gives_a_one_line_error(harm, overrides, stopped_run, monkeypatch, capsys):
    harm(stopped_run)
    assert call(monkeypatch, f"resume={stopped_run}") == 1
    output = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(output) == 1 and overrides in output[0]


@pytest.mark.slow
def test_a_resumed_run_takes_no_other_setting(stopped_run, monkeypatch, capsys):
    assert call(monkeypatch, f"resume={stopped_run}", "attack.steps=3") == 1
    assert "begun with attack.steps=2, and goes on with it; drop 'attack.steps=3'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_is_read_back_byte_for_byte(stopped_run, tmp_path):
    path = stopped_run / "checkpoint" / FIRST
    key = identity_digest(json.loads((stopped_run / "manifest.json").read_text())["identity"])
    (result,), _ = load_values(path, key), write_values(tmp_path / path.name, load_values(path, key), key)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert result.rows == (0, 1) and [line.arm for line in result.trace if line.step == 0] == list(ARMS[2:])
    with pytest.raises(ValueError, match="another run"):
        load_values(path, "other")

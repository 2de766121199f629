"""`viewproof judge`: finished runs judged on other encoders."""

import json
import shutil
from dataclasses import asdict

import pytest
from PIL import Image

from attacks.commands import judge, main
from attacks.runtime.tables import read_rows
from attacks.study import assembly


@pytest.fixture
def finished(shared_runs):
    return shared_runs("config=smoke")


@pytest.mark.slow
def test_on_its_encoder_a_run_has_its_numbers_and_another_encoder_has_others(finished, tmp_path, capsys):
    main(["judge", str(finished), "--on", "phash defence=bits", "--out", str(tmp_path)])
    assert "made on" in capsys.readouterr().out
    rows = read_rows(tmp_path / "transfer.csv")
    metrics = json.loads((finished / "metrics.json").read_text())
    by_encoder = {
        name: [row for row in rows if row["judged_on"] == name] for name in ("pocket", "phash defence=bits")
    }
    for row in by_encoder["pocket"]:
        for measure in ("success", "cosine"):
            ends = [float(row[measure + end]) for end in ("", "_low", "_high")]
            expected = metrics["arms"][row["arm"]][measure]
            assert ends == pytest.approx([expected[key] for key in ("mean", "low", "high")], abs=1e-6)
    assert {row["encoder"] for row in by_encoder["pocket"]} == {metrics["encoder"]["fingerprint"]}
    assert [row["cosine"] for row in by_encoder["phash defence=bits"]] != [
        row["cosine"] for row in by_encoder["pocket"]
    ]
    assert {row["made_on"] for row in rows} == {"pocket"} and all(row["gain"] for row in rows if row["arm"] == "eot")
    with Image.open(tmp_path / "transfer.png") as picture:
        assert picture.width > 600


@pytest.mark.slow
def test_an_encoder_is_loaded_once_for_all_runs(finished, tmp_path, monkeypatch):
    loads, load = [], assembly.subject_encoder
    monkeypatch.setattr(
        assembly, "subject_encoder", lambda run, *rest: loads.append(run.encoder.name) or load(run, *rest)
    )
    assert main(["judge", str(finished), str(finished), "--on", "phash", "--out", str(tmp_path)]) == 0
    assert loads == ["phash", "pocket"] and len(read_rows(tmp_path / "transfer.csv")) > 0


@pytest.mark.slow
def test_pictures_that_are_not_those_of_the_run_are_refused(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    path = next((tmp_path / "run" / "pictures" / "clean").iterdir())
    with Image.open(path) as picture:
        mirror = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    mirror.save(path)
    assert main(["judge", str(tmp_path / "run"), "--out", str(tmp_path)]) == 1
    assert "its pictures/clean are not the pictures that `data` gives today" in capsys.readouterr().err
    assert not (tmp_path / "transfer.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("http", "`ENCODER` http is asked"),
        ("nothing", "`ENCODER` must be one of"),
        ("phash attack.steps=3", "`--on` takes an encoder and words of encoder and defence; got attack.steps=3"),
        ("", "`ENCODER` must be one of"),
    ],
)
def test_what_cannot_be_judged_is_an_error_in_one_line(finished, encoder, message, capsys):
    assert main(["judge", str(finished), "--on", encoder]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("defence", ["none", "bits"])
def test_a_program_is_trusted_by_its_name_behind_any_defence(finished, tmp_path, defence, capsys):
    encoder = f"torchscript:{tmp_path / 'missing.pt'} encoder.preprocess={{size:8}}"
    shutil.copytree(finished, tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    run = judge.encoder_run(f"{encoder} defence={defence}")
    manifest["config"] |= {"encoder": asdict(run.encoder), "defence": asdict(run.defence)}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    message = {"phash": "a run directory may not choose it", encoder: f"{tmp_path / 'missing.pt'} does not exist"}
    for name, expected in message.items():
        assert main(["judge", str(tmp_path / "run"), "--on", name]) == 1
        assert expected in capsys.readouterr().err

"""The command line of the audit."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("audit_script", ROOT / "scripts" / "audit.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_audits_a_preset_and_writes_what_it_found(script, tmp_path, capsys):
    asked = ["--transforms", "camera", "--draws", "2", "--side", "96", "--encoder", "pocket"]
    assert script.main([*asked, "--out", str(tmp_path / "found")]) == 0
    said = capsys.readouterr().out
    assert "first dead stage: none" in said and "stationary at delta = 0: yes" in said
    assert (tmp_path / "found" / "audit.txt").read_text() == said
    with Image.open(tmp_path / "found" / "dead_zones.png") as picture:
        assert picture.size == (96, 96)


def test_the_script_audits_a_strangers_callable(script, capsys):
    assert script.main(["--callable", "torch:round", "--side", "32", "--draws", "1"]) == 0
    assert "first dead stage: round" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--transforms", "nothing"],
        ["--transforms", "missing.yaml"],
        ["--callable", "nowhere:thing"],
        ["--callable", "torch"],
        ["--callable", "torch:nothing"],
        ["--transforms", "identity", "--image", "missing.png"],
        ["--transforms", "identity", "--draws", "0"],
        ["--transforms", "identity", "--draws", "many"],
        ["--transforms", "identity", "--side", "0"],
        ["--transforms", "identity", "--side", "100000000"],
        ["--transforms", "identity", "--callable", "torch:round"],
        ["--nothing"],
        [],
    ],
)
def test_the_scripts_errors_are_one_line(script, arguments, capsys):
    assert script.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_a_preset_cannot_name_code(script, tmp_path, capsys):
    (tmp_path / "evil.yaml").write_text("name: evil\nstages: {affine: {_target_: os.system}}\n")
    assert script.main(["--transforms", str(tmp_path / "evil.yaml")]) == 1
    assert "refused" in capsys.readouterr().err

"""The command line of the audit."""

from PIL import Image

from attacks.commands import main


def test_the_command_audits_a_preset_and_writes_its_findings(tmp_path, capsys):
    options = ["--transforms", "camera", "--draws", "2", "--side", "96", "--encoder", "pocket"]
    assert main(["audit", *options, "--out", str(tmp_path / "audit")]) == 0
    output = capsys.readouterr().out
    assert "first dead stage: none" in output and "stationary at delta = 0: yes" in output
    assert (tmp_path / "audit" / "audit.txt").read_text() == output
    with Image.open(tmp_path / "audit" / "dead_zones.png") as picture:
        assert picture.size == (96, 96)


def test_the_command_audits_a_foreign_callable(capsys):
    assert main(["audit", "--callable", "torch:round", "--side", "32", "--draws", "1"]) == 0
    assert "first dead stage: round" in capsys.readouterr().out

"""The command line of the audit, of transforms and of resizers."""

import csv

import pytest
from PIL import Image

from attacks.commands import main
from attacks.data.gallery import PHOTOS


def read(folder):
    with (folder / "resizers.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_table_is_printed_and_written_with_a_picture(tmp_path, capsys):
    assert main(["audit", "--resizers", "--ratios", "1.5,3", "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert (tmp_path / "out" / "resizers.txt").read_text() == output
    rows = read(tmp_path / "out")
    assert len(rows) == 32 and {row["verdict"] for row in rows} == {"open", "hard", "closed"}
    with Image.open(tmp_path / "out" / "resizers.png") as picture:
        assert min(picture.size) > 900


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--resizers --transforms camera", "not allowed with argument"),
        ("--resizers --encoder pocket", "`--encoder` means nothing"),
        ("--resizers --ratios 0.5", "above 1 and at most 16"),
        ("--resizers --ratios two", "must be numbers"),
        (f"--resizers --ratios 2 --image {PHOTOS / 'chelsea.png'}", "name another picture"),
        ("--transforms camera --ratios 2", "`--ratios` is of `--resizers`"),
        ("--image mine.png", "is required"),
    ],
)
def test_wrong_input_gives_a_one_line_error(arguments, reason, capsys):
    assert main(["audit", *arguments.split()]) == 1
    output, error = capsys.readouterr()
    assert output == "" and error.startswith("error: ") and error.count("\n") == 1 and reason in error


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

"""The command line of the audit, of transforms and of resizers."""

import csv

import pytest
from PIL import Image

from attacks.commands import main
from attacks.data.gallery import PHOTOS

MINE = """
import random
import cv2
import numpy as np

def prepare(array):
    return cv2.resize(array, (28, 24))

def turned(picture):
    return np.asarray(picture.rotate(20).resize((28, 24)))

SHIFTS = iter(random.sample(range(1, 99), 98)) # none twice

def drawn(array):
    return prepare(np.roll(array, next(SHIFTS), axis=0))

def classes(array):
    return np.zeros(10)

def flat(array):
    return np.zeros((4, 4, 3))

def infinite(array):
    return np.full((4, 4, 3), np.inf)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_preprocessing.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def test_a_preprocessing_is_named_and_judged(mine, capsys):
    options = ["--callable", "my_preprocessing:prepare", "--size", "130x157"]
    assert main(["audit", "--resizers", *options, "--out", "out"]) == 0
    output = capsys.readouterr().out
    for words in ("kernel       cv2_linear; in 8 bits\n", "verdict      OPEN\n", "interpolation=cv2.INTER_AREA\n"):
        assert words in output
    assert read(mine / "out")[0]["kernel"] == "cv2_linear" and (mine / "out" / "resizers.png").exists()


def test_a_preprocessing_that_is_no_resize_of_rows_and_columns(mine, capsys):
    options = ["--callable", "my_preprocessing:turned", "--size", "130x157", "--out", "out"]
    assert main(["audit", "--resizers", *options]) == 0
    output = capsys.readouterr().out
    assert "none of the known" in output and "not measured" in output and "by the energy of noise" in output
    assert not (mine / "out" / "resizers.png").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--resizers --callable my_preprocessing:drawn", "fix its random choices"),
        ("--resizers --callable my_preprocessing:classes", "a result of shape (10,)"),
        ("--resizers --callable my_preprocessing:flat", "black and white give the same"),
        ("--resizers --callable my_preprocessing:infinite", "NaN or inf"),
        ("--resizers --callable math:sqrt", "given as PIL images"),
        ("--resizers --transforms camera", "`--transforms` means nothing"),
        ("--resizers --encoder pocket", "`--encoder` means nothing"),
        ("--resizers --size 100x100", "`--size` means nothing"),
        ("--resizers --callable my_preprocessing:prepare --ratios 2", "`--ratios` means nothing"),
        ("--resizers --ratios 0.5", "above 1 and at most 16"),
        ("--resizers --ratios two", "must be numbers"),
        (f"--resizers --ratios 2 --image {PHOTOS / 'chelsea.png'}", "name another picture"),
        ("--resizers --size 9x9", "each at least 32"),
        ("--transforms camera --size 100x100", "`--size` is of `--resizers`"),
        ("--image mine.png", "is required"),
    ],
)
def test_wrong_input_gives_a_one_line_error(mine, arguments, reason, capsys):
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

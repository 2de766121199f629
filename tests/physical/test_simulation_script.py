"""The command line of the simulated photographs."""

import json
import shutil
import sys

import numpy as np
import pytest

from attacks.commands import main
from tests.helpers.card_simulation import card_dots, printed_run


@pytest.fixture
def run(tmp_path):
    return printed_run(tmp_path / "run", card_dots(np.full((4, 4, 3), 99, np.uint8)))


def test_the_script_follows_its_options(run, tmp_path, capsys):
    out = tmp_path / "deep" / "photos"
    options = "--count 2 --size 160x90 --degrees 5 --scale 0.9 --quality 60 70 --ink 0 --yaw 30"
    assert main(["simulate", str(run), str(out), *options.split()]) == 0
    assert "2 photographs" in capsys.readouterr().out
    truth = json.loads((out / "truth.json").read_text())
    ranges = truth["ranges"]
    assert (ranges["degrees"], ranges["scale"], ranges["quality"]) == ([-5, 5], [0.9, 0.9], [60, 70])
    assert (ranges["yaw"], ranges["jitter"], truth["size"], truth["ink"]) == ([-30, 30], 0, [90, 160], 0)
    assert main(["simulate", str(run), str(tmp_path / "more"), "--count", "1", "--size", "64x64"]) == 0
    assert json.loads((tmp_path / "more" / "truth.json").read_text())["ranges"]["jitter"] == 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--size 640", "WIDTHxHEIGHT"),
        ("--count many", "--count"),
        ("--moire 1", "--moire"),
        ("--size 20x10", "`size`"),
        ("--count 0", "`count`"),
        ("--seed -1", "`seed`"),
        ("--ink 2", "`ink`"),
        ("--scale 1 0.5", "`scale`"),
        ("--scale nan", "`scale`"),
        ("--jitter 0.5", "`jitter`"),
        ("--degrees 1 2 3", "`--degrees`"),
        ("--pitch 75 --distance 0.2 --count 30", "behind the camera"),
    ],
)
def test_an_option_out_of_range_is_refused_in_one_line(run, tmp_path, error_line, options, message):
    assert message in error_line("simulate", run, tmp_path / "photos", "--size", "64x64", *options.split())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda run: shutil.rmtree(run), "does not exist"),
        (lambda run: (run / "placement.json").unlink(), "perturbation=patch"),
        (lambda run: shutil.rmtree(run / "print"), "viewproof print"),
        (lambda run: (run / "print" / "card.png").unlink(), "viewproof print"),
        (lambda run: (run / "print" / "card.png").write_bytes(b"no"), "cannot be read"),
        (lambda run: (run / "print" / "sheet.json").write_text("{"), "not JSON"),
        (lambda run: (run / "print" / "sheet.json").write_text("{}"), "KeyError"),
        (lambda run: change(run / "print" / "sheet.json", dpi=300), "print the run again"),
        (lambda run: change(run / "placement.json", pictures=[], quads=[]), "must name a picture"),
        (lambda run: change(run / "placement.json", quads=[[], []]), "one quad"),
        (lambda run: change(run / "placement.json", quads=[[[[0, 0], [1, 1], [2, 2], [0, 1]]]] * 2), "in a line"),
        (lambda run: (run / "pictures" / "clean" / "bench.png").unlink(), "bench.png` is missing"),
    ],
)
def test_a_run_that_cannot_be_photographed_is_refused_in_one_line(run, tmp_path, error_line, broken, message):
    broken(run)
    assert message in error_line("simulate", run, tmp_path / "photos", "--size", "64x64", "--count", "1")


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_old_and_new_photographs_are_not_mixed_in_a_folder(run, tmp_path, error_line):
    (tmp_path / "old.jpg").touch()
    assert "empty folder" in error_line("simulate", run, tmp_path)


def test_without_opencv_the_error_names_the_extra(run, tmp_path, error_line, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("attacks.physical.simulation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert 'pip install "viewproof[physical]"' in error_line("simulate", run, tmp_path / "photos")

"""Wrong inputs to a fresh process: its two streams, its exit code, and all files before and after.

The tables of `test_bad_*.py` run within one process, which is fast; here a sample of them runs as a user runs them.
"""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.wrong import BEFORE, tree
from tests.run.test_bad_directories import Touches
from tests.run.test_bad_pictures import png

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LONGEST = 120
#: An empty folder that torch makes in its deterministic mode.
TORCHS = re.compile(r"scratch/torchinductor_\w+")


class Place:
    """A working directory, a home and a folder for temporary files, all of them watched."""

    def __init__(self, folder):
        self.folder = folder
        self.here, self.given = folder / "here", folder / "given"
        for name in ("here", "home", "given", "scratch"):
            (folder / name).mkdir()

    def run(self, *overrides):
        """(exit code, lines of stdout, lines of stderr, names that are new). Existing files must be unchanged."""
        ours = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "scratch"), "PYTHONPATH": str(ROOT)}
        before = tree(self.folder)
        done = subprocess.run(
            [sys.executable, "-m", "attacks.run", *overrides],
            cwd=self.here,
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **ours},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LONGEST,
        )
        after = tree(self.folder)
        assert {name: after.get(name) for name in before} == before
        out, err = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in out + err, err
        made = sorted(name for name in after.keys() - before.keys() if not TORCHS.fullmatch(name))
        return done.returncode, out.splitlines(), err.splitlines(), made


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


SYSTEM = b"encoder: {_target_: os.system, command: 'touch mark'}\n"
PASSWORD = "config=smoke tracker=mlflow tracker.uri=http://me:canary@host"
#: Case -> a file and its content, the command line with its path as {}, and the error.
CASES = {
    "a preset with a target": ("mine.yaml", SYSTEM, "config={}", "_target_"),
    "no such preset": ("x", b"", "config=nowhere", "nowhere"),
    "half a picture": ("x.png", png(64, 64)[:50], "config=smoke data=folder data.path={}", "x.png` cannot be read"),
    "weights that are a program": ("x.pt", pickle.dumps(Touches()), "config=smoke encoder.weights={}", "x.pt"),
    "a password": ("x", b"", PASSWORD, "password"),
    "a run below a file": ("x", b"", "config=smoke hydra.run.dir={}/out", "not a directory"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_process_with_a_wrong_input_prints_a_one_line_error(place, case):
    name, content, command, reason = CASES[case]
    (place.given / name).write_bytes(content)
    overrides = command.replace("{}", str(place.given / name)).split()
    overrides += [] if "hydra.run.dir" in command else ["hydra.run.dir=out"]
    code, out, err, made = place.run(*overrides)
    assert (code, out) == (1, []), (out, err)
    assert len(err) == 1 and err[0].startswith("error: ") and reason in err[0] and "canary" not in err[0], err
    assert err[0].isprintable() and len(err[0]) < 1000
    assert all(name.startswith("here/out") and BEFORE.fullmatch(name.removeprefix("here/")) for name in made), made


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_process_without_write_permission_prints_a_one_line_error(place):
    (place.given / "shut").mkdir(mode=0o500)
    code, out, err, made = place.run("config=smoke", f"hydra.run.dir={place.given / 'shut' / 'out'}")
    assert (code, out, len(err), made) == (1, [], 1, []) and "Permission denied" in err[0] and "shut" in err[0], err


def test_files_in_the_working_directory_with_the_names_of_packages(place):
    (place.here / "configs").mkdir()
    (place.here / "configs" / "__init__.py").touch()
    assert place.run("--version")[:2] == (0, ["viewproof 0.1.0"])
    (place.here / "transforms.py").touch()
    code, out, err, made = place.run("config=smoke")
    assert (code, out, made) == (1, [], []) and len(err) == 1
    assert re.fullmatch(
        r"error: viewproof needs its own `transforms` in .*; Python finds .*here/transforms.py: .*", err[0]
    )

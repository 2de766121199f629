"""Wrong inputs as a person gives them: a fresh process, its two streams, its exit code, all files before and after.

The tables of `test_bad_*.py` run within one process, which is fast; this holds a sample of them to the real thing.
"""

import json
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
from tests.schema.test_bad_configs import BOMB

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LONGEST = 120
#: An empty folder that torch makes when it is told to be deterministic.
TORCHS = re.compile(r"scratch/torchinductor_\w+")


class Place:
    """A working directory, a home and a folder for temporary files, all of them watched."""

    def __init__(self, folder):
        self.folder = folder
        self.here, self.given = folder / "here", folder / "given"
        for name in ("here", "home", "given", "scratch"):
            (folder / name).mkdir()

    def run(self, *words):
        """(exit code, lines of stdout, lines of stderr, names that are new). What was there must be what it was."""
        ours = {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "scratch"), "PYTHONPATH": str(ROOT)}
        before = tree(self.folder)
        done = subprocess.run(
            [sys.executable, "-m", "attacks.run", *words],
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


def preset(place, text):
    (place.given / "mine.yaml").write_text(text)
    return [f"config={place.given / 'mine.yaml'}"]


def picture(place, content):
    (place.given / "x.png").write_bytes(content)
    return ["config=smoke", "data=folder", f"data.path={place.given / 'x.png'}"]


def weights(place, content):
    (place.given / "x.pt").write_bytes(content)
    return ["config=smoke", f"encoder.weights={place.given / 'x.pt'}"]


def directory(place, content):
    (place.given / "run").mkdir()
    (place.given / "run" / "manifest.json").write_text(content)
    return [f"resume={place.given / 'run'}"]


def below_a_file(place):
    (place.given / "x.png").write_bytes(b"")
    return ["config=smoke", f"hydra.run.dir={place.given / 'x.png' / 'out'}"]


#: What is given -> what is said.
CASES = {
    "a preset with a target": (
        lambda p: preset(p, "encoder: {_target_: os.system, command: 'touch mark'}\n"),
        "_target_",
    ),
    "a preset that is a bomb": (lambda p: preset(p, BOMB), "aliases"),
    "no such preset": (lambda p: ["config=nowhere"], "nowhere"),
    "an unknown key": (lambda p: ["config=smoke", "attack.stepz=3"], "stepz"),
    "a number in words": (lambda p: ["config=smoke", "attack.steps=many"], "attack.steps"),
    "half a picture": (lambda p: picture(p, png(64, 64)[:50]), "x.png` cannot be read"),
    "a picture that is a bomb": (lambda p: picture(p, png(60_000, 60_000)), "pixels; reduce it"),
    "weights that are a program": (lambda p: weights(p, pickle.dumps(Touches())), "x.pt"),
    "half a manifest": (lambda p: directory(p, '{"config": {'), "is not JSON"),
    "nothing to resume": (lambda p: [f"resume={p.given / 'none'}"], "must be the directory of a run"),
    "a password": (lambda p: ["config=smoke", "tracker=mlflow", "tracker.uri=http://me:canary@host"], "password"),
    "a run below a file": (below_a_file, "Not a directory"),
}


@pytest.mark.parametrize("what", CASES)
def test_a_wrong_input_is_one_line_of_a_process(place, what):
    make, reason = CASES[what]
    words = make(place)
    if not words[0].startswith("resume=") and not any(word.startswith("hydra.run.dir=") for word in words):
        words.append("hydra.run.dir=out")
    code, out, err, made = place.run(*words)
    assert (code, out) == (1, []), (out, err)
    assert len(err) == 1 and err[0].startswith("error: ") and reason in err[0] and "canary" not in err[0], err
    assert err[0].isprintable() and len(err[0]) < 1000
    assert all(name.startswith("here/out") and BEFORE.fullmatch(name.removeprefix("here/")) for name in made), made


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_one_line_of_a_process(place):
    (place.given / "shut").mkdir(mode=0o500)
    code, out, err, made = place.run("config=smoke", f"hydra.run.dir={place.given / 'shut' / 'out'}")
    assert (code, out, len(err), made) == (1, [], 1, []) and "Permission denied" in err[0] and "shut" in err[0], err


def test_a_sweep_with_one_bad_job_keeps_the_other(place):
    words = [
        "config=smoke",
        "attack.steps=1",
        "sanity=none",
        "evaluate.views=2",
        "attack.views=1,0",
        "hydra.sweep.dir=out",
    ]
    code, _, err, made = place.run("-m", *words)
    assert code == 1
    errors = [line for line in err if line.startswith("error: ")]
    assert errors and all("attack.views" in line for line in errors) and errors[0].startswith("error: job 1: "), err
    found = [path for path in (place.here / "out").rglob("metrics.json") if json.loads(path.read_text())["schema"]]
    assert [path.parent.name for path in found] == ["0"]
    assert (place.here / "out" / "index.csv").exists()
    assert all(name.startswith(("here/out", "home/.cache", "home/.config")) for name in made), made  # matplotlib's

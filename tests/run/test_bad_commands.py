"""Wrong command lines: an error of one line, exit code 1, and no other effect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attacks.run import cli
from tests.helpers.runs import call
from tests.helpers.wrong import in_time, tree

ROOT = Path(__file__).resolve().parents[2]

SMOKE = "config=smoke"
#: Command line -> a pattern of its error message. {here} is the working directory. Messages that need no command line
#: are in tests/schema/test_messages.py.
WORDS = {
    "": "config.*quickstart",
    "config=nowhere": "`config=nowhere` is unknown: config is .*quickstart",
    "config=./nowhere.yaml": "does not exist",
    "config=../../etc/passwd": "must name a choice",
    "config=.": "`config=.` is unknown: config is ",
    "config=": "config",
    "config=./a#b.yaml": "`./a#b.yaml` has a sign in its name that Hydra does not read; rename the file",
    "data.count=2": "no preset is given",
    "config=smoke =1": "must be KEY=VALUE",
    "config=smoke perturbation.eps": "`perturbation.eps` must be KEY=VALUE, such as perturbation.eps=8/255",
    "config=smoke perturbation.eps=8": r"eps.*did you mean 8/255\?",
    "config=quickstart perturbation=l2 perturbation.eps=": "perturbation.eps.*8/255",
    "config=smoke data=folder data.path=~/mine": "no ~ is expanded here; write data.path=/.*/mine",
    "config=smoke data=folder data.path=a#b": "two kinds of quotes: 'data.path=\"a#b\"'",
    "config=smoke objective=toward objective.target=nobody": "objective.target.*nobody",
    "config=smoke ++encoder._target_=os.system": "_target_",
    "config=smoke seed=${oc.env:HOME}": "environment",
    "config=smoke seed=[": "no viable alternative|mismatched|token",
    f"config=smoke seed={'1' * 5000}": "`seed` must be a number of at most 4,300 digits; got 5,000",
    "config=smoke engine.reuse={here}": "manifest.json",
    "--config-dir={here}/none config=smoke": "none",
    "--experimental-rerun=x.pickle": "refused",
    "hydra.searchpath=[/etc] config=smoke": "refused",
    "-m config=smoke seed=1,2 hydra.launcher._target_=os.system": "`hydra.launcher._target_` is refused",
    "-m config=smoke hydra.callbacks.sweep._target_=os.system": "`hydra.callbacks.sweep._target_` is refused",
    "config=smoke -m seed=range(0) hydra.sweep.dir=out": "the sweep has no jobs",
    "-m config=smoke attack=glob(zz*) hydra.sweep.dir=out": "the sweep has no jobs",
    "-m config=smoke attack.steps=x,y hydra.sweep.dir=out": "steps",
    "-m config=smoke seed=1,2 hydra.sweep.dir=/proc/none": "/proc/none",
    "config=smoke hydra.run.dir={file}": "file exists; name another run directory",
    "config=smoke hydra.run.dir={file}/x": "not a directory; name another run directory",
    "config=smoke hydra.run.dir=/sys/kernel": "must be a new directory, or that of a run; /sys/kernel holds other",
    "config=smoke hydra.run.dir=/proc/none": "no such file or directory; name another run directory",
    f"config=smoke hydra.run.dir={'a' * 300}": "file name too long; name another run directory",
    "resume=": "must be the directory of a run",
    "resume={here}/none": "must be the directory of a run",
    "resume={here}": "manifest.json",
}
#: Files that are written before a configuration is checked: by Hydra, and the lock of a run directory.
EARLY_FILES = re.compile(r"out(/\.lock|/multirun\.yaml)?")


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_a_bad_command_gives_a_one_line_error_and_writes_nothing_else(tmp_path, monkeypatch, capsys, command):
    here, home = (tmp_path / name for name in ("here", "home"))
    for place in (here, home):
        place.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    (here / "a#b.yaml").write_text("seed: 1\n")
    words = [word.replace("{here}", str(here)).replace("{file}", __file__) for word in command.split()]
    if "hydra.run.dir" not in command and not command.startswith(("resume", "-m")):
        words.append("hydra.run.dir=out")
    old_tree = tree(tmp_path)
    with in_time():
        code = call(monkeypatch, *words)
    output = capsys.readouterr()
    *notes, error = output.err.splitlines()
    assert code == 1 and re.search(WORDS[command], error), (code, output)
    assert error.startswith("error: ") and error.isprintable() and len(error) < 1000, error
    assert all(line.startswith(("note: ", "warning: ")) for line in notes) and "Traceback" not in output.out, output
    new_tree = tree(tmp_path)
    assert {name: new_tree.get(name) for name in old_tree} == old_tree
    new_names = [name.removeprefix("here/") for name in new_tree.keys() - old_tree.keys()]
    assert all(map(EARLY_FILES.fullmatch, new_names)), sorted(new_names)


TWICE = ("config=patch", "data.count=1 data.count=2", "data.count=1 ++data.count=2", "hydra.run.dir=elsewhere")


@pytest.mark.parametrize("words", [*map(str.split, (*TWICE, "-m seed=1,2 seed=3"))])
def test_a_key_that_is_given_twice_is_refused(monkeypatch, capsys, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["viewproof", SMOKE, "hydra.run.dir=out", *words])
    with pytest.raises(SystemExit, match="1"):
        cli()
    key, error = words[-1].lstrip("+").partition("=")[0], capsys.readouterr().err
    assert error.startswith(f"error: `{key}` is given twice: ") and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


def process(folder, *words):
    """Exit code, stdout and stderr of the command line in a process of its own, and the files that it makes."""
    old_names = tree(folder)
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    environment |= {"HOME": str(folder), "TMPDIR": str(folder)}
    options = {"cwd": folder, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 120, "check": False}
    command = [sys.executable, "-m", "attacks.run", *words]
    result = subprocess.run(command, **options, capture_output=True, text=True)
    return result.returncode, result.stdout, result.stderr, {name for name in tree(folder) if name not in old_names}


@pytest.mark.slow
def test_a_process_with_a_wrong_input_prints_one_line_and_writes_nothing(tmp_path):
    (tmp_path / "mine.yaml").write_text("encoder: {_target_: os.system, command: 'touch mark'}\n")
    code, out, error, files = process(tmp_path, "config=mine.yaml")
    assert (code, out, files) == (1, "", set()) and error.count("\n") == 1 and "`_target_` is refused" in error


@pytest.mark.slow
def test_files_in_the_working_directory_with_the_names_of_packages(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "__init__.py").touch()
    assert process(tmp_path, "--version")[:2] == (0, "viewproof 0.1.0\n")
    (tmp_path / "transforms.py").touch()
    code, out, error, files = process(tmp_path, "config=smoke")
    assert (code, out, files) == (1, "", set()) and error.count("\n") == 1
    assert re.match(r"error: viewproof needs its own `transforms` in .*; Python finds .*/transforms.py: .", error)

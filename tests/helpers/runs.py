"""The command line in this process, and small finished runs that all tests share."""

import hashlib
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from filelock import FileLock

from attacks.run import cli
from tests.helpers.processes import unique_words

TINY = ["config=evaluate", "data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none"]
TINY += ["evaluate.batch=2", "evaluate.views=4", "evaluate.refine=1"]
#: Without the slowest parts of a small run.
LEAN = ["evaluate.maps=[]", "evaluate.curves=[]", "evaluate.left_out=0", "evaluate.deploy=0", "evaluate.explain=0"]
FIRST = "000000-000002.safetensors"


def call(monkeypatch, *arguments):
    """The command line in this process, by `last_of` its arguments; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["viewproof", *unique_words(arguments)])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    try:
        cli()
    except SystemExit as stop:
        return stop.code
    return 0


class SharedRuns:
    """Finished runs, each made once in a session, by the first of all test processes that asks for it. They are for
    reading: a test that changes one takes a copy, and `close` fails where a run has been changed."""

    def __init__(self, top):
        self.top, self.states = top, {}

    def __call__(self, *words, constants=None):
        """The directory of a run, made with `constants` (dotted name -> value); beside it `stdout` and `stderr`."""

        def make(folder):
            out, error = (folder / "stdout").open("w"), (folder / "stderr").open("w")
            with out, error, redirect_stdout(out), redirect_stderr(error), pytest.MonkeyPatch.context() as patch:
                for name, value in (constants or {}).items():
                    patch.setattr(name, value)
                code = call(patch, *words, f"hydra.run.dir={folder / 'run'}")
            assert code == 0, (folder / "stderr").read_text()

        return self.folder(repr((unique_words(words), constants)), make) / "run"

    def folder(self, key, make):
        """The folder that `make` fills, by its `key`."""
        folder = self.top / hashlib.sha256(key.encode()).hexdigest()[:16]
        complete = folder.with_suffix(".complete")
        with FileLock(folder.with_suffix(".lock")):
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                complete.touch()
        self.states.setdefault(folder, state(folder))
        return folder

    def close(self):
        edited_runs = [folder for folder, first_state in self.states.items() if state(folder) != first_state]
        assert not edited_runs, f"a test has changed a shared run: {edited_runs}"


def state(folder):
    """The sizes and times of the files of a folder, but for the locks of runs."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

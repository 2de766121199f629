"""A command line with a wrong input: its error message, and a check that it has no other effect."""

import contextlib
import hashlib
import os
import re
import signal
import stat
from pathlib import Path

import pytest

from tests.helpers.runs import call

#: Seconds after which a case counts as hanging.
LONGEST = 20
#: Files that are written before a configuration is checked: by Hydra, and the lock of a run directory.
EARLY_FILES = re.compile(r"[^/]+(/\.lock|/multirun\.yaml)?")


@contextlib.contextmanager
def in_time(seconds=LONGEST):
    """Fail if the block does not end in time."""

    def late(*_):
        pytest.fail(f"still running after {seconds} s")

    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def tree(folder):
    """The contents of a folder: type, target of a link, and digest of a file."""
    result = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118  (bytes: a name may be no text)
            state = os.lstat(path)
            facts = [stat.S_IFMT(state.st_mode)]
            if stat.S_ISREG(state.st_mode):
                sparse = state.st_size > 2**26  # the size is enough
                facts.append(
                    state.st_size if sparse else hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).digest()
                )
            elif stat.S_ISLNK(state.st_mode):
                facts.append(os.readlink(path))  # noqa: PTH115
            result[os.fsdecode(os.path.relpath(path, os.fsencode(folder)))] = tuple(facts)
    return result


def refused(message, action, *given, **options):
    """The action raises an error of one printable line with this pattern; the text of it."""
    with in_time(), pytest.raises((ValueError, OSError)) as error:
        action(*given, **options)
    text = str(error.value)
    assert re.search(message, text) and text.isprintable() and len(text) < 1000, text
    return text


class Desk:
    """Separate folders for each case: `here` is the working directory, `home` the home, `given` holds the inputs,
    and `here/out` would be the run directory."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.here, self.home, self.given = (folder / name for name in ("here", "home", "given"))
        for place in (self.here, self.home, self.given):
            place.mkdir()
        monkeypatch.chdir(self.here)
        monkeypatch.setenv("HOME", str(self.home))

    def refused(self, *arguments, out="hydra.run.dir=out"):
        """The one-line error for these arguments, after checking that nothing else was written."""
        old_tree = tree(self.folder)
        self.capsys.readouterr()
        with in_time():
            code = call(self.monkeypatch, *arguments, *([out] if out else []))
        output = self.capsys.readouterr()
        lines = output.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert code == 1, (code, output)
        assert len(errors) == 1 and errors[0] == lines[-1], output.err
        assert all(line.startswith(("note: ", "warning: ")) for line in lines[:-1]), output.err
        assert "Traceback" not in output.out + output.err and errors[0].isprintable(), errors[0]
        assert len(errors[0]) < 1000, len(errors[0])
        new_tree = tree(self.folder)
        assert {name: new_tree.get(name) for name in old_tree} == old_tree
        new_names = [name.removeprefix("here/") for name in new_tree.keys() - old_tree.keys()]
        assert all(EARLY_FILES.fullmatch(name) and name.partition("/")[0] == "out" for name in new_names), sorted(
            new_names
        )
        return errors[0]


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)

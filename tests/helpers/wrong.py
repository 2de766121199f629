"""Wrong inputs: a time limit, the error of one line, and what a folder holds before and after."""

import contextlib
import hashlib
import os
import re
import signal
import stat
from pathlib import Path

import pytest


@contextlib.contextmanager
def in_time(seconds=20):
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
                content = b"" if state.st_size > 2**26 else Path(os.fsdecode(path)).read_bytes()  # a sparse file
                facts += [state.st_size, hashlib.sha256(content).digest()]
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

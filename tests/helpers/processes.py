"""Runs in separate processes, which may be killed."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

#: Time limit of a run on a busy machine, in seconds.
PATIENCE = 300


def unique_words(words):
    """The words of a command line, of a key that is given twice the last: so a test can change one of many."""
    words = list(map(str, words))
    keys = [word.partition("=")[0] if "=" in word else "" for word in words]
    return [word for i, word in enumerate(words) if not keys[i] or keys[i] not in keys[i + 1 :]]


def worker(arguments, log):
    """The command line, in a session of its own."""
    os.setsid()
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from attacks.run import cli

    sys.argv = ["viewproof", *unique_words(arguments)]
    cli()


def started(arguments, log):
    """A worker, forked from a process that has torch loaded, so it starts at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attacks.experiment.job"])
    process = context.Process(target=worker, args=(arguments, str(log)))
    process.start()
    return process


def exit_code(process):
    """The exit code of a process."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def facts(folder):
    """The files of a finished run that must be reproducible, by name; metrics.json without times."""
    names = [*folder.glob("*.csv"), *(folder / "pictures").rglob("*.png"), folder / "adversarial.png"]
    names.append(folder / "perturbation.safetensors")
    result = {str(path.relative_to(folder)): path.read_bytes() for path in names}
    return result | {"metrics.json": json.dumps(without_times(json.loads((folder / "metrics.json").read_text())))}


def without_times(node):
    if isinstance(node, dict):
        return {name: without_times(value) for name, value in node.items() if not name.endswith(("seconds", "files"))}
    return [without_times(value) for value in node] if isinstance(node, list) else node

"""Run every command of the documentation.

    python scripts/run_docs.py README.md docs/*.md

Each line of a fenced `bash` block is run in a temporary folder with the files that the documentation assumes:
`my/pictures` with photographs, and the file of each `yaml` block whose first line is its name (`# mine.yaml`). Each
`python` block is run as a script. A command whose comment says `exits with 3` must do so. Lines that `.ci/run` or
`.ci/nightly` run themselves, or that a test runs in a shorter form, are skipped. A line of `LONG` runs with fewer
steps, unless `--whole` is given. Pages run in parallel, one per core.

A line that is a single command of the project, without a redirection or another sign of the shell, runs in a fork of
a process that has imported what a run needs: of 10 s of a short run that saves 4.
"""

import argparse
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: How a command begins -> what runs it instead.
ELSEWHERE = {
    "pip install": ".ci/run",
    "uv ": ".ci/run",
    "python -m pytest": ".ci/run",
    "HYPOTHESIS_PROFILE=fuzz": ".ci/nightly",
    "python scripts/benchmark.py": "tests/scripts/test_benchmark.py",
    "python scripts/train_pocket.py": "tests/scripts/test_train_pocket.py",
    "python scripts/run_docs.py": "itself",
    "ruff ": ".ci/run",
    "mypy": ".ci/run",
}
#: A command that takes minutes -> the overrides that shorten it.
LONG = {
    "python -m attacks.run config=quickstart data.count=30": "attack.steps=2 sanity=none evaluate.views=8",
    "python -m attacks.run config=quickstart hydra.run.dir=outputs/run": "attack.gradients=32",
    "python -m attacks.run config=patch attack.gradients=": "evaluate.views=8",
    "python -m attacks.run config=evaluate data.count=2": "evaluate.views=8",
    "python -m attacks.run config=targeted": "attack.gradients=16 sanity=none evaluate.views=8",
    "python -m attacks.run config=sgd_l2": "attack.gradients=16 sanity=none evaluate.views=8",
    "python -m attacks.run config=suite": "attack.gradients=16 sanity=none evaluate.views=8",
}
#: What a fork has imported, and the signs of the shell.
IMPORTED = ["attacks.experiment.job", "matplotlib.figure", "scipy.stats", "torchvision"]
SHELL = set("|&;<>$`*?~\\")
LOCK = threading.Lock()
FORKS = multiprocessing.get_context("forkserver")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The shell commands of a page, a line each; a backslash at the end of a line continues it."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [_command(line) for line in lines if line.strip() and not line.startswith("#")]


def _command(line: str) -> str:
    """A line without its comment; where that says `exits with 3 or 4`, one that fails unless the command does."""
    text, _, comment = line.partition(" #")
    expected = re.search(r"exits with (\d)(?: or (\d))?", comment)
    if not expected:
        return text.strip()
    codes = "|".join(filter(None, expected.groups()))
    return f"{text.strip()} && code=0 || code=$?; [[ $code =~ ^({codes})$ ]]"


def prepare(folder: Path, page: Path) -> None:
    """What the documentation's commands expect to find."""
    (folder / "my" / "pictures").mkdir(parents=True)
    for name in ("astronaut.png", "coffee.png"):
        shutil.copy(ROOT / "attacks" / "data" / "photos" / name, folder / "my" / "pictures" / name)
    for block in blocks(page, "yaml"):
        if named := re.match(r"# (\w+\.yaml)\n", block):
            (folder / named[1]).write_text(block)
    for name in ("scripts", "docs"):
        (folder / name).symlink_to(ROOT / name)


def run(page: Path, whole: bool) -> None:
    """Every command of a page, in order: one may need what another wrote."""
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary), page)
        scripts = [[sys.executable, "-W", "error", "-c", block] for block in blocks(page, "python")]
        shells = [line for line in commands(page) if not line.startswith(tuple(ELSEWHERE))]
        if not whole:
            shells = list(map(shortened, shells))
        for command in [*scripts, *(["bash", "-euc", line] for line in shells)]:
            began = time.perf_counter()
            print(f"{page.name}: {command[-1].splitlines()[0]}", flush=True)
            if command[0] == "bash" and (words := words_of(command[-1])):
                forked(words, temporary)
            else:
                subprocess.run(command, cwd=temporary, check=True)
            print(f"{page.name}: done in {time.perf_counter() - began:.0f} s", flush=True)


def shortened(line: str) -> str:
    """A command with the overrides of `LONG` in place of its own of the same keys."""
    for start, less in LONG.items():
        if line.startswith(start):
            for word in less.split():
                line = re.sub(rf" {re.escape(word.partition('=')[0])}=\S+", "", line) + f" {word}"
    return line


def words_of(line: str) -> list[str]:
    """The words of a line that is a single command of the project; none of any other line."""
    words = [] if SHELL & set(line) else shlex.split(line)
    if words[:3] == ["python", "-m", "attacks.run"]:
        return words[2:]
    return words if words[:1] == ["viewproof"] else []


def forked(words: list[str], folder: str) -> None:
    """Run a command in a fork. Raises CalledProcessError unless its exit status is 0."""
    process = FORKS.Process(target=_command_of, args=(words, folder))
    with LOCK:  # a start looks for the end of the other threads' processes, too
        process.start()
    connection.wait([process.sentinel])
    with LOCK:
        process.join()
    if process.exitcode:
        raise subprocess.CalledProcessError(process.exitcode, words)


def _command_of(words: list[str], folder: str) -> None:
    os.chdir(folder)
    sys.path[0], sys.argv[:] = folder, words
    if words[0] != "viewproof":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    from attacks.commands import main

    sys.exit(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--whole", action="store_true", help="shorten no command")
    arguments = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    FORKS.set_forkserver_preload(IMPORTED)
    longest_first = sorted(arguments.pages, key=lambda page: len(commands(page)), reverse=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(partial(run, whole=arguments.whole), longest_first):
            pass


if __name__ == "__main__":
    main()

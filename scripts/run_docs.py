"""Run every command of the documentation.

    python scripts/run_docs.py README.md docs/*.md

Each line of a fenced `bash` block is run in a temporary folder with the files that the documentation assumes:
`my/pictures` with photographs, and the file of each `yaml` block whose first line is its name (`# mine.yaml`). Each
`python` block is run as a script. A command whose comment says `exits with 3` must do so. Lines that `.ci/run` or
`.ci/nightly` run themselves, or that a test runs in a shorter form, are skipped. Unless `--whole` is given, a run is
shortened (`LONG`, `BRIEF`), and a run that two pages make with the same words is made once. Pages run in parallel,
one per core.

A `python` block, and a line that is a single command of the project without a sign of the shell, runs in a fork of a
process that has imported what a run needs: of 10 s of a short run that saves 4.
"""

import argparse
import hashlib
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
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: How a command begins -> what runs it instead.
RUNNERS = {
    "pip install": ".ci/run",
    "uv ": ".ci/run",
    "python -m pytest": ".ci/run",
    "python scripts/benchmark.py": "tests/scripts/test_benchmark.py",
    "python scripts/leaderboard.py": "tests/scripts/test_leaderboard.py",
    "python scripts/defence_table.py": "tests/scripts/test_defence_table.py",
    "python scripts/train_pocket.py": "tests/scripts/test_train_pocket.py",
}
RUN = "python -m attacks.run config="
#: A command that takes minutes -> the overrides that shorten it, in place of its own of the same keys.
LONG = {
    f"{RUN}quickstart data.count=30": "data.count=6 attack.steps=2 evaluate.views=8 sanity=none",
    f"{RUN}quickstart defence=dbd": "attack.gradients=4 data.count=2",
    f"{RUN}quickstart hydra.run.dir=outputs/run": "attack.gradients=16 data.count=6 sanity=none",
    f"{RUN}quickstart attack.gradients=32": "attack.gradients=16 data.count=6 sanity=none",
    f"{RUN}quickstart perturbation.shared=true": "data.count=4 attack.gradients=16",
    f"{RUN}smoke attack.views=auto": "attack.steps=16",
    "python -m attacks.run -m config=quickstart perturbation.shared=true": "data.count=10 attack.gradients=16",
    **dict.fromkeys((f"{RUN}{name}" for name in ("targeted", "sgd_l2", "suite")), "attack.gradients=16 sanity=none"),
    f"{RUN}smoke evaluate.failure=1": "data.size=64",
}
#: What shortens every other run, unless it has the key itself, or a directory that later commands read.
BRIEF = [f"evaluate.{word}" for word in ("views=8", "left_out=0", "refine=0", "explain=0", "maps=[]", "curves=[]")]
#: What a fork has imported, and the signs of the shell.
PRELOAD = ["attacks.experiment.job", "matplotlib.figure", "scipy.stats", "torchvision"]
SHELL = set("|&;<>$`*?~\\")
LOCK = threading.Lock()
#: Words of a run that several pages may make -> the lock of what makes it.
SHARED = defaultdict[str, threading.Lock](threading.Lock)
FORKS = multiprocessing.get_context("forkserver")


def fenced_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    """A line of the shell, and the exit statuses of which it must have one."""

    line: str
    codes: tuple[int, ...] = (0,)


def commands(page: Path) -> list[Command]:
    """The shell commands of a page, a line each; a backslash at the end of a line continues it."""
    lines = "\n".join(fenced_blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [_command(line) for line in lines if line.strip() and not line.startswith("#")]


def _command(line: str) -> Command:
    """A line without its comment, which may say `exits with 3 or 4`."""
    text, _, comment = line.partition(" #")
    expected = re.search(r"exits with (\d)(?: or (\d))?", comment)
    return Command(text.strip(), tuple(int(code) for code in expected.groups() if code) if expected else (0,))


def prepare_folder(folder: Path, page: Path) -> None:
    """What the documentation's commands expect to find."""
    (folder / "my" / "pictures").mkdir(parents=True)
    for name in ("astronaut.png", "coffee.png"):
        shutil.copy(ROOT / "attacks" / "data" / "photos" / name, folder / "my" / "pictures" / name)
    for block in fenced_blocks(page, "yaml"):
        if file_name := re.match(r"# (\w+\.yaml)\n", block):
            (folder / file_name[1]).write_text(block)
    for name in ("scripts", "docs"):
        (folder / name).symlink_to(ROOT / name)


def run(page: Path, runs: Path | None) -> None:
    """Every command of a page, in order: one may need what another wrote. Shortened, unless `runs` is None."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare_folder(folder, page)
        for block in fenced_blocks(page, "python"):
            with stopwatch(page, block.splitlines()[0]):
                run_in_fork(Command(block), folder, ["-c", block])
        for command in commands(page):
            if command.line.startswith(tuple(RUNNERS)):
                continue
            if runs is not None:
                command = Command(short_line(command.line), command.codes)
            with stopwatch(page, command.line):
                execute(command, folder, runs)


@contextmanager
def stopwatch(page: Path, name: str) -> Iterator[None]:
    start = time.perf_counter()
    print(f"{page.name}: {name}", flush=True)
    yield
    print(f"{page.name}: done in {time.perf_counter() - start:.0f} s", flush=True)


def execute(command: Command, folder: Path, runs: Path | None) -> None:
    """Run a command in a folder. A run with the same words that is in `runs` is copied; one that is not is added."""
    words = single_command(command.line)
    out = run_directory(words)
    if not words:
        _expect(subprocess.run(["bash", "-euc", command.line], cwd=folder, check=False).returncode, command)
    elif runs is None or not out or any("/" in word for word in words if not word.endswith(out)):
        run_in_fork(command, folder, words)
    else:
        key = hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()
        with SHARED[key]:
            if not (runs / key).exists():
                run_in_fork(command, folder, words)
                shutil.copytree(folder / out, runs / key)
            else:
                shutil.copytree(runs / key, folder / out, dirs_exist_ok=True)


def short_line(line: str) -> str:
    """A run with the overrides of `LONG` in place of its own of the same keys, and with those of `BRIEF`."""
    for start, overrides in LONG.items():
        if line.startswith(start):
            for word in overrides.split():
                line = re.sub(rf" {re.escape(word.partition('=')[0])}=\S+", "", line) + f" {word}"
    words = single_command(line)
    if words[:1] != ["attacks.run"] or run_directory(words) or re.search(r" (--|show=)", line):
        return line
    return " ".join([line, *(word for word in BRIEF if word.partition("=")[0] not in line)])


def single_command(line: str) -> list[str]:
    """The words of a line that is a single command of the project; none of any other line."""
    words = [] if SHELL & set(line) else shlex.split(line)
    if words[:3] == ["python", "-m", "attacks.run"]:
        return words[2:]
    return words if words[:1] == ["viewproof"] else []


def run_directory(words: list[str]) -> str:
    """The directory of a run that later commands may read."""
    return next((word.partition("=")[2] for word in words if word.startswith("hydra.run.dir=")), "")


def run_in_fork(command: Command, folder: Path, words: list[str]) -> None:
    """Run a command in a fork. Raises CalledProcessError unless its exit status is expected."""
    process = FORKS.Process(target=_run_in_fork, args=(words, folder))
    with LOCK:  # a start looks for the end of the other threads' processes, too
        process.start()
    connection.wait([process.sentinel])
    with LOCK:
        process.join()
    _expect(process.exitcode or 0, command)


def _expect(code: int, command: Command) -> None:
    if code not in command.codes:
        raise subprocess.CalledProcessError(code, command.line)


def _run_in_fork(words: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.path[0], sys.argv[:] = str(folder), words
    if words[0] == "-c":
        sys.argv[1:] = []
        warnings.simplefilter("error")
        Path("block.py").write_text(words[1])
        runpy.run_path("block.py", run_name="__main__")
    elif words[0] != "viewproof":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        from attacks.commands import main

        sys.exit(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--whole", action="store_true", help="shorten no command")
    arguments = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    FORKS.set_forkserver_preload(PRELOAD)
    longest_first = sorted(arguments.pages, key=lambda page: len(commands(page)), reverse=True)
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(run, runs=None if arguments.whole else Path(runs)), longest_first))


if __name__ == "__main__":
    main()

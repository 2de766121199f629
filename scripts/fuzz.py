"""Feed the program what nobody means to give it, and hold it to its laws.

    python scripts/fuzz.py images --minutes 10     # picture files: whole ones of every format, damaged
    python scripts/fuzz.py configs --minutes 10    # presets and words of the command line
    python scripts/fuzz.py stages --minutes 10     # every stage and compositions, on pictures of all shapes and types

With atheris installed (`pip install atheris`), half of the time is guided by which branches a case reaches; without
it, hypothesis alone makes the cases. A case that breaks a law, takes longer than 10 seconds of work or needs more
than 1 GiB goes to a file of `--cases`, with what was said and the command that runs it again. Exit code 1 where there
is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzzing import worker

SCRIPT = Path(__file__).resolve()
#: Seconds of one process, and of the silence after which it is ended from outside.
ROUND, SILENCE = 120.0, 60.0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("target", choices=worker.TARGETS)
    made.add_argument("--minutes", type=float, default=10, help="how long; %(default)s")
    made.add_argument("--seed", type=int, default=0, help="of the first round; %(default)s")
    made.add_argument("--cases", type=Path, default=Path("outputs/fuzz"), help="folder for cases; %(default)s")
    made.add_argument("--replay", type=Path, metavar="FILE", help="run one case, and nothing else")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    given = parser().parse_args(arguments)
    if given.replay is not None:
        return replay(given.target, given.replay)
    engines = ["hypothesis", *(["atheris"] if importlib.util.find_spec("atheris") else [])]
    given.cases.mkdir(parents=True, exist_ok=True)
    end, count, number, found = time.monotonic() + 60 * given.minutes, 0, 0, set[str]()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        (folder / "here").mkdir()
        while (left := end - time.monotonic()) > 1:
            engine = engines[number % len(engines)]
            count += one_round(given.target, engine, given.seed + 1000 * number, min(ROUND, left), folder)
            found |= collect(given.target, folder / "found", given.cases)
            number += 1
            left = max(0, end - time.monotonic())
            print(f"{given.target}: {count} cases, {len(found)} findings, {left:.0f} s left ({engine})", flush=True)
    for name in sorted(found):
        print(f"{given.cases / name}: {SCRIPT.name} {given.target} --replay {given.cases / name}")
    return 1 if found else 0


def one_round(target: str, engine: str, seed: int, seconds: float, folder: Path) -> int:
    """One process to its end; a case that ends it before is confirmed in another one. Returns how many cases."""
    for name in ("current", "count"):
        (folder / name).unlink(missing_ok=True)
    command = [sys.executable, worker.__file__, target, engine, str(seed), f"{seconds:.0f}", str(folder)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            process.wait(seconds + SILENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode:
        suspect(target, folder)
    done = folder / "count"
    return int(done.read_text() or 0) if done.exists() else 0


def suspect(target: str, folder: Path) -> None:
    """The case that a process died of, if it fails again: a machine may stop for ten seconds by itself."""
    case, said = folder / "current", (folder / "log").read_text(errors="replace")
    if not case.exists() or "Traceback (most recent call last)" in said:
        raise RuntimeError(f"the process that makes cases has failed itself: {said[-2000:]}")
    again = subprocess.run(
        [sys.executable, SCRIPT, target, "--replay", case], capture_output=True, text=True, errors="replace"
    )
    if again.returncode:
        (folder / "found").mkdir(exist_ok=True)
        name = f"{target}-ended-{len(said) % 1000:03d}"
        shutil.copy(case, folder / "found" / f"{name}{'.bin' if target == 'images' else '.json'}")
        (folder / "found" / f"{name}.txt").write_text(f"{said[-4000:]}\n{again.stderr[-4000:]}")


def collect(target: str, found: Path, cases: Path) -> set[str]:
    """Copy what was found, with the command that runs it again."""
    files = sorted(found.glob("*.*")) if found.exists() else []
    for file in files:
        shutil.copy(file, cases / file.name)
    names = {file.name for file in files if file.suffix != ".txt"}
    for name in names:
        with (cases / name).with_suffix(".txt").open("a") as said:
            said.write(f"\npython scripts/fuzz.py {target} --replay {cases / name}\n")
    return names


def replay(name: str, file: Path) -> int:
    """Check the case of one file, under the same limits."""
    content = file.read_bytes()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        os.chdir(place)
        target = worker.loaded(name)
        with worker.hurried(target.seconds, sys.stderr):
            worker.checked(target, target.read(content))
        os.chdir(SCRIPT.parent)
    print("it holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which encoder is the most robust: several runs ranked in one table, with the differences that can be told.

    viewproof compare outputs/2026-01-31/sweep-12-00-00        # every run below a folder
    viewproof compare outputs/a outputs/b --out outputs/a_b    # some runs

Prints the tables, and writes index.html, index.csv, ranking.csv and pairs.csv: the differences of every two runs of
the same pictures and views, paired by cluster, with 95 % intervals and p values. Runs of one threat are ranked; those
that share a letter cannot be told apart. Directories may come from others: no code is run, no picture read.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attacks.report.columns import text_rows
from attacks.report.comparison import RANKING, compare_runs, refuse_foreign, write_comparison
from attacks.report.pairs import PAIRS
from attacks.report.runs import RUNS
from attacks.runtime.command_line import printable
from attacks.runtime.untrusted import refuse_file
from attacks.schema.secrets import refuse_credentials

MAX_RUNS, MAX_FOLDERS = 500, 20_000


def run_directories(paths: Sequence[Path]) -> list[Path]:
    """The run directories among the paths and below them; numbers in their order. Raises ValueError in one line."""
    runs: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"`RUN` must be a run directory or a folder of them; got {str(path)!r}")
        inside = [path] if (path / "metrics.json").is_file() else _below(path)
        if not inside:
            raise ValueError(f"`RUN`: {str(path)!r} holds no run, there is no metrics.json in it nor below it")
        runs |= {run.resolve(): run for run in inside}
    if len(runs) > MAX_RUNS:
        raise ValueError(f"`RUN` may be at most {MAX_RUNS} runs; got {len(runs)}")
    return list(runs.values())


def _below(folder: Path) -> list[Path]:
    runs = []
    for count, (parent, folders, files) in enumerate(os.walk(folder)):  # does not follow links
        if count > MAX_FOLDERS:
            raise ValueError(f"`RUN`: {str(folder)!r} has more than {MAX_FOLDERS} folders; name the runs themselves")
        if "metrics.json" in files and (Path(parent) / "metrics.json").is_file():
            runs.append(Path(parent))
            folders.clear()
    keys = [[(int(part) if part.isdecimal() else -1, part) for part in path.parts] for path in runs]
    return [path for _, path in sorted(zip(keys, runs, strict=True))]


def _default_folder(paths: Sequence[Path], runs: Sequence[Path]) -> Path:
    """The default of `--out`: the one folder that was named, or the one that holds all runs."""
    if len(paths) == 1 and paths[0] not in runs:
        return paths[0]
    parents = {run.resolve().parent for run in runs}
    if len(parents) > 1:
        raise ValueError("`--out` is needed: these runs do not lie in one folder")
    return parents.pop()


def _terminal_table(lines: Sequence[Sequence[str]]) -> str:
    cells = [[*map(_plain, line)] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells)


def _plain(name: str) -> str:
    return printable(name).replace("|", "/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a folder of them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: the folder of the runs)")


def run(options: argparse.Namespace) -> None:
    refuse_file(options.out, "--out")
    for path in options.runs:
        refuse_credentials(path, "`RUN`")
    paths = [Path(path) for path in options.runs]
    runs = run_directories(paths)
    out = options.out or _default_folder(paths, runs)
    refuse_foreign(out, "--out")
    root = os.path.commonpath([run.resolve().parent for run in runs])
    result = compare_runs({run: run.resolve().relative_to(root).as_posix() for run in runs})
    omissions = [f"{name}: {reason}" for name, reason in result.omissions]
    if not result.runs:
        raise ValueError(f"`RUN`: none of these is a run ({_plain('; '.join(omissions))})")
    page = write_comparison(result, out)
    tables = [(RANKING, result.standings), (RUNS, result.runs), (PAIRS, result.pairs)]
    print("\n\n".join(_terminal_table(text_rows(columns, rows)) for columns, rows in tables if rows))
    for line in (*(f"skipped: {line}" for line in omissions), *(f"not compared: {line}" for line in result.refusals)):
        print(_plain(line), file=sys.stderr)
    print(f"index: {page}")

"""Which encoder is the most robust: several runs ranked in one table, with the differences that can be told.

    viewproof compare outputs/2026-01-31/sweep-12-00-00        # every run below a folder
    viewproof compare outputs/a outputs/b --out outputs/a_b    # some runs
    viewproof compare s3://bucket/sweep --out outputs/sweep    # also zip://, memory://, ...: any of fsspec

Prints the tables, and writes index.html (links the reports; curves over eps and over the width of the views),
index.csv, ranking.csv and pairs.csv: for every two runs that attacked the same pictures and were judged on the same
bank of views, the difference of the attacks with EOT, paired by cluster of pictures, with its 95 % interval and its
p value (sign flips, after Holm over the pairs of runs of one threat). Runs of one threat are ranked by their primary
measure; those that share a letter cannot be told apart. For other pairs the difference is printed, and what to do.

Directories may come from others: no code is run, no picture read, nothing larger than a run could write.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath

from attacks.evaluation.intervals import Interval
from attacks.report.compare import Pair
from attacks.report.comparison import compare_runs, refuse_foreign, write_comparison
from attacks.report.index import Row
from attacks.report.ranking import ranked
from attacks.report.words import p_value, written
from attacks.runtime.command_line import printable
from attacks.runtime.folders import refuse_file
from attacks.runtime.remote import local
from attacks.schema.secrets import refuse_credentials

MOST_RUNS, MOST_FOLDERS = 500, 20_000


def runs_of(paths: Sequence[Path]) -> list[Path]:
    """The run directories among the paths and, of a path that is none, those below it; numbers in their order.

    Raises:
        ValueError: a path that is no folder, or that holds too many or no runs.
    """
    runs: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"`RUN` must be a run directory or a folder of them; got {str(path)!r}")
        here = [path] if (path / "metrics.json").is_file() else _below(path)
        if not here:
            raise ValueError(f"`RUN`: {str(path)!r} holds no run, there is no metrics.json in it nor below it")
        runs |= {run.resolve(): run for run in here}
    if len(runs) > MOST_RUNS:
        raise ValueError(f"`RUN` may be at most {MOST_RUNS} runs; got {len(runs)}")
    return list(runs.values())


def _below(folder: Path) -> list[Path]:
    runs = []
    for seen, (here, folders, files) in enumerate(os.walk(folder)):  # does not follow links
        if seen > MOST_FOLDERS:
            raise ValueError(f"`RUN`: {str(folder)!r} has more than {MOST_FOLDERS} folders; name the runs themselves")
        if "metrics.json" in files and (Path(here) / "metrics.json").is_file():
            runs.append(Path(here))
            folders.clear()
    numbered = [[(int(part) if part.isdecimal() else -1, part) for part in path.parts] for path in runs]
    return [path for _, path in sorted(zip(numbered, runs, strict=True))]


def labels(runs: Sequence[Path], origins: Mapping[Path, str] | None = None) -> dict[Path, str]:
    """The name of each run: its path from the folder that all have in common. `origins` are the locations of folders
    that were copied to this machine."""
    whole = [_original(run.resolve(), origins or {}) for run in runs]
    root = PurePath(os.path.commonpath([each.parent for each in whole]))
    return {run: each.relative_to(root).as_posix() for run, each in zip(runs, whole, strict=True)}


def _original(run: Path, origins: Mapping[Path, str]) -> PurePath:
    for copy, location in origins.items():
        if "://" in location and run.is_relative_to(copy.resolve()):
            scheme, _, path = location.partition("://")
            return PurePath("/", scheme, path.strip("/"), run.relative_to(copy.resolve()))
    return run


def place(paths: Sequence[Path], runs: Sequence[Path]) -> Path:
    """The default of `--out`: the one folder that was named, or the one that holds all runs."""
    if len(paths) == 1 and paths[0] not in runs:
        return paths[0]
    parents = {run.resolve().parent for run in runs}
    if len(parents) > 1:
        raise ValueError("`--out` is needed: these runs do not lie in one folder")
    return parents.pop()


def text(names: Mapping[Path, str], rows: Sequence[Row], pairs: Sequence[Pair]) -> str:
    """The table of runs and that of pairs, for the terminal."""
    head = ["run", "encoder", "threat", "transforms", "seed", "pictures", "clusters", "success no_eot", "success eot"]
    head += ["cosine eot", "success eot, wide"] if any(row.wide for row in rows) else ["cosine eot"]
    lines = []
    for row in rows:
        line = [
            names[row.directory],
            row.encoder,
            row.threat,
            row.transforms,
            *map(str, (row.seed, row.pictures, row.clusters)),
        ]
        cells = [(row.arms, "no_eot", "success"), (row.arms, "eot", "success"), (row.arms, "eot", "cosine")]
        values = [arms.get(arm, {}).get(measure) for arms, arm, measure in (*cells, (row.wide, "eot", "success"))]
        lines.append([*line, *map(_words, values)][: len(head)])
    parts = [_table(head, lines)]
    if pairs:
        head = ["first", "second", "bank", "measure of eot", "pictures", "clusters", "second minus first", "p (Holm)"]
        lines = []
        for pair in pairs:
            line = [pair.first, pair.second, pair.bank, pair.measure, str(pair.pictures), str(pair.clusters)]
            lines.append([*line, _words(pair.difference, "+"), p_value(pair.p_holm, pair.needed)])
        parts.append(_table(head, lines))
    return "\n\n".join(parts)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [list(map(plain, line)) for line in (head, *lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells)


def plain(name: str) -> str:
    """A name as a cell of a table."""
    return printable(name).replace("|", "/")


def _words(value: Interval | None, sign: str = "") -> str:
    return "" if value is None else written(value._asdict(), sign=sign)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a folder of them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: the folder of the runs)")


def run(options: argparse.Namespace) -> None:
    """Copy what is not on this machine, and compare."""
    if options.out is None and any("://" in location for location in options.runs):
        raise ValueError("`--out` is needed: the runs are not in a folder of this machine")
    refuse_file(options.out, "--out")
    for location in options.runs:
        refuse_credentials(location, "`RUN`")
    with ExitStack() as stack:
        origins = {stack.enter_context(local(location)): str(location) for location in options.runs}
        compare(list(origins), options.out, origins)


def compare(paths: Sequence[Path], folder: Path | None, origins: Mapping[Path, str] | None = None) -> None:
    """Compare, write, and print."""
    runs = runs_of(paths)
    out = folder or place(paths, runs)
    refuse_foreign(out, "--out")
    names = labels(runs, origins)
    result = compare_runs(names)
    if not result.rows:
        reasons = "; ".join(f"{names[each.directory]}: {each.reason}" for each in result.skipped)
        raise ValueError(f"`RUN`: none of these is a run ({plain(reasons)})")
    page = write_comparison(result, out)
    ranking = [_table(*ranked(result.tables))] if result.tables else []
    print(*ranking, text(names, result.rows, result.pairs), sep="\n\n")
    lines = [f"skipped: {names[each.directory]}: {each.reason}" for each in (*result.skipped, *result.notes)]
    for line in (*lines, *(f"not compared: {line}" for line in result.refused)):
        print(plain(line), file=sys.stderr)
    print(f"index: {page}")

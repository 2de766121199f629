"""Comparisons of runs: a ranking with groups that cannot be told apart, and the page and the files of `viewproof
compare`, of a sweep and of a notebook. A table holds runs of one protocol, threat and set of pictures, whose values
`runs` and `pairs` have checked."""

import base64
import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from attacks.inference.bounded import Interval
from attacks.inference.pairs import LEVEL
from attacks.report.columns import Column, csv_rows, page_table
from attacks.report.environment import TEMPLATES, environment
from attacks.report.pairs import PAIRS, RunPair, RunScores, compare_pairs, read_pair_scores
from attacks.report.runs import ARM, GROUPS, RUNS, RunSummary, collect
from attacks.report.settings import curve_of
from attacks.report.words import ARMS, p_value
from attacks.runtime.files import write_text
from attacks.runtime.tables import write_rows

#: What is written, the page first.
FILES = ("index.html", "index.csv", "ranking.csv", "pairs.csv")
#: The most pairs without a comparison that are listed.
MAX_LISTED = 20
#: The most groups that have a letter, and the most that are looked at on the way to them.
MAX_GROUPS, MAX_TRIALS = 26, 500


class Standing(NamedTuple):
    """A run of a table: its place from 1, its `value` with the 95 % interval, and the letters of its groups; none
    where there are more groups than letters. With too few clusters for a test there are no letters either, and
    `clusters_needed` is the number that a test needs."""

    run: RunSummary
    scores: RunScores
    measure: str
    place: int
    letters: str
    clusters_needed: int | None

    @property
    def value(self) -> Interval:
        """The measure, by which the table is in order."""
        value: Interval = self.run.values[f"{ARM}_{self.measure}"]
        return value


#: The columns of ranking.csv. On the page, threat, views and measure stand above each table.
RANKING = [
    Column(lambda row: f"{row.place}. {row.run.values['encoder']}", page="encoder"),
    Column(lambda row: row.run.values["threat"], "threat", "threat"),
    Column(lambda row: row.run.values["transforms"], "views", "views"),
    Column(lambda row: row.measure, "measure", "measure"),
    Column(lambda row: row.place, "place", "place"),
    Column(lambda row: row.run.name, "run", "run"),
    Column(lambda row: row.run.values["encoder"], "encoder", "encoder"),
    Column(lambda row: row.value, "mean", ARM, ARMS[ARM], kind="interval"),
    Column(lambda row: row.letters or None, "group"),
    Column(lambda row: p_value(None, x) if (x := row.clusters_needed) else row.letters, "", "group", "group"),
    Column(lambda row: row.run.values[f"clean_{row.measure}"], "", "clean", ARMS["clean"], kind="interval"),
    Column(lambda row: row.run.name, page="run"),
]


def ranking_tables(
    runs: Sequence[RunSummary], scores: Mapping[str, RunScores], pairs: Sequence[RunPair]
) -> list[list[Standing]]:
    """The tables of the runs that have `scores` by name, each with at least two. Lower success of the attack, or a
    higher cosine, is more robust. They do not depend on the order of the runs, apart from equal values."""
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for run in (run for run in runs if run.name in scores):
        of_run = scores[run.name]
        measure = of_run.primary if ("same", of_run.primary) in of_run.values else "cosine"
        if run.values[f"{ARM}_{measure}"] and ("same", measure) in of_run.values:
            row = Standing(run, of_run, measure, 0, "", None)
            pictures = frozenset(of_run.values[("same", measure)])
            key = (of_run.attack, of_run.eps, measure, pictures, run.values["transforms"])  # with its weighting
            groups.setdefault(key, []).append(row)
    tables = [_table(group, pairs) for group in groups.values() if len(group) > 1]

    def order(table: list[Standing]) -> tuple[list[str], float]:
        """By the norm of the threat, or "patch"; then by its radius."""
        return table[0].run.values["threat"].replace(",", " ").split()[:1], table[0].scores.eps or 0

    return sorted(tables, key=order)


def _table(rows: Sequence[Standing], pairs: Sequence[RunPair]) -> list[Standing]:
    measure = rows[0].measure
    rows = sorted(rows, key=lambda row: row.value.mean, reverse=measure != "success")
    names = [row.run.name for row in rows]
    tests = [pair for pair in pairs if (pair.bank, pair.measure) == ("same", measure)]
    tests = [pair for pair in tests if pair.first in names and pair.second in names]
    fewest = max((pair.clusters_needed or 0 for pair in tests), default=0) or None
    differing = {frozenset((pair.first, pair.second)) for pair in tests if pair.p is not None and pair.p < LEVEL}
    marks = {} if fewest else significance_letters(names, differing)
    rows = [row._replace(letters=marks.get(row.run.name, ""), clusters_needed=fewest) for row in rows]
    return [row._replace(place=place) for place, row in enumerate(rows, 1)]


def significance_letters(names: Sequence[str], differing: Collection[frozenset[str]]) -> dict[str, str]:
    """Two names share a letter exactly if they are no `differing` pair (Piepho 2004); none for too many groups."""
    groups: list[frozenset[str]] = [frozenset(names)]
    for first, second in itertools.combinations(names, 2):
        if frozenset((first, second)) not in differing:
            continue
        parts = [group - {name} for group in groups for name in (first, second)]
        groups = [group for group in dict.fromkeys(parts) if not any(group < other for other in parts)]
        if len(groups) > MAX_TRIALS:
            return {}
    if len(groups) > MAX_GROUPS:
        return {}
    order = {name: i for i, name in enumerate(names)}
    groups.sort(key=lambda group: sorted(order[name] for name in group))
    return {name: "".join(chr(ord("a") + i) for i, group in enumerate(groups) if name in group) for name in names}


@dataclass(frozen=True)
class ComparedRuns:
    """The runs in the order given, their pairs, the tables, the most robust run first, and what is left out, why."""

    runs: Sequence[RunSummary]
    omissions: Sequence[tuple[str, str]]
    pairs: Sequence[RunPair] = ()
    refusals: Sequence[str] = ()
    tables: Sequence[Sequence[Standing]] = ()

    @property
    def standings(self) -> list[Standing]:
        """The rows of ranking.csv."""
        return [standing for table in self.tables for standing in table]


def compare_runs(names: Mapping[Path, str]) -> ComparedRuns:
    """Read and compare run directories, each with its name. Raises ValueError for too many runs."""
    runs, omissions = collect(names)
    scores: dict[str, RunScores] = {}
    for run in runs:
        try:
            scores[run.name] = read_pair_scores(run.directory)
        except (ValueError, OSError) as error:
            omissions.append((run.name, f"only in the table: {error}"))
    pairs, reasons = compare_pairs(scores)
    refusals = [f"{first} and {second}: {reason}" for first, second, reason in reasons[:MAX_LISTED]]
    refusals += [f"{len(reasons) - MAX_LISTED} more pairs"] if len(reasons) > MAX_LISTED else []
    return ComparedRuns(runs, omissions, pairs, refusals, ranking_tables(runs, scores, pairs))


def refuse_foreign(folder: Path, key: str) -> None:
    """Raise ValueError where a page or a table of the folder is not of an earlier comparison: it would be lost."""
    files = [folder / name for name in FILES if (folder / name).exists()]
    if files and not own_page(folder / FILES[0]):
        rule = f"was not written by viewproof, so it is kept; name another folder by {key}"
        raise ValueError(f"`{key}`: {files[0]} {rule}")


def own_page(page: Path) -> bool:
    """Whether a file is a page of this tool."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return b"<title>Viewproof" in file.read(2**12)


def write_comparison(result: ComparedRuns, folder: Path) -> Path:
    """Write index.html, index.csv, ranking.csv and pairs.csv into a folder. Returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "ranking.csv", csv_rows(RANKING, result.standings))
    write_rows(folder / "pairs.csv", csv_rows(PAIRS, result.pairs))
    return write_page(result, folder)


def write_page(result: ComparedRuns, folder: Path) -> Path:
    """Write index.html and index.csv into a folder. Returns the page, which links the reports below the folder."""
    page, template = folder / "index.html", environment().get_template("index.html")
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    links = {run.name: link(folder, run.directory) for run in result.runs}
    svg = None
    if curve := curve_of([run.settings for run in result.runs], [run.values for run in result.runs]):
        from attacks.report.figures import setting_curve  # not above: it imports matplotlib

        svg = setting_curve(curve)
    tables = [page_table(RANKING, table, [links[row.run.name] for row in table]) for table in result.tables]
    text = template.render(
        runs=page_table(RUNS, result.runs, [*links.values()], GROUPS),
        ranking=[*zip(result.tables, tables, strict=True)],
        result=result,
        curve=curve,
        svg=svg,
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_text(page, text)
    write_rows(folder / "index.csv", csv_rows(RUNS, result.runs))
    return page


def link(folder: Path, directory: Path) -> str | None:
    """The link of a page in `folder` to the report of a run; None without one within the folder."""
    report, folder = (directory / "report.html").resolve(), folder.resolve()
    inside = directory.resolve().is_relative_to(folder) and report.is_file() and report.is_relative_to(folder)
    return quote(report.relative_to(folder).as_posix(), safe="/") if inside else None

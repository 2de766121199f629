"""Comparisons of runs: the page and the files of `viewproof compare`, of a sweep and of a notebook."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from attacks.report.columns import csv_rows, page_table
from attacks.report.environment import TEMPLATES, environment
from attacks.report.pairs import PAIRS, RunPair, RunScores, compare_pairs, read_pair_scores
from attacks.report.ranking import RANKING, Standing, charts, ranking_tables
from attacks.report.runs import GROUPS, RUNS, RunSummary, collect
from attacks.runtime.files import write_text
from attacks.runtime.tables import write_rows

#: What is written, the page first.
FILES = ("index.html", "index.csv", "ranking.csv", "pairs.csv")
#: The most pairs without a comparison that are listed, and the most drawings of a page.
MAX_LISTED, MAX_CHARTS = 20, 12


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
    tables = [page_table(RANKING, table, [links[row.run.name] for row in table]) for table in result.tables]
    lines, drawings = charts(result.tables), []
    if lines:
        from attacks.report.figures import encoder_curve  # here: it imports matplotlib

        drawings = [(chart, encoder_curve(chart, f"encoders-{i}")) for i, chart in enumerate(lines[:MAX_CHARTS])]
    text = template.render(
        runs=page_table(RUNS, result.runs, [*links.values()], GROUPS),
        ranking=[*zip((table[0] for table in result.tables), tables, strict=True)],
        drawings=drawings,
        more=len(lines) - len(drawings),
        result=result,
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

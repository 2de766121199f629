"""Runs compared: what `viewproof compare` and a notebook show and write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attacks.report.compare import Judged, Pair, compared, judged
from attacks.report.index import Row, Skipped, collect, own_page, write_index
from attacks.report.ranking import Board, boards, charts, flat
from attacks.runtime.tables import write_rows

#: What is written, the page first.
WRITTEN = ("index.html", "index.csv", "ranking.csv", "pairs.csv")
#: The most pairs without a comparison that are listed.
NAMED = 20


@dataclass(frozen=True)
class Compared:
    """The runs by name, in the order given; what was left out; the pairs, those that cannot be compared with the
    reason, and the tables of runs in order."""

    names: Mapping[Path, str]
    rows: Sequence[Row]
    skipped: Sequence[Skipped]
    notes: Sequence[Skipped]
    pairs: Sequence[Pair]
    refused: Sequence[str]
    tables: Sequence[Board]


def compare_runs(names: Mapping[Path, str]) -> Compared:
    """Read and compare run directories.

    Args:
        names: a name for each directory.

    Raises:
        ValueError: too many runs.
    """
    rows, skipped = collect(names)
    runs, notes = _judged(rows, names)
    pairs, others = compared(runs)
    refused = [f"{one} and {two}: {reason}" for one, two, reason in others[:NAMED]]
    refused += [f"{len(others) - NAMED} more pairs"] if len(others) > NAMED else []
    tables = boards({names[row.directory]: row for row in rows}, runs, pairs)
    return Compared(names, rows, skipped, notes, pairs, refused, tables)


def refuse_foreign(folder: Path, key: str) -> None:
    """Raise ValueError where a page or a table of the folder is not of an earlier comparison: it would be lost."""
    there = [folder / name for name in WRITTEN if (folder / name).exists()]
    if there and not own_page(folder / WRITTEN[0]):
        raise ValueError(
            f"`{key}`: {there[0]} was not written by viewproof, so it is kept; name another folder by {key}"
        )


def write_comparison(result: Compared, folder: Path) -> Path:
    """Write index.html, index.csv, ranking.csv and pairs.csv into a folder. Returns the page."""
    from attacks.report.leaderboard import section  # here: it imports matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    page, tables = folder / "index.html", result.tables
    ranking = section(tables, charts(tables), result.refused, folder) if tables or result.refused else None
    write_index(page, result.rows, result.skipped, result.names, ranking)
    write_rows(folder / "ranking.csv", flat(tables))
    write_rows(folder / "pairs.csv", [pair.row() for pair in result.pairs])
    return page


def _judged(rows: Sequence[Row], names: Mapping[Path, str]) -> tuple[dict[str, Judged], list[Skipped]]:
    """The runs that can be compared with others, by name, and what is wrong with the rest."""
    comparable, notes = {}, []
    for row in rows:
        try:
            comparable[names[row.directory]] = judged(row.directory)
        except (ValueError, OSError) as error:
            notes.append(Skipped(row.directory, f"only in the table: {error}"))
    return comparable, notes

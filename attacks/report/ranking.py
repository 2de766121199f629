"""Which encoder is the most robust: tables of runs in order, groups that cannot be told apart, and curves.

A table holds runs of one protocol, threat and set of pictures. The files may come from others;
`attacks.report.compare` and `attacks.report.index` have checked every value that is used here.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attacks.evaluation.intervals import Interval
from attacks.evaluation.significance import LEVEL
from attacks.report.compare import ARM, Judged, Pair
from attacks.report.index import Row
from attacks.report.words import written

#: The most groups that have a letter, and the most that are looked at on the way to them.
MOST_GROUPS, MOST_TRIED = 26, 500


class Standing(NamedTuple):
    """A run of a table: its name, place from 1, value with the 95 % interval, and the letters of its groups; none
    where too few clusters allow no test, or where there are more groups than letters. `clean` is the value of the
    untouched pictures."""

    name: str
    row: Row
    judged: Judged
    place: int
    value: Interval
    letters: str
    clean: Interval | None


@dataclass(frozen=True)
class Board:
    """Runs of one protocol, threat and set of pictures, the most robust first. `needed` clusters are for a
    test, where there are too few."""

    measure: str
    standings: tuple[Standing, ...]
    needed: int | None

    @property
    def row(self) -> Row:
        """A run that has what all have in common."""
        return self.standings[0].row

    @property
    def subject(self) -> tuple[object, ...]:
        """Equal in tables that differ in eps alone."""
        first = self.standings[0].judged
        return (first.key, first.threat, self.measure, frozenset(first.values[("same", self.measure)]))


class Series(NamedTuple):
    """A line of a drawing: an encoder with its values over x, in the order of x, and the number of its style, the
    same in all drawings."""

    name: str
    style: int
    points: tuple[tuple[float, Interval], ...]


class Chart(NamedTuple):
    """Lines over eps (`over` is the norm) or over the width of the views (`over` is "width"), for one measure."""

    over: str
    measure: str
    title: str
    series: tuple[Series, ...]


def boards(rows: Mapping[str, Row], runs: Mapping[str, Judged], pairs: Sequence[Pair]) -> list[Board]:
    """The tables of runs by name, each with at least two. Lower success of the attack, or a higher cosine, is more
    robust. They do not depend on the order of the runs, apart from equal values."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, run in runs.items():
        measure = run.primary if ("same", run.primary) in run.values else "cosine"
        if measure in rows[name].arms[ARM] and ("same", measure) in run.values:
            pictures = frozenset(run.values[("same", measure)])
            groups.setdefault((run.key, run.threat, run.eps, measure, pictures), []).append(name)
    tables = [_board(str(key[3]), names, rows, runs, pairs) for key, names in groups.items() if len(names) > 1]
    return sorted(tables, key=lambda table: (norm(table.row), table.standings[0].judged.eps or 0))


def _board(
    measure: str, names: list[str], rows: Mapping[str, Row], runs: Mapping[str, Judged], pairs: Sequence[Pair]
) -> Board:
    sign = 1 if measure == "success" else -1
    names = sorted(names, key=lambda name: sign * rows[name].arms[ARM][measure].mean)
    some = set(names)
    tests = [
        pair for pair in pairs if (pair.bank, pair.measure) == ("same", measure) and {pair.first, pair.second} <= some
    ]
    few = max((pair.needed or 0 for pair in tests), default=0)
    apart = {
        frozenset((pair.first, pair.second)) for pair in tests if pair.p_holm is not None and pair.p_holm < LEVEL
    }
    marks = {} if few else letters(names, apart)
    standings = []
    for place, name in enumerate(names, 1):
        value = rows[name].arms[ARM][measure]
        clean = rows[name].arms.get("clean", {}).get(measure)
        standings.append(Standing(name, rows[name], runs[name], place, value, marks.get(name, ""), clean))
    return Board(measure, tuple(standings), few or None)


def letters(names: Sequence[str], apart: Collection[frozenset[str]]) -> dict[str, str]:
    """The letters of each name: two share one exactly if they are not `apart` (insert and absorb, Piepho 2004, An
    Algorithm for a Letter-Based Representation of All-Pairwise Comparisons). Empty where groups are too many."""
    groups: list[frozenset[str]] = [frozenset(names)]
    for first, second in itertools.combinations(names, 2):
        if frozenset((first, second)) not in apart:
            continue
        split = [part for group in groups for part in _parts(group, first, second)]
        groups = [each for each in dict.fromkeys(split) if not any(each < other for other in split)]
        if len(groups) > MOST_TRIED:
            return {}
    if len(groups) > MOST_GROUPS:
        return {}
    order = {name: i for i, name in enumerate(names)}
    groups.sort(key=lambda group: sorted(order[name] for name in group))
    return {name: "".join(chr(ord("a") + i) for i, group in enumerate(groups) if name in group) for name in names}


def _parts(group: frozenset[str], first: str, second: str) -> list[frozenset[str]]:
    return [group - {first}, group - {second}] if {first, second} <= group else [group]


def charts(tables: Sequence[Board]) -> list[Chart]:
    """Values over eps, of tables that differ in eps alone, and over the width of the views, of each table with wider
    ones: a line for each encoder."""
    families: dict[tuple[object, ...], list[Standing]] = {}
    for table in tables:
        families.setdefault(table.subject, []).extend(table.standings)
    every = dict.fromkeys(each.row.subject for table in tables for each in table.standings)
    styles = {subject: i for i, subject in enumerate(every)}
    result = []
    for (*_, measure, _), family in families.items():
        points = [Point(each, each.judged.eps, each.value) for each in family if each.judged.eps is not None]
        if len({point.x for point in points}) > 1:
            row = family[0].row
            result.append(
                Chart(norm(row), str(measure), f"over eps, views {row.transforms}", _series(points, styles))
            )
    for table in tables:
        points = []
        for each in table.standings:
            wide = each.row.wide.get(ARM, {}).get(table.measure)
            if wide is not None and each.row.widened is not None:
                points += [Point(each, 1.0, each.value), Point(each, each.row.widened, wide)]
        if points:
            title = f"over the width of the views, {table.row.threat}"
            result.append(Chart("width", table.measure, title, _series(points, styles)))
    return result


class Point(NamedTuple):
    """A value of a run at a place of a chart."""

    standing: Standing
    x: float
    value: Interval


def norm(row: Row) -> str:
    """The norm of a run's threat, or "patch"."""
    return row.threat.replace(",", " ").split()[0] if row.threat else ""


def _series(points: Sequence[Point], styles: Mapping[str, int]) -> tuple[Series, ...]:
    """A line for each encoder; where two have one label, with the name of a run."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point.standing.row.subject, []).append(point)
    labels = [line[0].standing.row.encoder for line in lines.values()]
    result = []
    for label, (subject, line) in zip(labels, lines.items(), strict=True):
        name = f"{label}, {line[0].standing.name}" if labels.count(label) > 1 else label
        result.append(Series(name, styles[subject], tuple(sorted({point.x: point.value for point in line}.items()))))
    return tuple(result)


def flat(tables: Sequence[Board]) -> list[dict[str, object]]:
    """The rows of ranking.csv."""
    return [
        {"threat": table.row.threat, "views": table.row.transforms, "measure": table.measure, "place": each.place}
        | {"run": each.name, "encoder": each.row.encoder}
        | {"mean": each.value.mean, "low": each.value.low, "high": each.value.high, "kind": each.value.kind}
        | {"group": each.letters or None}
        for table in tables
        for each in table.standings
    ]


def ranked(tables: Sequence[Board]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of all tables, the most robust run of each first, in words."""
    head = ["threat", "views", "place", "run", "encoder", "measure", "eot", "group", "clean"]
    lines = []
    for table in tables:
        few = f"too few clusters: {table.needed} needed" if table.needed else ""
        for each in table.standings:
            line = [
                table.row.threat,
                table.row.transforms,
                str(each.place),
                each.name,
                each.row.encoder,
                table.measure,
            ]
            lines.append(
                [
                    *line,
                    written(each.value._asdict()),
                    each.letters or few,
                    "" if each.clean is None else written(each.clean._asdict()),
                ]
            )
    return head, lines

"""Which encoder is the most robust: tables of runs in order, groups that cannot be told apart, and curves. A table
holds runs of one protocol, threat and set of pictures, whose values `runs` and `pairs` have checked."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from attacks.evaluation.intervals import Interval
from attacks.evaluation.significance import LEVEL
from attacks.report.columns import Chart, Column, Series
from attacks.report.pairs import RunPair, RunScores
from attacks.report.runs import ARM, RunSummary
from attacks.report.words import ARMS, p_value

#: The most groups that have a letter, and the most that are looked at on the way to them.
MAX_GROUPS, MAX_TRIALS = 26, 500


class Standing(NamedTuple):
    """A run of a table: its place from 1, and the letters of its groups, or the clusters that a test needs."""

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

    @property
    def family(self) -> tuple[object, ...]:
        """Equal in tables that differ in eps alone."""
        return self.scores.attack, self.measure, frozenset(self.scores.values[("same", self.measure)])


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
            groups.setdefault((*row.family, of_run.eps), []).append(row)
    tables = [_table(group, pairs) for group in groups.values() if len(group) > 1]
    return sorted(tables, key=lambda table: (norm(table[0]), table[0].scores.eps or 0))


def _table(rows: Sequence[Standing], pairs: Sequence[RunPair]) -> list[Standing]:
    measure = rows[0].measure
    rows = sorted(rows, key=lambda row: row.value.mean, reverse=measure != "success")
    names = [row.run.name for row in rows]
    tests = [pair for pair in pairs if (pair.bank, pair.measure) == ("same", measure)]
    tests = [pair for pair in tests if pair.first in names and pair.second in names]
    fewest = max((pair.clusters_needed or 0 for pair in tests), default=0) or None
    different = [pair for pair in tests if pair.p_holm is not None and pair.p_holm < LEVEL]
    differing = {frozenset((pair.first, pair.second)) for pair in different}
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


#: A run of a table with its place on the x axis, and the value there.
Point = tuple[Standing, float, Interval]


def charts(tables: Sequence[Sequence[Standing]]) -> list[Chart]:
    """Lines of encoders over eps, of tables that differ in eps alone, and of each table over the width of views."""
    families: dict[tuple[object, ...], list[Standing]] = {}
    for table in tables:
        families.setdefault(table[0].family, []).extend(table)
    subjects = dict.fromkeys(standing.run.subject for table in tables for standing in table)
    styles = {subject: i for i, subject in enumerate(subjects)}
    result = []
    for family in families.values():
        points: list[Point] = [(row, row.scores.eps, row.value) for row in family if row.scores.eps is not None]
        if len({x for _, x, _ in points}) > 1:
            title = f"over eps, views {family[0].run.values['transforms']}"
            result.append(Chart(norm(family[0]), family[0].measure, title, _series(points, styles)))
    for table in tables:
        points = []
        for row in table:
            wide = row.run.values[f"wide_{ARM}_{row.measure}"]
            if wide is not None and row.run.widening is not None:
                points += [(row, 1.0, row.value), (row, row.run.widening, wide)]
        if points:
            title = f"over the width of the views, {table[0].run.values['threat']}"
            result.append(Chart("width", table[0].measure, title, _series(points, styles)))
    return result


def norm(standing: Standing) -> str:
    """The norm of the threat, or "patch"."""
    return "".join(standing.run.values["threat"].replace(",", " ").split()[:1])


def _series(points: Sequence[Point], styles: Mapping[str, int]) -> tuple[Series, ...]:
    """A line for each encoder; where two have one label, with the name of a run."""
    lines: dict[str, dict[float, Interval]] = {}
    runs: dict[str, RunSummary] = {}
    for row, x, value in points:
        runs.setdefault(row.run.subject, row.run)
        lines.setdefault(row.run.subject, {})[x] = value
    labels = [run.values["encoder"] for run in runs.values()]
    result = []
    for key, run in runs.items():
        label = run.values["encoder"]
        name = f"{label}, {run.name}" if labels.count(label) > 1 else label
        result.append(Series(name, styles[key], tuple(sorted(lines[key].items()))))
    return tuple(result)

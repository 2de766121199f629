"""Tables of several runs: one list of columns makes the CSV file and the tables of terminal and page."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

from attacks.inference.bounded import Interval
from attacks.report.words import interval_text

Cell = str | int | float | Interval | None


class Column(NamedTuple):
    """The value of a row, and its headings, "" where it is not shown; an interval is four columns of the CSV file."""

    value: Callable[[Any], Cell]
    csv: str = ""
    terminal: str = ""
    page: str = ""
    group: str = ""
    kind: Literal["text", "number", "interval"] = "text"


def csv_rows(columns: Sequence[Column], rows: Sequence[Any]) -> list[dict[str, object]]:
    """Rows for `write_rows`, all with the same keys."""
    result: list[dict[str, object]] = [{} for _ in rows]
    for column in (column for column in columns if column.csv):
        prefix = "" if column.csv == "mean" else f"{column.csv}_"
        for cells, value in zip(result, map(column.value, rows), strict=True):
            cells[column.csv] = value.mean if isinstance(value, Interval) else value
            if column.kind == "interval":
                ends = value[1:] if isinstance(value, Interval) else [None] * 3
                cells |= zip((f"{prefix}low", f"{prefix}high", f"{prefix}kind"), ends, strict=True)
    return result


def text_rows(columns: Sequence[Column], rows: Sequence[Any]) -> list[list[str]]:
    """The heading and the rows in words. Columns without a value are left out."""
    visible = _with_values([column for column in columns if column.terminal], rows)
    lines = [[in_words(column.value(row)) for column in visible] for row in rows]
    return [[column.terminal for column in visible], *lines]


def page_table(
    columns: Sequence[Column], rows: Sequence[Any], links: Sequence[str | None], groups: Sequence[str] = ("",)
) -> dict[str, Any]:
    """The `columns` of a page with a value, in the order of `groups`, their `spans`, and the `rows` with links."""
    visible = _with_values([column for column in columns if column.page], rows)
    visible.sort(key=lambda column: groups.index(column.group))
    spans = [(group, len([*members])) for group, members in groupby(visible, key=lambda column: column.group)]
    values = [[column.value(row) for column in visible] for row in rows]
    return {"columns": visible, "spans": spans if len(groups) > 1 else [], "rows": [*zip(links, values, strict=True)]}


def in_words(value: Cell) -> str:
    """A cell for a reader: an interval with its ends, a number without decimals, "" for a missing value."""
    if isinstance(value, Interval):
        return interval_text(value._asdict())
    return "" if value is None else f"{value:.0f}" if isinstance(value, float) else str(value)


def _with_values(columns: Sequence[Column], rows: Sequence[Any]) -> list[Column]:
    return [column for column in columns if any(column.value(row) not in (None, "") for row in rows)]

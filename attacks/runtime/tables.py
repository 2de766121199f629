"""Tables as CSV files."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from attacks.runtime.files import write_text


def write_rows(path: str | Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows under a header of their keys. Floats read back bit for bit, None is an empty cell, text `literal`.
    Raises ValueError where a row has other keys than the first."""
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if list(row) != names:
            raise ValueError(f"`rows` must have the same keys in the same order, {names}; got {list(row)}")
        writer.writerow({key: cell(value) for key, value in row.items()})
    write_text(Path(path), text.getvalue())


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of such a file, as text. Raises ValueError for two columns of one name or a row of another length."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = [*by_column(csv.DictReader(file))]
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("a row has more or fewer cells than the header")
    return [{key: unescaped_text(value) for key, value in row.items()} for row in rows]


def by_column(table: "csv.DictReader[str]") -> "csv.DictReader[str]":
    """The same table. Raises ValueError where two of its columns have one name: the first one would be lost."""
    names = list(table.fieldnames or [])
    if repeats := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two columns of one name, {repeats[0]!r}")
    return table


def literal(text: str) -> str:
    """A text as a cell that no spreadsheet evaluates: one such as =HYPERLINK(...) gets a leading `'`."""
    return f"'{text}" if text.startswith(FORMULAS) else text


def unescaped_text(text: str) -> str:
    """The inverse of `literal`."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULAS) else text


#: First characters of a formula in a spreadsheet, and the mark itself.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")


def cell(value: object) -> object:
    """A value as `write_rows` writes it."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return literal(value.replace("\r", " "))  # Python's csv does not quote it, and would read two rows
    return "" if value is None else int(value) if isinstance(value, bool) else value

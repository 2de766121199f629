"""Rows to a CSV file and back: what every number of a table is computed from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from attacks.runtime.files import write_text


def write_rows(path: str | Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows of equal keys, the first line their names. Numbers are written so that they read back bit for bit,
    None as nothing, and a text that a spreadsheet would compute gets a `'` before it (see `literal`). Raises
    ValueError where a row has other keys than the first."""
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if list(row) != names:
            raise ValueError(f"`rows` must have the same keys in the same order, {names}; got {list(row)}")
        writer.writerow({key: _said(value) for key, value in row.items()})
    write_text(Path(path), text.getvalue())


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of such a file, every value as the text that stands there."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return [{key: value and meant(value) for key, value in row.items()} for row in csv.DictReader(file)]


def literal(text: str) -> str:
    """A text as a cell: the name of a stranger's file, such as =HYPERLINK(...), must not become a formula where the
    table is opened. `meant` takes the mark away again."""
    return f"'{text}" if text.startswith(FORMULAS) else text


def meant(cell: str) -> str:
    """What `literal` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULAS) else cell


#: What a spreadsheet takes for the beginning of a formula, and the mark itself.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "'")


def _said(value: object) -> object:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return literal(value.replace("\r", " "))  # Python's csv would not quote it, and two rows come back
    return "" if value is None else int(value) if isinstance(value, bool) else value

"""Rows to a CSV file and back: what every number of a table is computed from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from attacks.files import write_text


def write_rows(path: str | Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows of equal keys, the first line their names. Numbers are written so that they read back bit for bit,
    None as nothing. Raises ValueError where a row has other keys than the first."""
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
        return list(csv.DictReader(file))


def _said(value: object) -> object:
    if isinstance(value, float):
        return repr(value)
    return "" if value is None else int(value) if isinstance(value, bool) else value

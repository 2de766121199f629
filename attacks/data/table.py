"""Tables of pictures: a header, and a row for each picture with its columns. The one reader of all tables."""

import csv
import difflib
import io
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attacks.data.split import WORDS
from attacks.runtime.decoding import printable_name
from attacks.runtime.extras import extra
from attacks.runtime.untrusted import short_path

#: The most characters of a path.
LONGEST = 4096
CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
COLUMNS = ("path", "identity", "cluster", "weight", "split", "target", "mask", "eps", *CORNERS)
#: A column that is so like one of `COLUMNS` is a typing error; `height`, which pictures have, is none of `weight`.
LIKENESS, NO_ERRORS = 0.8, ("height",)
TABLES = (".csv", ".parquet")
#: The value of a key that each row of a table answers by its own column: `objective.target`, `perturbation.mask`,
#: `perturbation.eps`.
TABLE = "table"


@dataclass(frozen=True)
class Entry:
    """One picture file. `name` is unique in its listing and shown in reports; `label` is the person or thing on it,
    or None if unknown; `where` names the line of the file that lists it; `cluster` names pictures that count as one
    (None: the picture alone); `split` is fit or judge (see `attacks.data.split`), or None; `weight` is the share of
    the traffic, in any unit, or None; `cells` are those of its row that are not empty, by column."""

    path: Path
    name: str
    label: str | None = None
    where: str = ""
    cluster: str | None = None
    split: str | None = None
    weight: float | None = None
    cells: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()

    def file(self, column: str) -> Path:
        """The file that a cell names, relative to its table. Raises FileNotFoundError with the line."""
        path = beside(self.folder, self.cells[column])
        if not path.is_file():
            raise FileNotFoundError(f"{self.where}: `{column}`: `{short_path(str(path))}` does not exist")
        return path


def column_cells(entries: Sequence[Entry], column: str, key: str) -> list[str]:
    """A column of the table that the attacked pictures come from. Raises ValueError for an empty cell."""
    if not any(column in entry.cells for entry in entries):
        raise ValueError(f"`{key}={TABLE}` needs a table in data.path, with the column `{column}`")
    for entry in entries:
        if column not in entry.cells:
            raise ValueError(f"{entry.where}: the cell `{column}` is empty, and {key}={TABLE} needs one in every row")
    return [entry.cells[column] for entry in entries]


def read_table(path: Path) -> tuple[list[Entry], list[str]]:
    """The rows of a table, whose names and paths may repeat, and a note on columns without a meaning.

    The header has the column `path`. Optional are `identity` (the label), `cluster` (rows with the same one count as
    one picture in every interval), `weight` (a number above 0), `split` (fit or judge), `target` (a picture, or a
    class), `mask` (a picture), `eps` (a radius) and the corners `x1` to `y4` of a place (see `attacks.data.scenes`).
    A cell may be empty, where every row need not have one. A .csv is UTF-8, with commas; a .parquet needs the extra
    `parquet`. Files in it are relative to its folder. Raises ValueError, with the line, for a malformed file, a row
    without `path`, or a column that is there twice or is like one of `COLUMNS`."""
    entries, notes, header = list[Entry](), list[str](), None
    for number, cells in _parquet_rows(path) if path.suffix.lower() == ".parquet" else _csv_rows(path):
        if not any(cells):
            continue
        if header is None:
            header, notes = cells, _check_header(f"`{path}` line {number}", cells)
        elif len(cells) != len(header):
            rule = f"{len(cells)} cells under a header of {len(header)}; quote a path with a comma"
            raise ValueError(f"`{path}` line {number}: {rule}")
        else:
            row_cells = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            entries.append(make_entry(path, number, row_cells))
    if not entries:
        raise ValueError(f"`{path}` names no picture")
    return entries, notes


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that is not blank, with its number."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise ValueError(f"`{path}` line {reader.line_num}: {error}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The same, as of a .csv with these rows. Of columns without a meaning there is only the name."""
    parquet = extra("pyarrow.parquet")
    try:
        names = parquet.read_schema(path).names
        rows = parquet.read_table(path, columns=[name for name in names if name in COLUMNS]).to_pylist()
    except (ValueError, OSError) as error:
        raise ValueError(f"`{path}` is no Parquet file that can be read: {' '.join(str(error).split())}") from None
    yield 1, names
    for number, row in enumerate(rows, 2):
        yield number, [_text(row.get(name)).strip() for name in names]


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) and value == value else ""  # NaN is empty


def _check_header(location: str, cells: list[str]) -> list[str]:
    if "path" not in cells:
        rule = f"must have the column `path`, and may have {', '.join(COLUMNS[1:])}, separated by commas"
        raise ValueError(f"{location}: the header {rule}; got {short_path(', '.join(cells))}")
    others = [name for name in cells if name not in COLUMNS]
    for name in cells:
        near = difflib.get_close_matches(name.lower(), (*COLUMNS, *NO_ERRORS), 1, LIKENESS)
        if name in others and near and near[0] in COLUMNS and near[0] not in cells:
            raise ValueError(f"{location}: unknown column `{short_path(name)}`; did you mean {near[0]}?")
        if name in COLUMNS and cells.count(name) > 1:
            raise ValueError(f"{location}: the column `{name}` is there twice; leave one out")
    names = short_path(", ".join(map(printable_name, others)))
    return [f"{location}: columns without a meaning, not used: {names}"] if others else []


def make_entry(file: Path, number: int, cells: Mapping[str, str]) -> Entry:
    """The picture on line `number` of a list or table, by the cells that are not empty."""
    location = f"{file.name} line {number}"
    if "path" not in cells:
        raise ValueError(f"`{file}` line {number}: the cell `path` is empty")
    path = beside(file.parent, cells["path"])
    word = cells.get("split")
    if word not in (None, *WORDS):
        raise ValueError(f"{location}: `split` must be {' or '.join(WORDS)}; got {short_path(str(word))!r}")
    weight = read_number(location, "weight", cells["weight"], 0) if "weight" in cells else None
    label, cluster = cells.get("identity"), cells.get("cluster")
    return Entry(path, path.name, label, location, cluster, word, weight, cells, file.parent)


def beside(folder: Path, name: str) -> Path:
    """A path in a list or table, relative to its folder."""
    return Path(os.path.abspath(folder / name))  # noqa: PTH100  (resolve would follow links: two names, one file)


def read_number(location: str, name: str, text: str, above: float = -math.inf) -> float:
    """The finite number in a cell of a table. Raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not above < number < math.inf:
        rule = f"must be a number{f' above {above:g} (give one to every picture)' if math.isfinite(above) else ''}"
        raise ValueError(f"{location}: `{name}` {rule}; got {short_path(repr(text))}")
    return number


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises ValueError, with the line, for other bytes or a too long line."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_count = raw.count(b"\n", 0, error.start)
        raise ValueError(f"`{path}` line {line_count + 1}: this is not UTF-8 text; save it as UTF-8") from None
    for number, line in enumerate(lines_of(text), 1):
        if "\0" in line or len(line) > LONGEST:
            problem = "a zero byte is no text" if "\0" in line else f"a line of {len(line)} characters is no path"
            raise ValueError(f"`{path}` line {number}: {problem}; is it a file of paths?")
    return text


def lines_of(text: str) -> list[str]:
    """Lines as editors count them; `str.splitlines` also breaks at characters that a file name may contain."""
    return re.split("\r\n|\n|\r", text)


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write a table of the columns that any row has, `path` first."""
    columns = list(dict.fromkeys(["path", *(name for row in rows for name in row)]))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

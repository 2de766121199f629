"""From a path to picture files: a file, a folder, a list of paths, or a table of paths and labels."""

import csv
import io
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attacks.data.images import SUFFIXES
from attacks.data.split import WORDS
from attacks.runtime.decoding import printable_name
from attacks.runtime.extras import package_folder
from attacks.runtime.untrusted import short_path

#: The most characters of a path.
LONGEST = 4096
#: The path that stands for the labelled ImageNet photographs in Foolbox's wheel.
IMAGENET20 = "imagenet20"
_LABELLED = re.compile(r"imagenet_\d+_(\d+)\.jpg")


@dataclass(frozen=True)
class Entry:
    """One picture file. `name` is unique in its listing and shown in reports; `label` is the person or thing on it,
    or None if unknown; `where` names the line of the file that lists it; `cluster` names pictures that count as one
    (None: the picture alone); `split` is fit or judge (see `attacks.data.split`), or None; `weight` is the share of
    the traffic, in any unit, or None."""

    path: Path
    name: str
    label: str | None = None
    where: str = ""
    cluster: str | None = None
    split: str | None = None
    weight: float | None = None


def list_entries(path: str | Path, column: str | None = None) -> tuple[list[Entry], list[str]]:
    """The pictures of a path, and notes on what was ignored.

    - A folder: the pictures in it, sorted by name. If it has none, but subfolders with pictures, these are read, one
      level deep, and the name of each subfolder is the label of its pictures.
    - `.txt`: one path a line; blank lines and lines that begin with # are skipped.
    - `.csv`: a table with a header, the column `path` and optionally `identity` (the label), `cluster` (rows with
      the same one count as one picture in every interval), both of which may be empty, and `weight` (a number above
      0). `column` names one more, which says fit or judge of each. Other columns are ignored.
    - `imagenet20`: the photographs in Foolbox's wheel, where it is installed; the label is ImageNet's class.
    - Any other file: one picture.

    Text is UTF-8; paths in it are relative to its file. The pictures are not opened here.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: a folder without pictures; a list or table that is malformed or names a picture twice.
    """
    is_packaged, path = str(path) == IMAGENET20, Path(path)
    if column is not None and path.suffix.lower() != ".csv":
        raise ValueError(f"`data.split` names a column of a table, a .csv; got data.path={short_path(str(path))}")
    if is_packaged:
        return _imagenet20(), []
    try:
        exists = path.exists()
    except OSError:  # the name is too long
        exists = False
    if not exists:
        raise FileNotFoundError(f"`{short_path(str(path))}` does not exist (paths are relative to {Path.cwd()})")
    if path.is_dir():
        return _folder(path)
    readers: dict[str, Callable[[Path], Iterator[Entry]]]
    readers = {".csv": partial(_table, column=column), ".txt": _lines}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        return [Entry(path, printable_name(path.name))], []
    entries = list(reader(path))
    if not entries:
        raise ValueError(f"`{path}` names no picture")
    return name_entries(entries), []


def _imagenet20() -> list[Entry]:
    files = sorted((package_folder("foolbox") / "data").iterdir())
    entries = [Entry(file, file.name, match[1]) for file in files if (match := _LABELLED.fullmatch(file.name))]
    if len(entries) != 20:
        raise ValueError(f"`{IMAGENET20}` must be 20 photographs; got {len(entries)}: install foolbox 3.3.4")
    return entries


def _folder(path: Path) -> tuple[list[Entry], list[str]]:
    files = _pictures(path)
    folders = sorted(item for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))
    if files:
        note = f"{path}: it contains pictures itself, so its {len(folders)} folders are ignored"
        return [Entry(file, printable_name(file.name)) for file in files], [note] * bool(folders)
    nested = [
        Entry(file, printable_name(f"{folder.name}/{file.name}"), printable_name(folder.name))
        for folder in folders
        for file in _pictures(folder)
    ]
    if not nested:
        raise ValueError(f"`{path}` holds no picture ({', '.join(SUFFIXES)}), and no folder with one")
    return nested, []


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.is_dir())


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises ValueError, with the line, for other bytes or a too long line."""
    if not path.is_file():  # reading a pipe would block
        raise ValueError(f"`{printable_name(str(path))}` is not a plain file: it should be a text of paths")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_count = raw.count(b"\n", 0, error.start)
        raise ValueError(f"`{path}` line {line_count + 1}: this is not UTF-8 text; save it as UTF-8") from None
    for number, line in enumerate(_split(text), 1):
        if "\0" in line:
            raise ValueError(f"`{path}` line {number}: a zero byte is no text; is it a file of paths?")
        if len(line) > LONGEST:
            raise ValueError(
                f"`{path}` line {number}: a line of {len(line)} characters is no path; is it a file of paths?"
            )
    return text


def _split(text: str) -> list[str]:
    """Lines as editors count them; `str.splitlines` also breaks at characters that a file name may contain."""
    return re.split("\r\n|\n|\r", text)


def _lines(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(_split(read_text(path)), 1):
        name = line.strip()
        if name and not name.startswith("#"):
            yield make_entry(path, number, name)


def _table(path: Path, column: str | None) -> Iterator[Entry]:
    for number, cells in table_rows(path, _check_header):
        yield make_entry(path, number, cells["path"], cells, column)


def table_rows(path: Path, check_header: Callable[[str, list[str]], None]) -> Iterator[tuple[int, dict[str, str]]]:
    """The line number of each row of a CSV file, and its cells that are not empty, by column.

    Args:
        check_header: called with the location of the header, for messages, and its cells; raises ValueError.

    Raises:
        ValueError: with the line: a malformed file, or a row without `path`.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            location, cells = f"`{path}` line {reader.line_num}", [cell.strip() for cell in row]
            if not any(cells):
                continue
            if header is None:
                check_header(location, cells)
                header = cells
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"{location}: {len(cells)} cells under a header of {len(header)}; quote a path with a comma"
                )
            row_cells = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            if "path" not in row_cells:
                raise ValueError(f"{location}: the cell `path` is empty")
            yield reader.line_num, row_cells
    except csv.Error as error:
        raise ValueError(f"`{path}` line {reader.line_num}: {error}") from None


def _check_header(location: str, cells: list[str]) -> None:
    for name, minimum in (("path", 1), ("identity", 0), ("cluster", 0), ("weight", 0)):
        if not minimum <= cells.count(name) <= 1:
            raise ValueError(
                f"{location}: the header must have one column `path`, and at most one `identity`, one `cluster` and "
                f"one `weight`, separated by commas; got {short_path(', '.join(cells))}"
            )


def make_entry(
    file: Path, number: int, name: str, cells: Mapping[str, Any] = MappingProxyType({}), column: str | None = None
) -> Entry:
    """The picture `name` on line `number` of a list or table; `cells` may hold its `identity`, `cluster` and
    `weight`, and must hold fit or judge in the `column`, if there is one."""
    path = Path(os.path.abspath(file.parent / name))  # noqa: PTH100  (resolve would follow links: two names, one file)
    label, cluster = cells.get("identity") or None, cells.get("cluster") or None
    word = None if column is None else cells.get(column, "")
    if word not in (None, *WORDS):
        raise ValueError(
            f"`{file}` line {number}: `{column}`, the column of data.split, must be {' or '.join(WORDS)}; got "
            f"{short_path(str(word))!r}"
        )
    weight = read_number(f"`{file}` line {number}", "weight", cells["weight"], 0) if "weight" in cells else None
    return Entry(path, path.name, label, f"{file.name} line {number}", cluster, word, weight)


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


def name_entries(entries: list[Entry]) -> list[Entry]:
    """The same with unique names: the shortest end of each path that is unique. Raises ValueError for equal paths."""
    by_path: dict[Path, Entry] = {}
    for entry in entries:
        first = by_path.setdefault(entry.path, entry)
        if first is not entry:
            raise ValueError(f"{entry.where} names `{short_path(str(entry.path))}` again, after {first.where}")
    names, depth = [""] * len(entries), 1
    ambiguous = list(range(len(entries)))
    while ambiguous:
        for i in ambiguous:
            names[i] = "/".join(entries[i].path.parts[-depth:])
        counts = Counter(names)
        ambiguous = [i for i in ambiguous if counts[names[i]] > 1]
        depth += 1
    return [replace(entry, name=printable_name(name)) for entry, name in zip(entries, names, strict=True)]

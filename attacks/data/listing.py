"""Which pictures are meant: a picture file, a folder, a list of paths, or a table of paths and identities."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attacks.data.images import SUFFIXES, shown
from attacks.runtime.folders import short

#: A longer line is no path of any system.
LONGEST = 4096


@dataclass(frozen=True)
class Entry:
    """One picture file. `name` is what reports show, unique in its listing; `identity` is whom or what it shows, the
    same for all its pictures, or None where nothing is said; `where` is the line that names it, in words."""

    path: Path
    name: str
    identity: str | None = None
    where: str = ""


def listed(path: str | Path) -> tuple[list[Entry], list[str]]:
    """The pictures that a path stands for, and notes on what was passed over.

    A folder stands for the pictures in it, in the order of names. If it holds none, but folders with pictures, these
    are read, one level deep, and each folder's name is its pictures' identity. `.txt` is a list, one path a line;
    blank lines and those that begin with # are skipped. `.csv` is a table with a header: the column `path`, perhaps
    `identity` (an empty cell says nothing), others are ignored. Their paths are relative to the file itself, its text
    UTF-8. Any other file is one picture.

    Whether the files are there and whole is seen when they are read.

    Raises:
        FileNotFoundError: nothing there, by this name.
        ValueError: a folder without pictures; a file of paths that cannot be understood, or that names a picture
            twice, with the line.
    """
    path = Path(path)
    try:
        there = path.exists()
    except OSError:  # longer than any name may be
        there = False
    if not there:
        raise FileNotFoundError(f"`{short(str(path))}` does not exist (paths are relative to {Path.cwd()})")
    if path.is_dir():
        return _folder(path)
    readers = {".csv": _table, ".txt": _lines}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        return [Entry(path, shown(path.name))], []
    found = [entry_of(path, *row) for row in reader(path, text_of(path))]
    if not found:
        raise ValueError(f"`{path}` names no picture")
    return named(found), []


def _folder(path: Path) -> tuple[list[Entry], list[str]]:
    found = _pictures(path)
    folders = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    if found:
        note = f"{path}: it holds pictures itself, so its {len(folders)} folders are not looked into"
        return [Entry(file, shown(file.name)) for file in found], [note] * bool(folders)
    inside = [
        Entry(file, shown(f"{folder.name}/{file.name}"), shown(folder.name))
        for folder in folders
        for file in _pictures(folder)
    ]
    if not inside:
        raise ValueError(f"`{path}` holds no picture ({', '.join(SUFFIXES)}), and no folder with one")
    return inside, []


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.is_dir())


def text_of(path: Path, longest: float = LONGEST) -> str:
    """The text of a UTF-8 file. Raises ValueError, with the line, where it is none, or a line has more letters."""
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"`{shown(str(path))}` is no plain file: it should be a text of paths")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw.count(b"\n", 0, error.start)
        raise ValueError(f"`{path}` line {before + 1}: this is not UTF-8 text; save it as UTF-8") from None
    for number, line in enumerate(_split(text), 1):
        if "\0" in line:
            raise ValueError(f"`{path}` line {number}: a zero byte is no text; is it a file of paths?")
        if len(line) > longest:
            raise ValueError(
                f"`{path}` line {number}: a line of {len(line)} letters is no path; is it a file of paths?"
            )
    return text


def _split(text: str) -> list[str]:
    """Lines as editors count them; `str.splitlines` breaks at letters that a file name may hold."""
    return re.split("\r\n|\n|\r", text)


Row = tuple[int, str, str | None]


def _lines(_: Path, text: str) -> Iterator[Row]:
    """Line number, path and identity of each line of a list."""
    for number, line in enumerate(_split(text), 1):
        wanted = line.strip()
        if wanted and not wanted.startswith("#"):
            yield number, wanted, None


def _table(path: Path, text: str) -> Iterator[Row]:
    """Line number, path and identity of each row of a table."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            where, cells = f"`{path}` line {reader.line_num}", [cell.strip() for cell in row]
            if not any(cells):
                continue
            if header is None:
                header = _header(where, cells)
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"{where}: {len(cells)} cells under a header of {len(header)}; put a path that holds a comma in "
                    "quotes"
                )
            wanted = cells[header.index("path")]
            if not wanted:
                raise ValueError(f"{where}: the cell `path` is empty")
            yield reader.line_num, wanted, (cells[header.index("identity")] or None) if "identity" in header else None
    except csv.Error as error:
        raise ValueError(f"`{path}` line {reader.line_num}: {error}") from None


def _header(where: str, cells: list[str]) -> list[str]:
    for name, least in (("path", 1), ("identity", 0)):
        if not least <= cells.count(name) <= 1:
            raise ValueError(
                f"{where}: the header must have one column `path`, and at most one `identity`, parted by commas; got "
                f"{short(', '.join(cells))}"
            )
    return cells


def entry_of(file: Path, number: int, wanted: str, identity: str | None) -> Entry:
    """The picture that a line of a file of paths names."""
    path = Path(os.path.abspath(file.parent / wanted))  # noqa: PTH100  (resolve would follow links: two names, one file)
    return Entry(path, path.name, identity, f"{file.name} line {number}")


def named(entries: list[Entry]) -> list[Entry]:
    """The same with names that tell them apart: the shortest ends of their paths that do."""
    first: dict[Path, Entry] = {}
    for entry in entries:
        twice = first.setdefault(entry.path, entry)
        if twice is not entry:
            raise ValueError(f"{entry.where} names `{short(str(entry.path))}` again, after {twice.where}")
    found, depth = dict.fromkeys(range(len(entries)), ""), 1
    open_rows = list(found)
    while open_rows:
        for i in open_rows:
            found[i] = "/".join(entries[i].path.parts[-depth:])
        taken = Counter(found.values())
        open_rows = [i for i in open_rows if taken[found[i]] > 1]
        depth += 1
    return [replace(entry, name=shown(found[i])) for i, entry in enumerate(entries)]

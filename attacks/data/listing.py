"""From a path to picture files: a file, a folder, a list of paths, or a table of pictures."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from attacks.data.images import SUFFIXES
from attacks.data.table import TABLES, Entry, lines_of, make_entry, read_table, read_text
from attacks.runtime.decoding import is_film, printable_name
from attacks.runtime.extras import package_folder
from attacks.runtime.untrusted import short_path

#: The path that stands for the labelled ImageNet photographs in Foolbox's wheel.
IMAGENET20 = "imagenet20"
_LABELLED = re.compile(r"imagenet_\d+_(\d+)\.jpg")


def list_entries(path: str | Path) -> tuple[list[Entry], list[str]]:
    """The pictures of a path, and notes on what was ignored.

    - A folder: the pictures in it, sorted by name. If it has none, but subfolders with pictures, these are read, one
      level deep, and the name of each subfolder is the label of its pictures.
    - `.txt`: one path a line; blank lines and lines that begin with # are skipped.
    - `.csv` or `.parquet`: a table (see `read_table`).
    - `imagenet20`: the photographs in Foolbox's wheel, where it is installed; the label is ImageNet's class.
    - Any other file: one picture.

    Text is UTF-8; paths in it are relative to its file. The pictures are not opened here. Raises FileNotFoundError,
    or ValueError for a folder without pictures, a list or table that is malformed or names a picture twice."""
    is_packaged, path = str(path) == IMAGENET20, Path(path)
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
    if (suffix := path.suffix.lower()) not in (".txt", *TABLES):
        return [Entry(path, printable_name(path.name))], []
    if not path.is_file():  # reading a pipe would block
        rule = "it should be a text of paths, or a table"
        raise ValueError(f"`{printable_name(str(path))}` is not a plain file: {rule}")
    if suffix in TABLES:
        entries, notes = read_table(path)
        return name_entries(entries), notes
    lines = [(number, line.strip()) for number, line in enumerate(lines_of(read_text(path)), 1)]
    entries = [make_entry(path, number, {"path": name}) for number, name in lines if name and name[0] != "#"]
    if not entries:
        raise ValueError(f"`{path}` names no picture")
    return name_entries(entries), []


def list_clips(path: Path) -> dict[str, list[Path]]:
    """The clips of a film, or of a folder or its sub-folders, by name: of a film its file, of any folder its other
    pictures, which are frames, sorted by the numbers in their names. Raises as `list_entries` does."""
    clips, files = dict[str, list[Path]](), [entry.path for entry in list_entries(path)[0]]
    for file in sorted(files, key=lambda file: _by_number(str(file))):
        clip = file if is_film(file) else file.parent
        parts = clip.relative_to(path if path.is_dir() else path.parent).parts
        clips.setdefault(printable_name("-".join(parts) or path.absolute().name), []).append(file)
    return clips


def _by_number(name: str) -> list[str | int]:
    """A key that sorts names by the numbers in them: 2 before 10."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name))]


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

"""Where a person says that a patch lies in their photographs: a table (.csv), or a .json."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks.data.listing import Entry, entry_of, named, text_of
from attacks.runtime.folders import short

CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
MIDDLE = ("x", "y", "degrees")
COLUMNS = ("path", *CORNERS, *MIDDLE, "mask", "mm_per_pixel", "identity")
#: Of a photograph in a .json.
KEYS = ("quads", "middles", "mask", "mm_per_pixel", "identity")


@dataclass(frozen=True)
class Spot:
    """A place in a photograph, in pixels of it as it is displayed: 0 is its left or upper edge, its width the right
    one. It has the four corners of a quad, or a middle (x, y, degrees clockwise), or neither: then it is where the
    picture `mask` is light. `where` is the line that says so, in words."""

    where: str
    quad: tuple[tuple[float, float], ...] | None = None
    middle: tuple[float, float, float] | None = None
    mask: Path | None = None
    mm_per_pixel: float | None = None


Row = tuple[Entry, Spot]


def read_table(path: str | Path) -> list[tuple[Entry, tuple[Spot, ...]]]:
    """The photographs of a file, and the places in each, both in the order in which it names them.

    `.csv`: a header, then a line for each place: `path`, the corners `x1,y1` ... `x4,y4` (upper left, upper right,
    lower right, lower left of the texture), or its middle `x,y` and perhaps `degrees`, or a `mask`; perhaps
    `mm_per_pixel` and `identity`. `.json`: {"photo.jpg": {"quads": [[[x, y], ...], ...], "middles": [[x, y, degrees],
    ...], "mask": ..., "mm_per_pixel": ..., "identity": ...}}. Paths are relative to the file, its text UTF-8.

    Raises FileNotFoundError or ValueError in one line, with the line of the table.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`data.path`: `{short(str(path))}` is no file (paths are relative to {Path.cwd()})")
    readers = {".csv": _table, ".json": _json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"`data.path` must be a .csv or .json of scenes; got {path} (data=folder takes pictures)")
    spots: dict[Path, list[Spot]] = {}
    entries: dict[Path, Entry] = {}
    for entry, spot in reader(path):
        first = entries.setdefault(entry.path, entry)
        if None not in (first.identity, entry.identity) and first.identity != entry.identity:
            raise ValueError(
                f"{spot.where}: `{entry.name}` has two identities, {first.identity} and {entry.identity}"
            )
        entries[entry.path] = replace(first, identity=first.identity or entry.identity)
        spots.setdefault(entry.path, []).append(spot)
    if not spots:
        raise ValueError(f"`{path}` names no photograph")
    return [(entry, tuple(spots[entry.path])) for entry in named(list(entries.values()))]


def _table(path: Path) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text_of(path), newline=""), strict=True)
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
                raise ValueError(f"{where}: {len(cells)} cells under a header of {len(header)}; is a comma missing?")
            given = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
            if "path" not in given:
                raise ValueError(f"{where}: the cell `path` is empty")
            entry = entry_of(path, reader.line_num, given["path"], given.get("identity"))
            yield entry, _spot(where, path, given)
    except csv.Error as error:
        raise ValueError(f"`{path}` line {reader.line_num}: {error}") from None


def _header(where: str, cells: list[str]) -> list[str]:
    for name in cells:
        if name not in COLUMNS:
            raise ValueError(
                f"{where}: unknown column `{short(name)}`; known, parted by commas, are {', '.join(COLUMNS)}"
            )
        if cells.count(name) > 1:
            raise ValueError(f"{where}: the column `{name}` is there twice")
    if "path" not in cells:
        raise ValueError(f"{where}: the column `path` is missing; got {short(', '.join(cells))}")
    if not {"x1", "x", "mask"} & set(cells):
        raise ValueError(
            f"{where}: nothing says where the patch lies; give the columns x1 to y4, or x and y, or mask"
        )
    return cells


def _json(path: Path) -> Iterator[Row]:
    try:
        content = json.loads(text_of(path, math.inf), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"`{path}` line {error.lineno}: this is no JSON ({error.msg})") from None
    except (RecursionError, _TwiceError) as error:
        raise ValueError(f"`{path}`: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` must hold an object, photographs by their paths; got {type(content).__name__}")
    for photo, said in content.items():
        where = f"`{path}`, `{short(photo)}`"
        if not isinstance(said, dict):
            raise ValueError(f"{where}: must be an object with some of {', '.join(KEYS)}; got {short(str(said))}")
        if unknown := [key for key in said if key not in KEYS]:
            raise ValueError(f"{where}: unknown key `{short(unknown[0])}`; known are {', '.join(KEYS)}")
        for key in ("mask", "identity"):
            if not isinstance(said.get(key, ""), str):
                raise ValueError(f"{where}: `{key}` must be a text; got {short(str(said[key]))}")
        entry = replace(entry_of(path, 0, photo, said.get("identity") or None), where=path.name)
        common = {key: said[key] for key in ("mask", "mm_per_pixel") if key in said}
        for place, given in _listed(where, said):
            yield entry, _spot(place, path, common | given)


def _listed(where: str, said: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each of the quads and middles as the cells of a table."""
    quads, middles = said.get("quads", []), said.get("middles", [])
    for key, value in (("quads", quads), ("middles", middles)):
        if not isinstance(value, list):
            raise ValueError(f"{where}: `{key}` must be a list of them; got {short(str(value))}")
    for i, quad in enumerate(quads, 1):
        if not isinstance(quad, list) or [len(c) if isinstance(c, list) else 0 for c in quad] != [2] * 4:
            raise ValueError(f"{where}: quad {i} must be four corners [x, y]; got {short(str(quad))}")
        yield f"{where}, quad {i}", dict(zip(CORNERS, [value for corner in quad for value in corner], strict=True))
    for i, middle in enumerate(middles, 1):
        if not isinstance(middle, list) or len(middle) not in (2, 3):
            raise ValueError(f"{where}: middle {i} must be [x, y] or [x, y, degrees]; got {short(str(middle))}")
        yield f"{where}, middle {i}", dict(zip(MIDDLE, middle, strict=False))
    if not quads and not middles:
        yield where, {}


class _TwiceError(Exception):
    """A key that an object has twice; of two, json.loads would keep the second without a word."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"`{short(twice)}` is there twice; several places of a photograph go into its `quads`")
    return found


def _spot(where: str, path: Path, given: Mapping[str, Any]) -> Spot:
    quad, middle = _numbers(where, CORNERS, given), _numbers(where, MIDDLE[:2], given)
    mask = path.parent / given["mask"] if given.get("mask") else None
    if quad and middle:
        raise ValueError(f"{where}: it has both four corners and a middle (x, y); leave out one of the two")
    if not quad and not middle and mask is None:
        raise ValueError(f"{where}: nothing says where the patch lies; give four corners, a middle (x, y), or a mask")
    degrees = _number(where, "degrees", given.get("degrees", 0))
    if "degrees" in given and not middle:
        raise ValueError(f"{where}: `degrees` turns a place that is given by its middle (x, y), and there is none")
    scale = _number(where, "mm_per_pixel", given["mm_per_pixel"]) if "mm_per_pixel" in given else None
    if scale is not None and scale <= 0:
        raise ValueError(f"{where}: `mm_per_pixel` must be above 0; got {scale:g}")
    corners = tuple(zip(quad[::2], quad[1::2], strict=True)) if quad else None
    return Spot(where, corners, (middle[0], middle[1], degrees) if middle else None, mask, scale)


def _numbers(where: str, names: Sequence[str], given: Mapping[str, Any]) -> list[float]:
    """All of them, or none."""
    there = [name for name in names if name in given]
    if there and len(there) < len(names):
        missing = [name for name in names if name not in given]
        raise ValueError(f"{where}: it has {', '.join(there)}, but no {', '.join(missing)}")
    return [_number(where, name, given[name]) for name in there]


def _number(where: str, name: str, value: Any) -> float:
    try:
        found = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{where}: `{name}` must be a number; got {short(repr(value))}")
    return found

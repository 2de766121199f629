"""Placements of a patch in photographs, as a table (.csv) or a .json describes them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attacks.data.listing import Entry, make_entry, name_entries, read_text, table_rows
from attacks.runtime.untrusted import parse_json, short_path

CORNERS = ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")
MIDDLE = ("x", "y", "degrees")
COLUMNS = ("path", *CORNERS, *MIDDLE, "mask", "mm_per_pixel", "identity", "cluster")
#: Of a photograph in a .json.
KEYS = ("quads", "middles", "mask", "mm_per_pixel", "identity", "cluster")


@dataclass(frozen=True)
class PlacementCorners:
    """One placement in a photograph: four corners (x, y), or a middle (x, y, degrees clockwise), or neither; then it
    is the bounding box of the light part of `mask`.

    Lengths are in pixels of the photograph as displayed: 0 is its left or upper edge, its width the right one.
    `where` names the line of the file.
    """

    where: str
    quad: tuple[tuple[float, float], ...] | None = None
    middle: tuple[float, float, float] | None = None
    mask: Path | None = None
    mm_per_pixel: float | None = None


Row = tuple[Entry, PlacementCorners]


def read_table(path: str | Path, column: str | None = None) -> list[tuple[Entry, tuple[PlacementCorners, ...]]]:
    """The photographs of a file and the placements in each, in the order of the file.

    - `.csv`: a header, then a line for each placement: `path`, and the corners `x1,y1` ... `x4,y4` (upper left, upper
      right, lower right, lower left of the texture), or the middle `x,y` with an optional `degrees`, or a `mask`.
      Optional: `mm_per_pixel`, `identity` (the label), `cluster` (photographs with the same one count as one).
    - `.json`: {"photo.jpg": {"quads": [[[x, y], ...], ...], "middles": [[x, y, degrees], ...], "mask": ...,
      "mm_per_pixel": ..., "identity": ..., "cluster": ...}}.

    `column` names one more column, or key, which says fit or judge (see `attacks.data.split`).

    Text is UTF-8; paths in it are relative to its file.

    Raises FileNotFoundError or ValueError in one line, with the line of the table.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`data.path`: `{short_path(str(path))}` is no file (paths are relative to {Path.cwd()})"
        )
    reader = {".csv": _table, ".json": _json}.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"`data.path` must be a .csv or .json of scenes; got {path} (data=folder takes pictures)")
    placements: dict[Path, list[PlacementCorners]] = {}
    entries: dict[Path, Entry] = {}
    for entry, placement in reader(path, column):
        first = entries.setdefault(entry.path, entry)
        for kind, first_value, second_value in (
            ("identities", first.label, entry.label),
            ("clusters", first.cluster, entry.cluster),
            ("values of data.split", first.split, entry.split),
        ):
            if None not in (first_value, second_value) and first_value != second_value:
                raise ValueError(
                    f"{placement.where}: `{entry.name}` has two {kind}, {first_value} and {second_value}"
                )
        label, cluster = first.label or entry.label, first.cluster or entry.cluster
        entries[entry.path] = replace(first, label=label, cluster=cluster)
        placements.setdefault(entry.path, []).append(placement)
    if not placements:
        raise ValueError(f"`{path}` names no photograph")
    return [(entry, tuple(placements[entry.path])) for entry in name_entries(list(entries.values()))]


def _table(path: Path, column: str | None) -> Iterator[Row]:
    for number, cells in table_rows(path, partial(_check_header, column)):
        entry = make_entry(path, number, cells["path"], cells, column)
        yield entry, _placement(f"`{path}` line {number}", path, cells)


def _check_header(column: str | None, location: str, cells: list[str]) -> None:
    for name in cells:
        if name not in (*COLUMNS, column):
            raise ValueError(
                f"{location}: unknown column `{short_path(name)}`; known, separated by commas, are "
                f"{', '.join(COLUMNS)}"
            )
        if cells.count(name) > 1:
            raise ValueError(f"{location}: the column `{name}` is there twice")
    if "path" not in cells:
        raise ValueError(f"{location}: the column `path` is missing; got {short_path(', '.join(cells))}")
    if not {"x1", "x", "mask"} & set(cells):
        raise ValueError(
            f"{location}: nothing says where the patch lies; give the columns x1 to y4, or x and y, or mask"
        )


def _json(path: Path, column: str | None) -> Iterator[Row]:
    content = parse_json(read_text(path, math.inf), f"`{path}`")
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` must hold an object, photographs by their paths; got {type(content).__name__}")
    for photo, fields in content.items():
        location = f"`{path}`, `{short_path(photo)}`"
        if not isinstance(fields, dict):
            raise ValueError(
                f"{location}: must be an object with some of {', '.join(KEYS)}; got {short_path(str(fields))}"
            )
        if unknown_keys := [key for key in fields if key not in (*KEYS, column)]:
            raise ValueError(f"{location}: unknown key `{short_path(unknown_keys[0])}`; known are {', '.join(KEYS)}")
        for key in ("mask", "identity", "cluster"):
            if not isinstance(fields.get(key, ""), str):
                raise ValueError(f"{location}: `{key}` must be a text; got {short_path(str(fields[key]))}")
        entry = replace(make_entry(path, 0, photo, fields, column), where=path.name)
        common = {key: fields[key] for key in ("mask", "mm_per_pixel") if key in fields}
        for place, cells in _as_cells(location, fields):
            yield entry, _placement(place, path, common | cells)


def _as_cells(location: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each of the quads and middles as the cells of a table, and its location in the file, for messages."""
    quads, middles = fields.get("quads", []), fields.get("middles", [])
    for key, value in (("quads", quads), ("middles", middles)):
        if not isinstance(value, list):
            raise ValueError(f"{location}: `{key}` must be a list; got {short_path(str(value))}")
    for i, quad in enumerate(quads, 1):
        if not isinstance(quad, list) or [len(c) if isinstance(c, list) else 0 for c in quad] != [2] * 4:
            raise ValueError(f"{location}: quad {i} must be four corners [x, y]; got {short_path(str(quad))}")
        yield f"{location}, quad {i}", dict(zip(CORNERS, [value for corner in quad for value in corner], strict=True))
    for i, middle in enumerate(middles, 1):
        if not isinstance(middle, list) or len(middle) not in (2, 3):
            raise ValueError(
                f"{location}: middle {i} must be [x, y] or [x, y, degrees]; got {short_path(str(middle))}"
            )
        yield f"{location}, middle {i}", dict(zip(MIDDLE, middle, strict=False))
    if not quads and not middles:
        yield location, {}


def _placement(location: str, path: Path, cells: Mapping[str, Any]) -> PlacementCorners:
    quad, middle = _numbers(location, CORNERS, cells), _numbers(location, MIDDLE[:2], cells)
    mask = path.parent / cells["mask"] if cells.get("mask") else None
    if quad and middle:
        raise ValueError(f"{location}: it has both four corners and a middle (x, y); leave out one of the two")
    if not quad and not middle and mask is None:
        raise ValueError(
            f"{location}: nothing says where the patch lies; give four corners, a middle (x, y), or a mask"
        )
    degrees = _number(location, "degrees", cells.get("degrees", 0))
    if "degrees" in cells and not middle:
        raise ValueError(f"{location}: `degrees` turns a patch that is given by its middle (x, y), and there is none")
    scale = _number(location, "mm_per_pixel", cells["mm_per_pixel"]) if "mm_per_pixel" in cells else None
    if scale is not None and scale <= 0:
        raise ValueError(f"{location}: `mm_per_pixel` must be above 0; got {scale:g}")
    corners = tuple(zip(quad[::2], quad[1::2], strict=True)) if quad else None
    return PlacementCorners(location, corners, (middle[0], middle[1], degrees) if middle else None, mask, scale)


def _numbers(location: str, names: Sequence[str], cells: Mapping[str, Any]) -> list[float]:
    present = [name for name in names if name in cells]
    if present and len(present) < len(names):
        missing = [name for name in names if name not in cells]
        raise ValueError(f"{location}: it has {', '.join(present)}, but no {', '.join(missing)}")
    return [_number(location, name, cells[name]) for name in present]


def _number(location: str, name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{location}: `{name}` must be a number; got {short_path(repr(value))}")
    return number

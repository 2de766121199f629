"""Files, folders and names that somebody else may have made: a value has the expected type, or is None."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

#: Limits far above what a run writes: larger files are not read, longer words are cut.
MOST_BYTES, MOST_LETTERS = 64 * 2**20, 120


def text(path: Path) -> str:
    """The text of a file. Raises ValueError or OSError."""
    return contents(path).decode("utf-8")


def contents(path: Path) -> bytes:
    """The bytes of a file. Raises ValueError or OSError."""
    if not path.is_file():  # reading a pipe would block
        raise ValueError(f"there is no `{path.name}`")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"`{path.name}` is larger than {MOST_BYTES // 2**20} MiB")
    return data


def read_untrusted(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ValueError or OSError."""
    values = parse_json(contents(path), f"`{path.name}`")
    if not isinstance(values, dict):
        raise ValueError(f"`{path.name}` must hold a mapping; it holds a {type(values).__name__}")
    return values


def parse_json(text: str | bytes, source: str) -> Any:
    """The content of a JSON text. Raises ValueError, also for a duplicate key, of which `json` takes the last."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(values := dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"duplicate key `{short_path(next(name for name in names if names.count(name) > 1))}`")
        return values

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not JSON ({error})") from None


def mapping(value: object) -> Mapping[str, Any]:
    """A mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A finite number, no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def count(value: object) -> int | None:
    """An integer of 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def word(value: object) -> str:
    """One line of a text or number, at most `MOST_LETTERS` letters; empty for None, "?" for anything else."""
    if not isinstance(value, str | int | float):
        return "" if value is None else "?"
    text = " ".join(str(value)[: 10 * MOST_LETTERS].split())
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def refuse_links(folder: Path) -> None:
    """Raise ValueError for a link in a run directory that leads out of it: files would be written elsewhere. The
    directory itself may be a link, which its user chose, and trackers link files within it."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):  # does not follow links
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise ValueError(
                    f"`{path}` is a link that leads out of its run directory, so files would be written elsewhere; "
                    "replace it by its target, or remove it"
                )


def refuse_file(folder: Path | None, key: str) -> None:
    """Raise ValueError where a folder to write into, or one above it, is a file. None: nothing is written."""
    for path in () if folder is None else (folder, *folder.parents):
        if path.exists():
            if not path.is_dir():
                raise ValueError(f"`{key}` must be a folder, and {path} is a file; name another")
            return


def short_path(text: str) -> str:
    """A text for an error message: printable, at most 120 characters."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:120])
    return plain if len(text) <= 120 else f"{plain}..."


def refuse_outside(path: object, source: str) -> None:
    """Raise ValueError unless a path of the file `source` is relative and stays within its folder."""
    if isinstance(path, str) and "\0" not in path and "\\" not in path:
        plain = PurePosixPath(path)
        if path and plain.as_posix() == path and not plain.is_absolute() and ".." not in plain.parts and path != ".":
            return
    raise ValueError(f"{source}: a path must be relative and lead to no other folder; it holds {path!r:.120}")

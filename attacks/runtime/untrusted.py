"""Reading files that somebody else may have written: a value has the expected type, or is None."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attacks.runtime.folders import short_path

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
    """Text on one line of bounded length."""
    if not isinstance(value, str | int | float):
        return "" if value is None else "?"
    text = " ".join(str(value)[: 10 * MOST_LETTERS].split())
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"

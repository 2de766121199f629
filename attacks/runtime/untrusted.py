"""Reading files that somebody else may have written: a value has the expected type, or is None."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Limits far above what a run writes: larger files are not read, longer words are cut.
MOST_BYTES, MOST_LETTERS = 64 * 2**20, 120


def text(path: Path) -> str:
    """The text of a file. Raises ValueError or OSError."""
    if not path.is_file():  # reading a pipe would block
        raise ValueError(f"there is no `{path.name}`")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"`{path.name}` is larger than {MOST_BYTES // 2**20} MiB")
    return data.decode("utf-8")


def read(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ValueError or OSError."""
    try:
        content = json.loads(text(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"`{path.name}` is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"`{path.name}` must hold a mapping; it holds a {type(content).__name__}")
    return content


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

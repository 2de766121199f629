"""Reading what somebody else may have written: a value is what it should be, or None."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: No run of ours says as much; a larger file is not read, and a longer word not shown in full.
MOST_BYTES, MOST_LETTERS = 64 * 2**20, 120


def text(path: Path) -> str:
    """The text of a file. Raises ValueError or OSError."""
    if not path.is_file():  # a pipe would be waited for
        raise ValueError(f"there is no `{path.name}`")
    with path.open("rb") as file:
        held = file.read(MOST_BYTES + 1)
    if len(held) > MOST_BYTES:
        raise ValueError(f"`{path.name}` is larger than {MOST_BYTES // 2**20} MiB")
    return held.decode("utf-8")


def read(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ValueError or OSError."""
    try:
        content = json.loads(text(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"`{path.name}` is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"`{path.name}` must hold a mapping; it holds a {type(content).__name__}")
    return content


def mapping(found: object) -> Mapping[str, Any]:
    """A mapping; an empty one for anything else."""
    return found if isinstance(found, dict) else {}


def number(found: object) -> float | None:
    """A finite number, and nothing that only looks like one."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < 1e300:
        return None
    return float(found) if math.isfinite(found) else None


def count(found: object) -> int | None:
    """A whole number."""
    return found if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63 else None


def word(found: object) -> str:
    """Text on one line, not too long."""
    if not isinstance(found, str | int | float):
        return "" if found is None else "?"
    text = " ".join(str(found)[: 10 * MOST_LETTERS].split())
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"

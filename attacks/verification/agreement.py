"""Where what a run recorded and what was recomputed do not agree, by name."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from attacks.runtime.tables import cell, unescaped_text

#: Numbers are the same values in another order of sums; so far apart they may be, absolutely and relatively.
EXACT, CSV_EXACT = 1e-9, 1e-12
#: The most lines for one file or column.
SHOWN = 5


def some(lines: Iterable[str], what: str) -> Iterator[str]:
    """The first few lines, and how many more there are."""
    each = [*lines]
    yield from each[:SHOWN]
    if len(each) > SHOWN:
        yield f"{what}: {len(each) - SHOWN} more do not agree"


def leaves(name: str, recorded: Any, recomputed: Any, tolerance: float = EXACT) -> Iterator[str]:
    """A line for each value of two JSON contents that is not the same."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in recorded.keys() | recomputed.keys():
            place = f"{name} {key}"
            if key not in recomputed:
                yield f"{place}: {short(recorded[key])} is recorded, and there is none"
            elif key not in recorded:
                yield f"{place}: it is missing; recomputed {short(recomputed[key])}"
            else:
                yield from leaves(place, recorded[key], recomputed[key], tolerance)
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for i, pair in enumerate(zip(recorded, recomputed, strict=True)):
            yield from leaves(f"{name} {i}", *pair, tolerance)
    elif not _same(recorded, recomputed, tolerance):
        yield f"{name}: recorded {short(recorded)}, recomputed {short(recomputed)}"


def plain(content: Any) -> Any:
    """A content as it comes back from its JSON."""
    return json.loads(json.dumps(content))


def rows(
    name: str, recorded: Sequence[Mapping[str, str]], recomputed: Sequence[Mapping[str, object]]
) -> Iterator[str]:
    """A line for each cell of a table that is not the same."""
    for number, (was, now) in enumerate(zip_longest(recorded, recomputed), start=2):  # the header is line 1
        if was is None or now is None:
            yield f"{name}: it has {len(recorded)} rows; recomputed {len(recomputed)}"
            return
        if [*was] != [*now]:
            yield f"{name} line {number}: its columns are {short([*was])}; recomputed {short([*now])}"
            return
        for column, value in now.items():
            text = unescaped_text(str(cell(value)))
            if was[column] != text and not _close(was[column], value):
                yield f"{name} line {number}, {column}: recorded {short(was[column])}, recomputed {short(text)}"


def short(value: object) -> str:
    """A value for a message."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _same(one: Any, other: Any, tolerance: float) -> bool:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, other))
    if not numbers or (isinstance(one, int) and isinstance(other, int)):
        return bool(one == other and type(one) is type(other))
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _close(text: str, value: object) -> bool:
    if not isinstance(value, float):
        return False
    try:
        return math.isclose(float(text), value, rel_tol=CSV_EXACT, abs_tol=CSV_EXACT)
    except ValueError:
        return False

"""Where what a run recorded and what was recomputed do not agree, by name; and the result of the whole check."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from attacks.runtime.tables import cell, unescaped_text

#: Numbers are the same values in another order of sums; so far apart they may be, absolutely and relatively.
EXACT, CSV_EXACT = 1e-9, 1e-12
#: The most lines for one file or column.
LINES = 5


class CheckerError(RuntimeError):
    """`verify` itself failed, which says nothing about the run."""


@dataclass(frozen=True)
class CheckResult:
    """A line for each thing that does not agree, what may differ between machines, and what was checked.

    `unchecked` could not be compared here. `seed` is that of the sample, and `missable` the largest change of an
    arm's mean `success` by altered views that the sample misses with a probability above 5 %."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    checked: str = ""
    unchecked: tuple[str, ...] = ()
    seed: int | None = None
    missable: float | None = None

    @property
    def passed(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"NOT COMPARED: {line}" for line in self.unchecked]
        if self.missable is not None:
            lines.append(
                f"sample: seed {self.seed} (--seed {self.seed} repeats it); with a probability above 5 % it misses "
                f"altered views that change the mean success of an arm by up to {self.missable:.3f}, or its mean "
                f"cosine by up to {2 * self.missable:.3f}; --sample 1 misses none"
            )
        word = "PASS, except what was not compared" if self.unchecked else "PASS"
        return "\n".join([*lines, *(self.problems or (f"{word}: {self.checked}",))])


def first_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """The first few lines, and how many more there are."""
    listing = [*lines]
    yield from listing[:LINES]
    if len(listing) > LINES:
        yield f"{name}: {len(listing) - LINES} more do not agree"


def value_differences(name: str, old: Any, new: Any, tolerance: float = EXACT) -> Iterator[str]:
    """A line for each value that differs in two JSON contents, `old` as recorded and `new` as recomputed."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield f"{name} {key}: {abridge(old[key])} is recorded, and there is none"
        for key in new.keys() - old.keys():
            yield f"{name} {key}: it is missing; recomputed {abridge(new[key])}"
        for key in old.keys() & new.keys():
            yield from value_differences(f"{name} {key}", old[key], new[key], tolerance)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from value_differences(f"{name} {i}", *pair, tolerance)
    elif not _same_value(old, new, tolerance):
        yield f"{name}: recorded {abridge(old)}, recomputed {abridge(new)}"


def as_json(content: Any) -> Any:
    """A content as it comes back from its JSON."""
    return json.loads(json.dumps(content))


def row_differences(
    name: str, old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, object]]
) -> Iterator[str]:
    """A line for each cell of a table that is not the same, `old` as recorded and `new` as recomputed."""
    for number, (old_row, row) in enumerate(zip_longest(old, new), start=2):  # the header is line 1
        if old_row is None or row is None:
            yield f"{name}: it has {len(old)} rows; recomputed {len(new)}"
            return
        if [*old_row] != [*row]:
            yield f"{name} line {number}: its columns are {abridge([*old_row])}; recomputed {abridge([*row])}"
            return
        for column, value in row.items():
            old_text, text = old_row[column], unescaped_text(str(cell(value)))
            if old_text != text and not (isinstance(value, float) and _close(old_text, value)):
                yield f"{name} line {number}, {column}: recorded {abridge(old_text)}, recomputed {abridge(text)}"


def abridge(value: object) -> str:
    """A value for a message."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _same_value(old: Any, new: Any, tolerance: float) -> bool:
    if {type(old), type(new)} in ({float}, {int, float}):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new and type(old) is type(new))


def _close(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=CSV_EXACT, abs_tol=CSV_EXACT)
    except ValueError:
        return False

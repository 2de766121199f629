"""What the commands share: a parser whose errors are exceptions, and errors as one line and an exit code."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from tqdm import tqdm

#: Errors that a user can fix; any other is a bug and shows its traceback.
USER_ERRORS = (ValueError, OSError, FloatingPointError, MemoryError)


class Parser(argparse.ArgumentParser):
    """Shows its description as it is; raises ValueError for wrong arguments, where argparse would end the process."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def exit_status(command: Callable[[], int | None]) -> int:
    """Run `command`. Returns its exit code (0: none), or 1 after one line on stderr for an error a user can fix."""
    try:
        return command() or 0
    except USER_ERRORS as error:
        print(f"error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 1


def printable(text: str) -> str:
    """The text with "?" for all that could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def print_notes(notes: Iterable[str], record: str = "") -> None:
    """A line on stderr, above a bar, for each kind of note: of those that differ only in numbers, and in a file's
    name in front, the first and how many more there are; all are in the file `record`."""
    kinds = dict[str, list[str]]()
    for note in notes:
        kinds.setdefault(re.sub(r"\d+", "0", note.partition(": ")[2] or note), []).append(note)
    for first, *rest in kinds.values():
        count_text = f" (and {len(rest)} more like it{record and f', in {record}'})" if rest else ""
        tqdm.write(f"note: {first}{count_text}", file=sys.stderr)

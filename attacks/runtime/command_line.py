"""What the scripts share: a parser whose errors are exceptions, and errors as one line and an exit code."""

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Shows `description` as it is; raises ValueError for wrong arguments, where argparse would end the process."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def exit_code(command: Callable[[], object], failed: int, errors: tuple[type[Exception], ...] = ()) -> int:
    """Run `command`. Returns 0; or `failed` after one line on stderr for ValueError, OSError and further `errors`."""
    caught: tuple[type[Exception], ...] = (ValueError, OSError, *errors)
    try:
        command()
    except caught as error:
        print(f"error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return failed
    return 0


def printable(text: str) -> str:
    """The text with "?" for all that could move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def print_notes(notes: Iterable[str]) -> None:
    """A line on stderr for each note."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)

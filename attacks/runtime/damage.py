"""Files that cannot be read are named."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from attacks.runtime.values import Damaged

#: What a reader of a file raises where the file is not what a run writes.
UNREADABLE = (ValueError, OSError, KeyError, IndexError, csv.Error, SafetensorError, RecursionError)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """For a block that reads a file: raise Damaged with its name where it cannot be read."""
    try:
        yield
    except Damaged:
        raise
    except UNREADABLE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise Damaged(f"{name}: it cannot be read ({reason})") from error

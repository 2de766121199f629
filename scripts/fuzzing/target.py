"""What is fuzzed: a strategy that makes cases, a check that raises where a law does not hold, and a file format."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy


class Broken(AssertionError):
    """A law that does not hold, in one line."""


@dataclass(frozen=True)
class Target:
    """A case is bytes (a file as it is) or plain data that JSON can hold, so that it replays from its file alone."""

    name: str
    cases: SearchStrategy[Any]
    check: Callable[[Any], None]
    suffix: str = ".json"
    mutate: Callable[[bytes, int], bytes] | None = None  # of cases that are bytes
    seeds: Callable[[], list[bytes]] = list  # from which those are made
    memory: int = 2**30  # bytes that a case may need
    seconds: float = 10.0
    ready: Callable[[], object] = bool  # what must be loaded before anything is watched or limited

    def write(self, case: Any) -> bytes:
        """A case as the content of its file."""
        return case if isinstance(case, bytes) else json.dumps(case, indent=1).encode()

    def read(self, content: bytes) -> Any:
        """The case in a file."""
        return json.loads(content) if self.suffix == ".json" else content


def one_line(error: BaseException, *words: str) -> None:
    """A refusal is one line that names what is wrong: raises `Broken` where it is not."""
    text = str(error)
    if not text.strip() or len(text.splitlines()) > 1:
        raise Broken(f"a refusal must be one line; got {type(error).__name__}: {text!r}") from error
    if words and not any(word in text for word in words):
        raise Broken(f"a refusal must name {' or '.join(words)}; got {type(error).__name__}: {text!r}") from error


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the files of one case, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        yield Path(folder)

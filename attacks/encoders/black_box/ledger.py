"""The answers of a black box by picture, in a file that is only appended to.

A line of JSON for each picture: the digest of its 8-bit pixels, and the answer. A line is on the disk before the next
picture is asked about. What a killed process has left of a last line is cut off. A last line "refused" says that the
answers may belong to other pictures.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from attacks.runtime.files import Lock, named_where_unwritten

#: The name of the file in a run directory.
LEDGER = "queries.jsonl"
#: The last line of answers that cannot be used.
REFUSAL = b'{"refused": "a picture has two answers"}'


class Ledger:
    """The answers so far, in memory, and in a file while one is open."""

    def __init__(self) -> None:
        self.rows: dict[str, np.ndarray] = {}
        self.path: Path | None = None

    def __len__(self) -> int:
        """The number of different pictures that were asked about."""
        return len(self.rows)

    @contextmanager
    def open(self, path: Path) -> Iterator[None]:
        """Within the block answers come from the file and are appended to it. Raises ValueError for a line that is
        none of a ledger, except for a torn last one, and where another process appends to the file."""
        with Lock(path) as lock:
            if not lock.exclusive():
                raise ValueError(f"`{path}`: another process asks for this run; wait for its end")
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(path, whole)
            self.read(path, data[:whole])
            self.path = path
            try:
                yield
            finally:
                self.path = None

    def read(self, path: Path, data: bytes) -> None:
        """Take over the answers of a ledger's lines. Raises ValueError for another line."""
        for number, line in enumerate(data.splitlines(), 1):
            if line == REFUSAL:
                raise ValueError(f"`{path}`: a picture has two answers, so none can be used: start a new run")
            try:
                entry = json.loads(line)
                name, row = str(entry["picture"]), np.asarray(entry["answer"], dtype=np.float32)
                if len(name) != 64 or row.ndim != 1 or not np.isfinite(row).all():
                    raise ValueError("no digest with finite numbers")
                self.rows[name] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"`{path}`: line {number} is damaged ({' '.join(str(error).split())[:80]}): remove that line, "
                    "and its picture is asked about again"
                ) from None

    def answers(self, pixels: np.ndarray, ask: Callable[[np.ndarray], np.ndarray], batch: int) -> np.ndarray:
        """The answers (N,D) to 8-bit pictures (N,H,W,3). `ask` sees each picture only once, at most `batch` in one
        call, and what it answers is kept before it is called again. Raises ValueError for rows of another length."""
        digests = [picture_digest(picture) for picture in pixels]
        new = list({name: at for at, name in reversed([*enumerate(digests)]) if name not in self.rows}.values())[::-1]
        for first in range(0, len(new), batch):
            numbers = new[first : first + batch]
            fresh = {digests[at]: row for at, row in zip(numbers, ask(pixels[numbers]), strict=True)}
            width = len(next(iter((self.rows or fresh).values())))
            for row in fresh.values():
                if len(row) != width:
                    raise ValueError(f"an answer must have as many numbers as those before, {width}; got {len(row)}")
            lines = [
                json.dumps({"picture": name, "answer": [float(f"{value:.9g}") for value in row]}) + "\n"
                for name, row in fresh.items()  # nine digits give a float32 again
            ]
            self._write("".join(lines).encode())
            self.rows |= fresh
        return np.stack([self.rows[name] for name in digests])

    def refuse(self) -> None:
        """Record that the answers so far cannot be used."""
        self._write(REFUSAL + b"\n")

    def _write(self, data: bytes) -> None:
        if self.path is None:
            return
        with named_where_unwritten(self.path), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def picture_digest(picture: np.ndarray) -> str:
    """The sha256 of the size and the pixels of an 8-bit picture (H,W,3)."""
    return hashlib.sha256(f"{picture.shape}".encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()

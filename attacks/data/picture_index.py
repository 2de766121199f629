"""What is known of picture files from an earlier run, so that unchanged ones need not be decoded.

A file counts as unchanged while its path, its size in bytes and its times of modification and of change are the same.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, features

from attacks.runtime.files import write_bytes

#: Version of the index files, and of how a picture is decoded and cut.
FORMAT = 1
CODECS = ("jpg", "libjpeg_turbo", "webp", "zlib", "libtiff")


class Known(NamedTuple):
    """The sha256 of a file's square, the file's (width, height), and the notes of its conversion."""

    digest: str
    size: tuple[int, int]
    notes: tuple[str, ...]


class Stamp(NamedTuple):
    """What tells an unchanged file: bytes, and nanoseconds of its modification and of the change of its entry."""

    bytes: int
    modified: int
    changed: int


def stamp(path: Path) -> Stamp:
    """The stamp of a file. Raises OSError."""
    status = path.stat()
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class PictureIndex:
    """The index of a path's pictures with squares of `side` pixels, a JSON file in `folder`. `trouble` says why an
    existing file is of no use, or is empty."""

    def __init__(self, folder: Path, path: Path, side: int) -> None:
        versions = [Image.__version__, torch.__version__, *map(features.version, CODECS)]  # type: ignore[attr-defined]
        key = json.dumps([FORMAT, str(path.resolve()), side, versions])
        self.file = folder / f"pictures-{hashlib.sha256(key.encode()).hexdigest()}.json"
        self._files, self.trouble = self._read()

    def _read(self) -> tuple[dict[str, tuple[Stamp, Known]], str]:
        try:
            digest, _, body = self.file.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return {}, ""
        except OSError as error:
            return {}, f"the index {self.file} cannot be read, and all pictures are decoded: {error.strerror}"
        if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
            return {}, f"the index {self.file} is not as it was written, and all pictures are decoded"
        files = json.loads(body)
        return {name: (Stamp(*at), Known(d, tuple(size), tuple(n))) for name, (at, d, size, n) in files.items()}, ""

    def known(self, path: Path, now: Stamp) -> Known | None:
        """What is known of a file with the stamp `now`; None if it is new or has changed."""
        before, known = self._files.get(str(path.absolute()), (None, None))
        return known if before == now else None

    def write(self, files: Mapping[Path, tuple[Stamp, Known]]) -> str:
        """Replace the index by these files; returns why it cannot be written, or nothing."""
        new = {str(path.absolute()): entry for path, entry in files.items()}
        if new == self._files:
            return ""
        body = json.dumps({name: [at, *known] for name, (at, known) in new.items()}, separators=(",", ":")).encode()
        try:
            write_bytes(self.file, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except OSError as error:
            return f"the index of pictures cannot be kept in {self.file.parent}: {' '.join(str(error).split())}"
        return ""

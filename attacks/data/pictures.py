"""Pictures that are read on demand, so that memory does not grow with their number."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from PIL import Image, features
from torch import Tensor

from attacks.data.images import load_image, to_bytes
from attacks.data.listing import list_entries
from attacks.data.table import Entry
from attacks.runtime.decoding import printable_name
from attacks.runtime.files import write_bytes
from transforms import resize
from transforms.resizing.resize import target_size

#: Largest ratio of a picture's sides: a thinner one, resized, would fill the memory.
SLENDER = 50
#: The most pixels of pictures of their own shape that are in memory together: 200 MB, 335 squares of 224.
PIXELS = 2**24
#: Unreadable files that a message names.
FIRST = 3
#: Bytes of decoded squares that a shelf keeps: 21,845 of 128 pixels. Those beyond are decoded again when used.
MAX_CACHE = 2**30
#: Version of the index files, and of how a picture is decoded and cut.
FORMAT = 1
CODECS = ("jpg", "libjpeg_turbo", "webp", "zlib", "libtiff")
#: Results in memory at a time.
SLAB = 64
A = TypeVar("A")
B = TypeVar("B")


class IndexRecord(NamedTuple):
    """The sha256 of a file's square, the file's (width, height), and the notes of its conversion."""

    digest: str
    size: tuple[int, int]
    notes: tuple[str, ...]


#: What tells an unchanged file: bytes, and nanoseconds of its modification and of the change of its entry.
Stamp = tuple[int, ...]


def stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class PictureIndex:
    """The index of a path's pictures with squares of `side` pixels (None: of their own shape), a JSON file in
    `folder`. `trouble` says why an existing file is of no use, or is empty."""

    def __init__(self, folder: Path, path: Path, side: int | None) -> None:
        versions = [Image.__version__, torch.__version__, *map(features.version, CODECS)]  # type: ignore[attr-defined]
        key = json.dumps([FORMAT, str(path.resolve()), side, versions])
        self.file = folder / f"pictures-{hashlib.sha256(key.encode()).hexdigest()}.json"
        self._files, self.trouble = self._read()

    def _read(self) -> tuple[dict[str, tuple[Stamp, IndexRecord]], str]:
        try:
            digest, _, body = self.file.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return {}, ""
        except OSError as error:
            return {}, f"the index {self.file} cannot be read, and all pictures are decoded: {error.strerror}"
        if digest.decode(errors="replace") != hashlib.sha256(body).hexdigest():
            return {}, f"the index {self.file} is not as it was written, and all pictures are decoded"
        files = json.loads(body).items()
        return {name: (tuple(at), IndexRecord(d, tuple(size), tuple(n))) for name, (at, d, size, n) in files}, ""

    def record(self, path: Path, current: Stamp | None) -> IndexRecord | None:
        """What is known of a file with the stamp `current`; None if it is new or has changed."""
        old_stamp, record = self._files.get(str(path.absolute()), (None, None))
        return record if old_stamp == current else None

    def write(self, files: Mapping[Path, tuple[Stamp, IndexRecord]]) -> str:
        """Replace the index by these files; returns why it cannot be written, or nothing."""
        new = {str(path.absolute()): entry for path, entry in files.items()}
        if new == self._files:
            return ""
        body = json.dumps({name: [at, *record] for name, (at, record) in new.items()}, separators=(",", ":")).encode()
        try:
            write_bytes(self.file, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except OSError as error:
            return f"the index of pictures cannot be kept in {self.file.parent}: {' '.join(str(error).split())}"
        return ""


def in_threads(function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """`function` of each item, in their order, by as many threads as torch has. The first error is raised."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, len(items), SLAB):
            yield from pool.map(function, items[start : start + SLAB])


@dataclass(frozen=True)
class Shelf:
    """Named pictures, none of them in memory: `load` reads one (3,H,W), as `Pictures` holds it. `digests` are the
    sha256 of their pixels; `shapes` their (height, width); `labels` the person or thing on each, None if unknown;
    `clusters` the cluster of each, None if it is alone; `entries` the rows of the listing; `changes` the conversions
    of each; `missing` the files left out; `notes` these and what was ignored. `forget` frees the memory of pictures
    that `load` has at hand."""

    names: tuple[str, ...]
    digests: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    labels: tuple[str | None, ...]
    load: Callable[[int], Tensor]
    changes: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    clusters: tuple[str | None, ...] = ()
    entries: tuple[Entry, ...] = ()
    forget: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self.names)

    def read(self, rows: Sequence[int]) -> Tensor:
        """The pictures `rows`, of one shape, (n,3,H,W). Raises ValueError if a file has changed."""
        return torch.stack(list(in_threads(self._read_checked, rows)))

    def _read_checked(self, row: int) -> Tensor:
        image = self.load(row)
        if digest(image) != self.digests[row]:
            raise ValueError(f"`{self.names[row]}` has changed since the run began; leave the pictures alone")
        return image

    def remarks(self) -> tuple[str, ...]:
        return (*self.notes, *(note for notes in self.changes for note in notes))

    def cluster(self, row: int, name: str) -> str:
        """The cluster of a picture, by default its `name`. A cluster and a picture of the same name stay apart."""
        name_of_cluster = self.clusters[row] if self.clusters else None
        return name if name_of_cluster is None else f"cluster {name_of_cluster}"

    def only(self, rows: Sequence[int]) -> "Shelf":
        load, selection = self.load, list(rows)
        names = ("names", "digests", "shapes", "labels", "changes", "clusters", "entries")
        columns: dict[str, Any] = {name: select(getattr(self, name), selection) for name in names}
        return replace(self, load=lambda i: load(selection[i]), **columns)


def select(column: Sequence[A], rows: Sequence[int]) -> tuple[A, ...]:
    """The rows of a column; none of an empty one."""
    return tuple(column[i] for i in rows) if column else ()


def make_shelf(names: Sequence[str], load: Callable[[int], Tensor]) -> Shelf:
    """A shelf of pictures without labels; each is read once."""
    images = in_threads(load, range(len(names)))
    facts = [(digest(image), (image.shape[1], image.shape[2])) for image in images]
    digests, shapes = (tuple(column) for column in zip(*facts, strict=True))
    return Shelf(tuple(names), digests, shapes, (None,) * len(names), load)


def shape_ranges(shapes: Sequence[tuple[int, int]], limit: int, pixels: int | None = None) -> Iterator[range]:
    """Ranges of consecutive pictures of one shape (height, width): at most `limit` in each, and so many that they
    have at most so many `pixels` (None: any number), but one."""
    start = 0
    for row in range(1, len(shapes) + 1):
        height, width = shapes[start]
        room = limit if pixels is None else max(1, min(limit, pixels // (height * width)))
        if row == len(shapes) or shapes[row] != shapes[start] or row - start == room:
            yield range(start, row)
            start = row


def read_files(
    path: str | Path, size: int | None, unreadable: str = "refuse", cache: str | None = None, room: int | None = None
) -> Shelf:
    """The pictures of a path (see `list_entries`), each `square`. Every file is read once, to check it; up to `room`
    bytes of squares (None: `MAX_CACHE`) stay in memory until `Shelf.forget`.

    Args:
        size: of the squares; None: the pictures stay as they are, and on disk.
        unreadable: "refuse" or "skip" files that are missing or that Pillow cannot read.
        cache: a folder with the index of an earlier run, by which unchanged files are not read (see `PictureIndex`).

    Raises FileNotFoundError or ValueError as `list_entries` does, and for unreadable files, or no readable one."""
    entries, notes = list_entries(path)
    index = None if cache is None else PictureIndex(Path(cache), Path(path), size)
    return read_entries(entries, notes, size, unreadable, index, room)


def read_entries(
    entries: list[Entry],
    notes: list[str],
    size: int | None,
    unreadable: str = "refuse",
    index: PictureIndex | None = None,
    room: int | None = None,
) -> Shelf:
    """The same as `read_files`, for a listing, its notes, and its index."""
    for column in ("weight", "split"):
        missing_in, present = ([e for e in entries if (column in e.cells) is has] for has in (False, True))
        if missing_in and present:
            other = f"an empty cell, and {present[0].cells[column]} in {present[0].where}: fill the column"
            raise ValueError(f"{missing_in[0].where}: `{column}` must be in every row or in none; got {other}")
    readable: list[Entry] = []
    readings: list[_Reading] = []
    squares: dict[int, Tensor] = {}
    failed: list[tuple[Entry, Exception]] = []
    # in one piece: small blocks that stay would split the heap between the large ones that go
    capacity = 0 if size is None else (MAX_CACHE if room is None else room) // (3 * size * size)
    store = torch.empty(min(len(entries), capacity), size or 0, size or 0, 3, dtype=torch.uint8)
    results = in_threads(lambda entry: _read_entry(entry, size, index), entries)
    for entry, reading in zip(entries, results, strict=True):
        if isinstance(reading, Exception):
            failed.append((entry, reading))
            continue
        if reading.levels is not None and len(squares) < len(store):
            squares[len(readable)] = store[len(squares)].copy_(reading.levels)
        readable.append(entry)
        readings.append(reading._replace(levels=None))
    if failed and (unreadable == "refuse" or not readable):
        raise _refusal(failed, len(entries), unreadable)
    missing = tuple(f"{entry.name}: left out, {_reason(entry, error)}" for entry, error in failed)
    files = {entry.path: (item.at, item.record) for entry, item in zip(readable, readings, strict=True) if item.at}
    read_trouble, write_trouble = ("", "") if index is None else (index.trouble, index.write(files))
    return Shelf(
        names=tuple(entry.name for entry in readable),
        digests=tuple(item.record.digest for item in readings),
        shapes=tuple(item.record.size[::-1] if size is None else (size, size) for item in readings),
        labels=tuple(entry.label for entry in readable),
        load=lambda i: _levels(squares[i]) if i in squares else cut_to(load_image(readable[i].path)[0], size),
        changes=tuple(_changes(entry, item.record, size) for entry, item in zip(readable, readings, strict=True)),
        notes=(*notes, *filter(None, [read_trouble]), *missing, *filter(None, [write_trouble])),
        missing=missing,
        clusters=tuple(entry.cluster for entry in readable),
        entries=tuple(readable),
        forget=squares.clear,
    )


class _Reading(NamedTuple):
    """What is known of a file; its stamp, unless it changed meanwhile; its square's levels, if it was decoded."""

    record: IndexRecord
    at: Stamp | None
    levels: Tensor | None = None


def _read_entry(entry: Entry, size: int | None, index: PictureIndex | None) -> _Reading | Exception:
    try:
        first_stamp = None if index is None else stamp(entry.path)
        if index is not None and (record := index.record(entry.path, first_stamp)) is not None:
            return _Reading(record, first_stamp)
        image, notes = load_image(entry.path)
        cut = cut_to(image, size)
        at = first_stamp if index is not None and stamp(entry.path) == first_stamp else None
    except Exception as error:  # Pillow's errors for broken files have no common base class
        return error
    full_size = (image.shape[2], image.shape[1])
    levels = None if size is None else torch.from_numpy(to_bytes(cut))
    return _Reading(IndexRecord(digest(cut), full_size, tuple(notes)), at, levels)


def _levels(levels: Tensor) -> Tensor:
    return levels.permute(2, 0, 1).float().div_(255)


def _changes(entry: Entry, record: IndexRecord, size: int | None) -> tuple[str, ...]:
    width, height = record.size
    if size is None or record.size == (size, size):
        return record.notes
    return (*record.notes, f"{entry.name}: {width}x{height} resized and cropped to {size}x{size}")


def _reason(entry: Entry, error: Exception) -> str:
    path = printable_name(str(entry.path))
    message = str(error) if path in str(error) else f"image `{path}` cannot be read ({type(error).__name__}: {error})"
    return " ".join(f"{entry.where + ': ' if entry.where else ''}{message}".split())


def _refusal(failed: list[tuple[Entry, Exception]], count: int, unreadable: str) -> Exception:
    first = _reason(*failed[0])
    if unreadable == "skip":
        return ValueError(f"none of {count} pictures can be read; the first: {first}")
    if len(failed) == 1:
        kind = FileNotFoundError if isinstance(failed[0][1], FileNotFoundError) else ValueError
        return kind(first if count == 1 else f"{first}; data.unreadable=skip leaves it out")
    names = ", ".join([*(entry.name for entry, _ in failed[:FIRST]), *["..."] * (len(failed) > FIRST)])
    fix = f"(data.unreadable=skip leaves them out); the first: {first}"
    return ValueError(f"{len(failed)} of {count} pictures cannot be read: {names} {fix}")


def digest(image: Tensor) -> str:
    """The sha256 of an 8-bit picture (3,H,W): of its size and its levels."""
    return hashlib.sha256(f"{tuple(image.shape)}".encode() + to_bytes(image).tobytes()).hexdigest()


def cut_to(image: Tensor, size: int | None) -> Tensor:
    """The `square` of a picture; without a size the picture."""
    if size is not None:
        return square(image, size)
    refuse_slender(image)
    return image


def refuse_slender(image: Tensor) -> None:
    """Raise ValueError for a picture (3,H,W) that is too slender to be resized."""
    height, width = image.shape[1:]
    if max(height, width) > SLENDER * min(height, width):
        fix = f"crop it, the longer side is at most {SLENDER} times the shorter"
        raise ValueError(f"a picture of {width}x{height} is too slender: {fix}")


def square(image: Tensor, size: int) -> Tensor:
    """A picture with the shorter side `size` (Pillow's bicubic), the central square of it, rounded to 8 bits."""
    refuse_slender(image)
    short = min(image.shape[1:])
    if short != size:
        image = resize(image[None], size, "pil_bicubic")[0].clamp(0, 1)
    top, left = (image.shape[1] - size) // 2, (image.shape[2] - size) // 2
    return (image[:, top : top + size, left : left + size] * 255).round() / 255


def to_square(points: Tensor, photo_size: tuple[int, int], size: int) -> Tensor:
    """Where points (...,2) of a picture of `before` (height, width) lie in its `square`, as shares of it. They are in
    pixels from the left and upper edge: (x, y) = (width, height) is the lower right corner."""
    height, width = target_size(photo_size, size)
    scale = points.new_tensor([width / photo_size[1], height / photo_size[0]])
    corner = points.new_tensor([(width - size) // 2, (height - size) // 2])
    return (points * scale - corner) / size


def read_mask(entry: Entry, size: tuple[int, int]) -> tuple[Tensor, list[str]]:
    """The mask of a row whose picture has this (height, width), (H,W) in [0,1], and notes on its conversion. Raises
    ValueError or FileNotFoundError for a mask that is unreadable, of another size, or dark."""
    file = entry.file("mask")
    try:
        image, notes = load_image(file)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"{entry.where}: `mask`: {error}") from None
    mask = image.mean(0)
    if mask.shape != size:
        rule = f"must be as large as its photograph `{entry.name}`, {size[1]}x{size[0]}"
        raise ValueError(f"{entry.where}: `mask` {rule}; {file.name} has {mask.shape[1]}x{mask.shape[0]}")
    if not bool((mask > 0.5).any()):
        raise ValueError(f"{entry.where}: `mask` {file.name} is dark all over: nothing could show or change there")
    return mask, notes


def masks_of(entries: Sequence[Entry], size: int | None) -> Tensor:
    """(N,1,H,W): 1 where the mask of a row, cut as its picture is (see `square`; None: not at all), is lighter than
    mid-grey, else 0. Raises as `read_mask`, and ValueError for one that is dark in the square."""

    def cut(entry: Entry) -> Tensor:
        image, _ = load_image(entry.path)
        mask = cut_to(read_mask(entry, (image.shape[1], image.shape[2]))[0][None], size) > 0.5
        if not bool(mask.any()):
            place = f"in the central square of `{entry.name}`"
            raise ValueError(f"{entry.where}: `mask` is dark {place}: nothing changes")
        return mask.float()

    return torch.stack(list(in_threads(cut, entries)))

"""Pictures that are read on demand, so that memory does not grow with their number."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from attacks.data.images import load_image, shown, to_bytes
from attacks.data.listing import Entry, listed
from transforms import resize
from transforms.resizing.resize import target_size

#: Largest ratio of a picture's sides: a thinner one, resized, would fill the memory.
SLENDER = 50
#: Unreadable files that a message names.
FIRST = 3


@dataclass(frozen=True)
class Shelf:
    """Named pictures of one size, none of them in memory: `load` reads one (3,H,W), as `Pictures` holds it.

    `digests` are the sha256 of their pixels; `labels` the person or thing on each, None if unknown; `clusters` the
    cluster of each, None if it is alone. `changes` are the conversions of each, `missing` the files left out, `notes`
    these and what was ignored.
    """

    names: tuple[str, ...]
    digests: tuple[str, ...]
    labels: tuple[str | None, ...]
    load: Callable[[int], Tensor]
    changes: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    clusters: tuple[str | None, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def read(self, rows: Sequence[int]) -> Tensor:
        """The pictures `rows`, (n,3,H,W). Raises ValueError if a file has changed."""
        images = [self.load(row) for row in rows]
        for row, image in zip(rows, images, strict=True):
            if digest(image) != self.digests[row]:
                raise ValueError(f"`{self.names[row]}` has changed since the run began; leave the pictures alone")
        return torch.stack(images)

    def remarks(self) -> tuple[str, ...]:
        """All notes and conversions."""
        return (*self.notes, *(note for notes in self.changes for note in notes))

    def only(self, rows: Sequence[int]) -> "Shelf":
        """A shelf of the pictures `rows`."""
        load, chosen = self.load, list(rows)
        return replace(
            self,
            names=tuple(self.names[i] for i in chosen),
            digests=tuple(self.digests[i] for i in chosen),
            labels=tuple(self.labels[i] for i in chosen),
            load=lambda i: load(chosen[i]),
            changes=tuple(self.changes[i] for i in chosen) if self.changes else (),
            clusters=tuple(self.clusters[i] for i in chosen) if self.clusters else (),
        )


def shelved(names: Sequence[str], load: Callable[[int], Tensor]) -> Shelf:
    """A shelf of pictures without labels; each is read once."""
    digests = tuple(digest(load(i)) for i in range(len(names)))
    return Shelf(tuple(names), digests, (None,) * len(names), load)


def read_files(path: str | Path, size: int, unreadable: str = "refuse") -> Shelf:
    """The pictures of a path (see `listed`), each `square`. Every file is read once, to check it, and not held in
    memory.

    Args:
        unreadable: "refuse" or "skip" files that are missing or that Pillow cannot read.

    Raises:
        FileNotFoundError, ValueError: see `listed`; unreadable files, or no readable one.
    """
    return read_entries(*listed(path), size, unreadable)


def read_entries(entries: list[Entry], notes: list[str], size: int, unreadable: str = "refuse") -> Shelf:
    """As `read_files`, for a listing and its notes."""
    readable: list[Entry] = []
    digests: list[str] = []
    changes: list[tuple[str, ...]] = []
    failed: list[tuple[Entry, Exception]] = []
    for entry in entries:
        try:
            image, file_notes = load_image(entry.path)
            cut = square(image, size)
        except Exception as error:  # Pillow's errors for broken files have no common base class
            failed.append((entry, error))
            continue
        readable.append(entry)
        digests.append(digest(cut))
        if image.shape[1:] != (size, size):
            file_notes.append(f"{entry.name}: {image.shape[2]}x{image.shape[1]} resized and cropped to {size}x{size}")
        changes.append(tuple(file_notes))
    if failed and (unreadable == "refuse" or not readable):
        raise _refusal(failed, len(entries), unreadable)
    missing = tuple(f"{entry.name}: left out, {_reason(entry, error)}" for entry, error in failed)
    return Shelf(
        names=tuple(entry.name for entry in readable),
        digests=tuple(digests),
        labels=tuple(entry.label for entry in readable),
        load=lambda i: square(load_image(readable[i].path)[0], size),
        changes=tuple(changes),
        notes=(*notes, *missing),
        missing=missing,
        clusters=tuple(entry.cluster for entry in readable),
    )


def _reason(entry: Entry, error: Exception) -> str:
    path = shown(str(entry.path))
    message = str(error) if path in str(error) else f"image `{path}` cannot be read ({type(error).__name__}: {error})"
    return " ".join(f"{entry.where + ': ' if entry.where else ''}{message}".split())


def _refusal(failed: list[tuple[Entry, Exception]], count: int, unreadable: str) -> Exception:
    first = _reason(*failed[0])
    if unreadable == "skip":
        return ValueError(f"none of {count} pictures can be read; the first: {first}")
    if len(failed) == 1:
        kind = FileNotFoundError if isinstance(failed[0][1], FileNotFoundError) else ValueError
        return kind(first if count == 1 else f"{first}; data.unreadable=skip leaves it out")
    names = ", ".join(entry.name for entry, _ in failed[:FIRST])
    more = ", ..." if len(failed) > FIRST else ""
    return ValueError(
        f"{len(failed)} of {count} pictures cannot be read: {names}{more} (data.unreadable=skip leaves them out); "
        f"the first: {first}"
    )


def digest(image: Tensor) -> str:
    """The sha256 of an 8-bit picture (3,H,W): of its size and its levels."""
    return hashlib.sha256(f"{tuple(image.shape)}".encode() + to_bytes(image).tobytes()).hexdigest()


def square(image: Tensor, size: int) -> Tensor:
    """A picture with the shorter side `size` (Pillow's bicubic), the central square of it, rounded to 8 bits."""
    short, long = sorted(image.shape[1:])
    if long > SLENDER * short:
        raise ValueError(
            f"a picture of {image.shape[2]}x{image.shape[1]} is too slender to cut a square from: crop it, the "
            f"longer side is at most {SLENDER} times the shorter"
        )
    if short != size:
        image = resize(image[None], size, "pil_bicubic")[0].clamp(0, 1)
    top, left = (image.shape[1] - size) // 2, (image.shape[2] - size) // 2
    return (image[:, top : top + size, left : left + size] * 255).round() / 255


def squared(points: Tensor, photo_size: tuple[int, int], size: int) -> Tensor:
    """Where points (...,2) of a picture of `before` (height, width) lie in its `square`, as shares of it. They are in
    pixels from the left and upper edge: (x, y) = (width, height) is the lower right corner."""
    height, width = target_size(photo_size, size)
    scale = points.new_tensor([width / photo_size[1], height / photo_size[0]])
    corner = points.new_tensor([(width - size) // 2, (height - size) // 2])
    return (points * scale - corner) / size

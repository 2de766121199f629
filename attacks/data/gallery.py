"""Sets of pictures, the bundled photographs cut into tiles or a person's own files, and galleries made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from attacks.data.images import SUFFIXES, load_image
from attacks.data.pictures import Shelf, read_files, shelved, square
from attacks.perturbations.patch.placement import Places

PHOTOS = Path(__file__).parent / "photos"
#: Photographs that the pocket encoder never saw; queries are cut from these.
HELD_OUT = ("astronaut", "chelsea", "coffee")
#: A tile whose values vary less than this (standard deviation) is a piece of sky, not a picture.
FLAT = 0.04


@dataclass(frozen=True)
class Pictures:
    """Named pictures of one size: `images` (N,3,H,W) in [0,1], every value a multiple of 1/255; `notes` says what
    was converted when the files were read; `places` where a patch lies in each. They are in memory; for many, see
    `attacks.data.pictures.Shelf`."""

    names: tuple[str, ...]
    images: Tensor
    notes: tuple[str, ...] = ()
    places: Places | None = None

    def __len__(self) -> int:
        return len(self.names)

    def spread(self, count: int | None) -> Pictures:
        """`count` pictures spread evenly over the set; None for all. Raises ValueError if there are fewer."""
        rows = spread(len(self), count)
        return Pictures(tuple(self.names[i] for i in rows), self.images[rows], self.notes)

    def shelf(self, size: int | None = None) -> Shelf:
        """The same as a part of a gallery; with a `size`, cut to it (see `square`) one by one when they are read."""
        images = self.images
        return shelved(self.names, lambda i: images[i] if size is None else square(images[i], size))


def spread(length: int, count: int | None) -> list[int]:
    """The rows of `count` things spread evenly over `length`; None for all. Raises ValueError if there are fewer."""
    if count is None:
        return list(range(length))
    if not 1 <= count <= length:
        raise ValueError(f"`data.count` must lie in 1..{length}, the pictures that there are; got {count}")
    return [i * length // count for i in range(count)]


def photographs() -> dict[str, Tensor]:
    """The bundled photographs by name, each (3,H,W) in [0,1]."""
    files = sorted(path for path in PHOTOS.iterdir() if path.suffix in SUFFIXES)
    return {path.stem: load_image(path)[0] for path in files}


def tiles(size: int, photos: Sequence[str] | None = None) -> Pictures:
    """Cut bundled photographs into `size` x `size` tiles that do not overlap; flat ones are left out.

    Names are photograph-row-column. `photos` limits the choice. Raises ValueError on an unknown name or a size
    that no photograph holds.
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1 pixel; got {size}")
    bundled = photographs()
    chosen = bundled if photos is None else photos
    names, pictures = [], []
    for name in chosen:
        if name not in bundled:
            raise ValueError(f"`photos` must name bundled photographs ({', '.join(bundled)}); got {name!r}")
        photo = bundled[name]
        for row in range(photo.shape[1] // size):
            for column in range(photo.shape[2] // size):
                tile = photo[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
                if tile.std() > FLAT:
                    names.append(f"{name}-{row}-{column}")
                    pictures.append(tile)
    if not pictures:
        raise ValueError(
            f"`size` must leave at least one tile; no photograph among {list(chosen)} holds {size} pixels"
        )
    return Pictures(tuple(names), torch.stack(pictures))


def folder(path: str | Path, size: int) -> Pictures:
    """Read a picture file, or every picture of a folder, a list or a table (see `attacks.data.listing.listed`), into
    memory; each is resized so that its shorter side is `size` (Pillow's bicubic), cut to the central square and
    rounded to 8 bits.

    Raises FileNotFoundError or ValueError, naming the file.
    """
    found = read_files(path, size)
    return Pictures(found.names, found.read(range(len(found))), found.remarks())


@dataclass(frozen=True)
class Gallery:
    """What a view can be taken for: pictures of one or more shelves. `places` has each row's shelf and number on it,
    `names` its name, unique here, and `labels` whom or what it shows.

    Raises ValueError where the same pixels are said to show two."""

    shelves: tuple[Shelf, ...]
    places: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for row, (pixels, label) in enumerate(zip(self.digests, self.labels, strict=True)):
            if label is not None:
                before = first.setdefault(pixels, row)
                _agreed(self.labels[before], label, self.names[before], self.names[row])

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The sha256 of each row's pixels."""
        return tuple(self.shelves[shelf].digests[i] for shelf, i in self.places)

    @cached_property
    def order(self) -> Tensor:
        """Each row's number where all shelves stand one after the other, (G,)."""
        starts = [sum(len(shelf) for shelf in self.shelves[:k]) for k in range(len(self.shelves))]
        return torch.tensor([starts[shelf] + i for shelf, i in self.places], dtype=torch.long)

    @cached_property
    def identity(self) -> Tensor | None:
        """Each row's identity as a number (G,); None where no two pictures have the same one. A picture without a
        label has that of a picture with the same pixels, else one of its own."""
        by_pixels = {d: label for d, label in zip(self.digests, self.labels, strict=True) if label is not None}
        known = [
            ("pixels", d) if (said := label or by_pixels.get(d)) is None else ("label", said)
            for d, label in zip(self.digests, self.labels, strict=True)
        ]
        numbers = {each: i for i, each in enumerate(dict.fromkeys(known))}
        return torch.tensor([numbers[each] for each in known]) if len(numbers) < len(known) else None

    def same(self, found: Tensor, rows: Tensor) -> Tensor:
        """Whether two rows show the same: bool, of the shape that the two make together."""
        if self.identity is None:
            return found == rows
        identity = self.identity.to(found.device)
        return identity[found] == identity[rows]

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All pictures in the order of rows, (n,3,H,W) with n at most `size`."""
        for start in range(0, len(self), size):
            yield torch.cat([self.shelves[k].read([i]) for k, i in self.places[start : start + size]])

    def joined(self, others: Shelf) -> tuple[Gallery, list[int]]:
        """This gallery, then those of `others` whose pixels are not in it, and the row of each of `others`. A name
        that is taken gets a prefix."""
        rows = {d: row for row, d in reversed(list(enumerate(self.digests)))}
        found, places, names, labels = [], list(self.places), list(self.names), list(self.labels)
        taken, here = set(names), len(self.shelves)
        for i, (name, pixels) in enumerate(zip(others.names, others.digests, strict=True)):
            if pixels in rows:
                row = rows[pixels]
                labels[row] = _agreed(labels[row], others.labels[i], names[row], name)
                found.append(row)
                continue
            while name in taken:
                name = f"gallery/{name}"
            taken.add(name)
            found.append(len(places))
            places.append((here, i))
            names.append(name)
            labels.append(others.labels[i])
        return Gallery((*self.shelves, others), tuple(places), tuple(names), tuple(labels)), found


def on_shelf(shelf: Shelf) -> Gallery:
    """A gallery of all that is on one shelf."""
    return Gallery((shelf,), tuple((0, i) for i in range(len(shelf))), shelf.names, shelf.labels)


def gathered(queries: Shelf, others: Shelf) -> Gallery:
    """The queries, then those of `others` that are not among them. What stands on `others` is read from there, so
    that what is embedded does not depend on the queries, and can be kept."""
    there = {d: i for i, d in reversed(list(enumerate(others.digests)))}
    fresh = [i for i, d in enumerate(queries.digests) if d not in there]
    both, _ = on_shelf(queries).joined(others)
    number = {row: i for i, row in enumerate(fresh)}
    places = [
        ((0, number[i]) if i in number else (1, there[queries.digests[i]])) if shelf == 0 else (1, i)
        for shelf, i in both.places
    ]
    return replace(both, shelves=(queries.only(fresh), others), places=tuple(places))


def _agreed(mine: str | None, theirs: str | None, name: str, other: str) -> str | None:
    if None not in (mine, theirs) and mine != theirs:
        raise ValueError(f"`{name}` and `{other}` have the same pixels and two identities, {mine} and {theirs}")
    return theirs if mine is None else mine

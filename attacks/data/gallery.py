"""Pictures (tiles of the bundled photographs, or files) and galleries of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.data.images import SUFFIXES, load_image
from attacks.data.pictures import PIXELS, Shelf, cut_to, digest, make_shelf, select, shape_ranges
from attacks.data.split import JUDGE, WORDS
from attacks.data.table import Entry
from attacks.data.vectors import Vectors
from attacks.perturbations.patch.placement import Placements

PHOTOS = Path(__file__).parent / "photos"
#: The judged photographs: queries are cut from these. The pocket encoder was trained on no photograph at all.
HELD_OUT = ("astronaut", "camera", "cell", "chelsea", "clock", "coffee", "hubble", "retina", "rocket", "text")
#: Tiles of a smaller contrast (see `contrast`), such as sky, are left out.
FLAT = 0.04


@dataclass(frozen=True)
class Pictures:
    """Named pictures, in memory of one shape (for many, see `attacks.data.pictures.Shelf`).

    `images` (N,3,H,W) are in [0,1], every value a multiple of 1/255; `notes` list the conversions of the files;
    `placements` are those of a patch; `clusters` name those that count as one, such as the tiles of a photograph (by
    default each picture is alone); `split` is fit or judge of each (see `attacks.data.split`), empty where each has a
    perturbation of its own; `weights` are shares of the traffic over the largest, the same in a cluster, empty where
    all count alike; `entries` are the rows of a listing, empty of bundled tiles. With a `store` none are in memory,
    and their shapes may differ: `images` is (0,3,H,W) of the first one's shape."""

    names: tuple[str, ...]
    images: Tensor
    notes: tuple[str, ...] = ()
    placements: Placements | None = None
    clusters: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    entries: tuple[Entry, ...] = ()
    store: Shelf | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clusters", self.clusters or self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def attacked(self) -> list[int]:
        """The rows that perturbations are made from: all but those held out."""
        return [row for row in range(len(self)) if JUDGE not in self.split[row : row + 1]]

    @property
    def judged(self) -> list[int]:
        """The rows that the tables are about: those held out, or all where none is."""
        return [row for row in range(len(self)) if JUDGE not in self.split or self.split[row] == JUDGE]

    @property
    def sides(self) -> dict[str, list[str]] | None:
        """The names of the pictures that are `fit`, and `judge`; None where each has a perturbation of its own."""
        pairs = list(zip(self.names, self.split, strict=False))
        return {side: [name for name, word in pairs if word == side] for side in WORDS} if pairs else None

    @property
    def clips(self) -> list[range]:
        """The rows of each clip, in order: consecutive rows of a table with one `cluster`."""
        names = [entry.cluster for entry in self.entries]
        starts = [row for row, name in enumerate(names) if name is None or row == 0 or name != names[row - 1]]
        return [range(start, stop) for start, stop in pairwise([*starts, len(names)])]

    def spread(self, count: int | None) -> "Pictures":
        """`count` pictures spread evenly over the clusters; None: all. Raises ValueError if there are fewer."""
        return self.only(evenly(self.clusters, count))

    def only(self, rows: Sequence[int]) -> "Pictures":
        """The pictures `rows` in memory, which are of one shape, without placements."""
        images = self.images[list(rows)] if self.store is None else self.store.read(rows)
        return Pictures(images=images, notes=self.notes, **self._columns(rows))

    def take(self, rows: Sequence[int]) -> "Pictures":
        """The same, but those of a `store` stay on disk."""
        if self.store is None:
            return self.only(rows)
        store = self.store.only(rows)
        return Pictures(images=no_pictures(store), notes=self.notes, store=store, **self._columns(rows))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The (height, width) of each."""
        height, width = self.images.shape[2:]
        return ((height, width),) * len(self) if self.store is None else self.store.shapes

    def ranges(self, limit: int) -> list[range]:
        """Consecutive pictures of one shape, at most `limit` in each; of a `store` so many as fit into memory."""
        return [*shape_ranges(self.shapes, limit, None if self.store is None else PIXELS)]

    def of_one_shape(self, count: int) -> list[int]:
        """Of the first rows, so many, those with the shape of the first."""
        return [row for row, shape in enumerate(self.shapes[:count]) if shape == self.shapes[0]]

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The sha256 of the pixels of each."""
        return tuple(map(digest, self.images)) if self.store is None else self.store.digests

    def _columns(self, rows: Sequence[int]) -> dict[str, Any]:
        names = ("names", "clusters", "split", "weights", "entries")
        return {name: select(getattr(self, name), rows) for name in names}

    def shelf(self, size: int | None = None) -> Shelf:
        """The pictures as a shelf; with `size`, each is resized and cropped on reading (see `square`)."""
        images = self.images
        shelf = make_shelf(self.names, lambda i: cut_to(images[i], size))
        return replace(shelf, clusters=self.clusters)


def no_pictures(store: Shelf) -> Tensor:
    """No pictures, (0,3,H,W) of the first one's shape."""
    return torch.zeros(0, 3, *next(iter(store.shapes), (0, 0)))


def evenly(clusters: Sequence[str], count: int | None) -> list[int]:
    """`count` rows, as evenly over the clusters as their sizes allow, and evenly within each; None: all. With fewer
    rows than clusters, every so many clusters give one. Raises ValueError if there are fewer rows."""
    length = len(clusters)
    if count is None:
        return list(range(length))
    if not 1 <= count <= length:
        reason = "there is 1 picture" if length == 1 else f"there are {length} pictures"
        fix = f"set data.count={max(1, min(count, length))}"
        raise ValueError(f"`data.count` must lie in 1..{length}, for {reason}; got {count}: {fix}")
    members: dict[str, list[int]] = {}
    for row, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(row)
    shares = dict.fromkeys(members, 0)
    while (left := count - sum(shares.values())) > 0:
        room = [name for name, rows in members.items() if shares[name] < len(rows)]
        for i in range(min(left, len(room))):
            shares[room[i * len(room) // min(left, len(room))]] += 1
    middles = ((rows, shares[name]) for name, rows in members.items())
    return sorted(rows[(2 * i + 1) * len(rows) // (2 * share)] for rows, share in middles for i in range(share))


def photographs() -> dict[str, Tensor]:
    """The bundled photographs by name, each (3,H,W) in [0,1]."""
    files = sorted(path for path in PHOTOS.iterdir() if path.suffix in SUFFIXES)
    return {path.stem: load_image(path)[0] for path in files}


def contrast(tile: Tensor) -> float:
    """The standard deviation of a picture (3,H,W) from its own mean colour: 0 for one colour, whichever it is."""
    return float((tile - tile.mean(dim=(1, 2), keepdim=True)).std())


def tiles(size: int, photos: Sequence[str] | None = None) -> Pictures:
    """Cut bundled photographs into `size` x `size` tiles without overlap; flat ones are left out.

    Names are photograph-row-column. `photos`: the photographs to use; None: all. Raises ValueError on an unknown name
    or a size that no photograph holds.

    Examples:
        >>> from attacks import tiles
        >>> pictures = tiles(128, ["chelsea"])
        >>> pictures.images.shape, pictures.names[:2]
        (torch.Size([6, 3, 128, 128]), ('chelsea-0-0', 'chelsea-0-1'))
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1 pixel; got {size}")
    files = photographs()
    selection = files if photos is None else photos
    names, pictures = [], []
    for name in selection:
        if name not in files:
            raise ValueError(f"`photos` must name bundled photographs ({', '.join(files)}); got {name!r}")
        photo = files[name]
        for row, column in product(range(photo.shape[1] // size), range(photo.shape[2] // size)):
            tile = photo[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
            if contrast(tile) > FLAT:
                names.append(f"{name}-{row}-{column}")
                pictures.append(tile)
    if not pictures:
        largest = max(min(files[name].shape[1:]) for name in selection)
        raise ValueError(f"`size` must be at most {largest}, the side of the largest photograph here; got {size}")
    return Pictures(tuple(names), torch.stack(pictures), clusters=tuple(map(photograph, names)))


def photograph(name: str) -> str:
    """The photograph of a bundled tile; the name itself of a file, which has a suffix."""
    tile = re.fullmatch(r"([^/.]+)-\d+-\d+", name)
    return name if tile is None else tile[1]


class Duplicate(NamedTuple):
    """Two near duplicates, the `bits` of their perceptual hashes that differ, and whether they count as one picture:
    `joined`, or `apart`, because they were given two identities."""

    picture: str
    other: str
    bits: int
    counts: str


@dataclass(frozen=True)
class Gallery:
    """The pictures that a view is compared with, from one or more shelves, and perhaps rows of `vectors` after them.
    `positions` hold each picture's shelf and number on it, `names` each row's unique name, `labels` the person or
    thing on each picture, `originals` the row of the first picture that shows the same (by default with equal
    pixels), and `clusters` the cluster of each picture. `source` says where the others than the queries are from, and
    `duplicates` are the near duplicates. Raises ValueError if equal pixels have two labels."""

    shelves: tuple[Shelf, ...]
    positions: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    vectors: Vectors | None = None
    originals: tuple[int, ...] = ()
    clusters: tuple[str, ...] = ()
    source: str = "the bundled tiles"
    duplicates: tuple[Duplicate, ...] = ()

    def __post_init__(self) -> None:
        first: dict[str, int] = {}
        for row, (pixels, label) in enumerate(zip(self.digests, self.labels, strict=True)):
            if label is not None:
                original = first.setdefault(pixels, row)
                _common_label(self.labels[original], label, self.names[original], self.names[row])
        rows = {pixels: row for row, pixels in reversed(list(enumerate(self.digests)))}
        object.__setattr__(self, "originals", self.originals or tuple(rows[pixels] for pixels in self.digests))
        names = (self.shelves[k].cluster(i, name) for (k, i), name in zip(self.positions, self.names, strict=False))
        object.__setattr__(self, "clusters", self.clusters or tuple(names))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def content(self) -> tuple[str, ...]:
        """The sha256 of the pixels of each picture, and of all vectors."""
        return self.digests if self.vectors is None else (*self.digests, self.vectors.digest)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        return tuple(self.shelves[shelf].digests[i] for shelf, i in self.positions)

    @cached_property
    def order(self) -> Tensor:
        """Each picture's number in the concatenation of all shelves, (P,)."""
        starts = [sum(len(shelf) for shelf in self.shelves[:k]) for k in range(len(self.shelves))]
        return torch.tensor([starts[shelf] + i for shelf, i in self.positions], dtype=torch.long)

    @cached_property
    def label_numbers(self) -> Tensor | None:
        """Each row's label as a number (G,); None if no two rows share one. A picture without a label has that of a
        picture that shows the same, else one of its own."""
        labels: dict[int, set[str | None]] = {}
        for row, label in zip(self.originals, self.labels, strict=True):
            labels.setdefault(row, set()).add(label)
        keys: list[tuple[str, str | int]] = []
        for row, label in zip(self.originals, self.labels, strict=True):
            shared_labels = [label] if label else [*(labels[row] - {None})]
            keys.append(("label", str(shared_labels[0])) if len(shared_labels) == 1 else ("original", row))
        vector_labels = () if self.vectors is None else self.vectors.labels or (None,) * len(self.vectors)
        keys += [("vector", row) if label is None else ("label", label) for row, label in enumerate(vector_labels)]
        return _number_keys(keys) if len(set(keys)) < len(keys) else None

    @cached_property
    def cluster_numbers(self) -> Tensor:
        """Each row's cluster as a number (G,); a row of `vectors` has one of its own."""
        return _number_keys((*self.clusters, *range(len(self.names) - len(self.clusters))))

    def alone(self, rows: Tensor) -> Tensor | None:
        """Whether rows (n,) are the only ones of their identity: (n,) bool; None where no label was given twice."""
        vector_labels = () if self.vectors is None else self.vectors.labels or ()
        labels = [*filter(None, (*self.labels, *vector_labels))]
        if self.label_numbers is None or len({*labels}) == len(labels):
            return None
        return self.label_numbers.bincount()[self.label_numbers[rows]] == 1

    def same(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether rows and others have the same label; both are broadcast."""
        if self.label_numbers is None:
            return rows == columns
        numbers = self.label_numbers.to(rows.device)
        return numbers[rows] == numbers[columns]

    def joined(self, shelf: Shelf) -> "tuple[Gallery, list[int]]":
        """This gallery followed by those of `shelf` with new pixels, and the row of each of `shelf`. A duplicate
        name gets a prefix."""
        first_rows = {d: row for row, d in reversed(list(enumerate(self.digests)))}
        positions, names, labels = list(self.positions), list(self.names), list(self.labels)
        originals, clusters = list(self.originals), list(self.clusters)
        rows, used, first = list[int](), set(names), dict[str, int]()
        for i, (name, pixels) in enumerate(zip(shelf.names, shelf.digests, strict=True)):
            if pixels in first_rows:
                row = first_rows[pixels]
                labels[row] = _common_label(labels[row], shelf.labels[i], names[row], name)
                rows.append(row)
                continue
            while name in used:
                name = f"gallery/{name}"
            used.add(name)
            rows.append(len(names))
            originals.append(first.setdefault(pixels, len(names)))
            clusters.append(shelf.cluster(i, name))
            positions.append((len(self.shelves), i))
            names.append(name)
            labels.append(shelf.labels[i])
        columns: dict[str, Any] = {"positions": positions, "names": names, "labels": labels}
        columns |= {"originals": originals, "clusters": clusters}
        columns = {key: tuple(column) for key, column in columns.items()}
        return replace(self, shelves=(*self.shelves, shelf), vectors=None, **columns), rows


def on_shelf(shelf: Shelf) -> Gallery:
    return Gallery((shelf,), tuple((0, i) for i in range(len(shelf))), shelf.names, shelf.labels)


def with_vectors(queries: Shelf, vectors: Vectors) -> Gallery:
    """The queries followed by the rows of `vectors`. A name of both gets a prefix there."""
    used = set(queries.names)
    names = (f"gallery/{name}" if name in used else name for name in vectors.names)
    return replace(on_shelf(queries), names=(*queries.names, *names), vectors=vectors)


def gather(queries: Shelf, second: Shelf) -> Gallery:
    """The queries followed by the other pictures of `second`. A picture in both is read from `second`, so that cached
    embeddings do not depend on the queries."""
    first_rows = {d: i for i, d in reversed(list(enumerate(second.digests)))}
    new_rows = [i for i, d in enumerate(queries.digests) if d not in first_rows]
    union, _ = on_shelf(queries).joined(second)
    number = {row: i for i, row in enumerate(new_rows)}
    positions = [
        ((0, number[i]) if i in number else (1, first_rows[queries.digests[i]])) if shelf == 0 else (1, i)
        for shelf, i in union.positions
    ]
    return replace(union, shelves=(queries.only(new_rows), second), positions=tuple(positions))


def _number_keys(keys: Sequence[object]) -> Tensor:
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([order[key] for key in keys], dtype=torch.long)


def _common_label(first_label: str | None, second_label: str | None, name: str, other: str) -> str | None:
    if None not in (first_label, second_label) and first_label != second_label:
        identities = f"{first_label} and {second_label}"
        raise ValueError(f"`{name}` and `{other}` have the same pixels and two identities, {identities}")
    return second_label if first_label is None else first_label

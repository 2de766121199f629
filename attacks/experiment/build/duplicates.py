"""Near duplicates among the pictures of a run, queries and gallery alike, which count as one."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from attacks.data.gallery import Duplicate, Gallery
from attacks.encoders.phash import Phash, bits
from attacks.runtime.files import write_json

#: Two pictures are near duplicates where at most this many of the 64 bits of their perceptual hashes differ. Of the
#: bundled tiles of 128 pixels no two differ in fewer than 12; a tile and its copy as JPEG 75, or of half the size, in
#: 4 at most in 95 % of cases.
DIFFERENT = 8
#: Pictures that are compared with all before them at once.
BLOCK = 1024
#: In a cache: the hashes of pictures, by the sha256 of their pixels.
HASHES = "hashes-1.json"


def joined(pictures: Gallery, cache: str | None = None) -> Gallery:
    """The gallery after its near duplicates (the same photograph re-encoded, resized or slightly retouched) were
    joined: they show the same, and the first one's cluster is that of both. Two with different labels stay apart.

    Args:
        cache: a folder that keeps the hashes for other runs.
    """
    signs, rows = _hashes(pictures, cache), range(len(pictures.positions))
    first = {name: row for row, name in reversed(list(enumerate(pictures.clusters)))}
    originals, clusters = list(pictures.originals), [first[name] for name in pictures.clusters]
    labels = {root: label for root, label in zip(originals, pictures.labels, strict=True) if label is not None}
    pairs: list[Duplicate] = []
    for start in rows[::BLOCK]:
        apart = (64 - signs[start : start + BLOCK] @ signs[: start + BLOCK].T) / 2
        for i, j in (apart <= DIFFERENT).tril(start - 1).nonzero().tolist():
            row, roots = start + i, {_root(originals, j), _root(originals, start + i)}
            known = {labels[root] for root in roots if root in labels}
            if len(known) > 1 or len(roots) > 1 or _root(clusters, j) != _root(clusters, row):
                names, counts = (pictures.names[row], pictures.names[j]), "apart" if len(known) > 1 else "joined"
                pairs.append(Duplicate(*names, int(apart[i, j]), counts))
            if len(known) < 2:
                labels |= dict.fromkeys(roots, *known) if known else {}
                _unite(originals, j, row)
                _unite(clusters, j, row)
    named = tuple(pictures.clusters[_root(clusters, row)] for row in rows)
    groups = tuple(_root(originals, row) for row in rows)
    duplicates = tuple(dict.fromkeys((*pictures.duplicates, *pairs)))
    return replace(pictures, originals=groups, clusters=named, duplicates=duplicates)


def _root(parents: list[int], row: int) -> int:
    while parents[row] != row:
        parents[row] = row = parents[parents[row]]
    return row


def _unite(parents: list[int], one: int, other: int) -> None:
    first, second = sorted((_root(parents, one), _root(parents, other)))
    parents[second] = first


@torch.no_grad()
def _hashes(pictures: Gallery, cache: str | None) -> torch.Tensor:
    """The perceptual hash of each picture as signs (P,64)."""
    file, hashes = None if cache is None else Path(cache) / HASHES, dict[str, str]()
    if file is not None:
        with suppress(OSError, ValueError):
            hashes = json.loads(file.read_text())
    fresh = [row for row, digest in enumerate(pictures.digests) if digest not in hashes]
    for row in fresh:
        shelf, number = pictures.positions[row]
        signs = bits(Phash()(pictures.shelves[shelf].read([number])))[0].tolist()
        hashes[pictures.digests[row]] = "".join("01"[sign] for sign in signs)
    if file is not None and fresh:
        with suppress(OSError):  # the embeddings' cache says that nothing can be kept
            write_json(file, hashes)
    return torch.tensor([[2.0 * int(sign) - 1 for sign in hashes[digest]] for digest in pictures.digests])

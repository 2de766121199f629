"""Near duplicates among the pictures of a run, queries and gallery alike, which count as one."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
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


def join_duplicates(pictures: Gallery, cache: str | None = None) -> Gallery:
    """The gallery after its near duplicates (the same photograph re-encoded, resized or slightly retouched) were
    joined: they show the same, and the first one's cluster is that of both. Two with different labels stay apart.

    Args:
        cache: a folder that keeps the hashes for other runs.
    """
    signs, names, labels, edges = _hashes(pictures, cache), pictures.names, pictures.labels, list[tuple[int, int]]()
    pairs: list[Duplicate] = []
    for start in range(0, len(signs), BLOCK):
        distances = (64 - signs[start : start + BLOCK] @ signs[: start + BLOCK].T) / 2
        for i, j in (distances <= DIFFERENT).tril(start - 1).nonzero().tolist():
            row = start + i
            two = None not in (labels[row], labels[j]) and labels[row] != labels[j]
            pairs.append(Duplicate(names[row], names[j], int(distances[i, j]), "apart" if two else "joined"))
            edges += [] if two else [(row, j)]
    first = {name: row for row, name in reversed(list(enumerate(pictures.clusters)))}
    cluster_edges = [(row, first[name]) for row, name in enumerate(pictures.clusters)]
    clusters = tuple(pictures.clusters[row] for row in _first(edges + cluster_edges, len(signs)))
    originals = tuple(_first(edges, len(signs)))
    return replace(pictures, originals=originals, clusters=clusters, duplicates=tuple(pairs))


def _first(edges: Sequence[tuple[int, int]], count: int) -> list[int]:
    """For each of `count` rows the first that is connected with it by edges."""
    import scipy  # its parts are loaded when first used

    ends = np.array([*edges, (0, 0)]).T
    graph = scipy.sparse.coo_array((np.ones(len(ends[0])), tuple(ends)), (count, count))
    _, numbers = scipy.sparse.csgraph.connected_components(graph, directed=False)
    rows: list[int] = np.unique(numbers, return_index=True)[1][numbers].tolist()
    return rows


@torch.no_grad()
def _hashes(pictures: Gallery, cache: str | None) -> torch.Tensor:
    """The perceptual hash of each picture as signs (P,64)."""
    file, hashes = None if cache is None else Path(cache) / HASHES, dict[str, str]()
    if file is not None:
        with suppress(OSError, ValueError):
            hashes = json.loads(file.read_text())
    missing_rows = [row for row, digest in enumerate(pictures.digests) if digest not in hashes]
    for row in missing_rows:
        shelf, number = pictures.positions[row]
        signs = bits(Phash()(pictures.shelves[shelf].read([number])))[0].tolist()
        hashes[pictures.digests[row]] = "".join("01"[sign] for sign in signs)
    if file is not None and missing_rows:
        with suppress(OSError):  # the embeddings' cache says that nothing can be kept
            write_json(file, hashes)
    return torch.tensor([[2.0 * int(sign) - 1 for sign in hashes[digest]] for digest in pictures.digests])

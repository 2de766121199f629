"""The configured pictures: the queries, their gallery without near duplicates, and their targets."""

import json
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks.data import gallery
from attacks.data.gallery import Duplicate, Gallery, Pictures
from attacks.data.listing import list_entries, name_entries
from attacks.data.pictures import Shelf, read_entries, read_files
from attacks.data.scenes import placements_in, read_scenes
from attacks.data.table import TABLE, Entry, column_cells
from attacks.data.vectors import read_vectors
from attacks.encoders.phash import Phash, bits
from attacks.evaluation.classes import Classes
from attacks.perturbations.patch.patch import texture_size
from attacks.runtime.files import write_json
from attacks.schema.data import BundledConfig, FolderConfig, ScenesConfig
from attacks.schema.groups import PatchConfig
from attacks.schema.run import Run
from attacks.study.make import make
from transforms.draws import stream

#: Pairs of near duplicates that a note names.
PAIR_LIMIT = 3


def data(
    node: BundledConfig | FolderConfig | ScenesConfig,
    perturbation: object = None,
    *,
    has_gallery: bool = True,
    in_memory: bool = True,
) -> tuple[Pictures, Gallery, Tensor]:
    """The queries, the gallery, and each query's row in it, (N,). Scenes have placements for a patch, which depend on
    its shape; without a `perturbation` they are plain pictures. `has_gallery`: false where classes take its place;
    `in_memory`: false for queries with a `store`, as those of their own shape have, of which any number fits.

    Every query is in the gallery. So recall measures whether the attacked picture still retrieves the original, or,
    with identities, any picture of the same identity. It does not measure whether an encoder recognises a person from
    other pictures alone.
    """
    if isinstance(node, BundledConfig):
        queries, pictures = make(gallery.tiles, node, "data"), gallery.tiles(node.size)
        selection = queries.spread(node.count)
        rows = {name: row for row, name in enumerate(pictures.names)}
        truth = torch.tensor([rows[name] for name in selection.names])
        if not in_memory:
            selection = replace(selection, images=selection.images[:0], store=selection.shelf())
        return selection, gallery.on_shelf(pictures.shelf()), truth
    if isinstance(node, ScenesConfig):
        return _scenes(node, perturbation, has_gallery)
    _check(node)
    path = gallery.PHOTOS if node.path == "bundled" else node.path
    shelf = read_files(path, node.size, node.unreadable, node.cache, None if in_memory else 0)
    numbers = gallery.evenly(gallery.on_shelf(shelf).clusters, node.count)
    numbers.sort(key=lambda row: shelf.shapes[row])  # those of one shape are attacked together
    return _choose(node, shelf, numbers, has_gallery, in_memory and node.size is not None)


def _scenes(node: ScenesConfig, perturbation: object, has_gallery: bool) -> tuple[Pictures, Gallery, Tensor]:
    if not isinstance(perturbation, PatchConfig | None):
        raise ValueError(
            "`data=scenes` says where a patch lies: use it with perturbation=patch; data=folder takes plain pictures"
        )
    _check(node)
    if node.size is None:
        raise ValueError(
            "`data.size` must be a number for data=scenes, whose places are shares of a square; got null"
        )
    shelf, photos = read_scenes(node.path, node.size, node.unreadable)
    rows = gallery.evenly(gallery.on_shelf(shelf).clusters, node.count)
    queries, pictures, truth = _choose(node, shelf, rows, has_gallery)
    if perturbation is None:
        return queries, pictures, truth
    texture = make(texture_size, perturbation, "perturbation")
    placements, notes = placements_in([photos[row] for row in rows], node.size, texture)
    return replace(queries, placements=placements, notes=(*queries.notes, *notes)), pictures, truth


def _check(node: FolderConfig | ScenesConfig) -> None:
    if node.unreadable not in ("refuse", "skip"):
        raise ValueError(f"`data.unreadable` must be refuse or skip; got {node.unreadable!r}")
    if node.cache is not None:
        try:
            Path(node.cache).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"`data.cache` must be a folder that can be written to; got {node.cache} ({error})"
            ) from None


def _choose(
    node: FolderConfig | ScenesConfig, shelf: Shelf, rows: list[int], has_gallery: bool, in_memory: bool = True
) -> tuple[Pictures, Gallery, Tensor]:
    """The chosen rows of the user's pictures as queries, and their gallery."""
    if node.path == "bundled":  # of one photograph with its tiles
        shelf = replace(shelf, clusters=tuple(Path(name).stem for name in shelf.names))
    selection = shelf.only(rows)
    notes, vectors, source = selection.remarks(), None, "data.gallery"
    if not has_gallery:  # classes take its place
        rest = shelf.only([])
    elif node.gallery == node.path or (node.gallery is None and node.path != "bundled"):
        rest, source = shelf, "all of data.path"
    elif node.gallery in (None, "bundled"):
        rest, source = gallery.tiles(128).shelf(node.size), "the bundled tiles"
    elif node.gallery.endswith(".npy"):
        rest, vectors = shelf.only([]), read_vectors(node.gallery)
    else:
        rest = read_files(node.gallery, node.size, node.unreadable, node.cache)
        notes += rest.notes  # without the conversions, of which there may be thousands
    images = selection.read(range(len(selection))) if in_memory else gallery.no_pictures(selection)
    pictures = gallery.gather(selection, rest) if vectors is None else gallery.with_vectors(selection, vectors)
    pictures = join_duplicates(replace(pictures, source=source), node.cache)
    if rest is not shelf:
        shelf.forget()
    clusters = pictures.clusters[: len(selection)]
    columns: dict[str, Any] = {
        "clusters": clusters,
        "split": tuple(entry.split for entry in selection.entries if entry.split is not None),
        "weights": _relative(selection, clusters),
        "entries": selection.entries,
        "store": None if in_memory else selection,
    }
    queries = Pictures(selection.names, images, (*notes, *_remarks(pictures)), **columns)
    return queries, pictures, torch.arange(len(selection))


def _relative(selection: Shelf, clusters: Sequence[str]) -> tuple[float, ...]:
    """The weights over the largest, before anything is measured: bets need a scale that no value has chosen. Raises
    ValueError where two pictures of a cluster differ."""
    first, weights = dict[str, int](), [entry.weight for entry in selection.entries if entry.weight is not None]
    for row, (cluster, weight) in enumerate(zip(clusters, weights, strict=False)):
        other = first.setdefault(cluster, row)
        if weights[other] != weight:
            raise ValueError(
                f"`weight` must be the same for all pictures of a cluster; {selection.names[other]} has "
                f"{weights[other]:g} and {selection.names[row]} {weight:g}: give both one weight, or, if "
                "near duplicates show different things, an `identity` each"
            )
    return tuple(weight / max(weights) for weight in weights)


def _remarks(pictures: Gallery) -> list[str]:
    """A note on the near duplicates."""
    pairs = [f"{pair.picture} and {pair.other} ({pair.counts})" for pair in pictures.duplicates]
    if not pairs:
        return []
    suffix = f", and {len(pairs) - PAIR_LIMIT} more pairs (duplicates.csv)" if len(pairs) > PAIR_LIMIT else ""
    return [f"near duplicates: {', '.join(pairs[:PAIR_LIMIT])}{suffix}; joined, they count as one picture"]


def draw_clusters(clusters: Sequence[str], seed: int, limit: int) -> list[int]:
    """At most `limit` rows in a random order of whole clusters, so that the clusters so far are a sample of all."""
    order: dict[str, list[int]] = {}
    for row, name in enumerate(clusters):
        order.setdefault(name, []).append(row)
    names, generator = list(order), torch.Generator().manual_seed(stream(seed, "order of the clusters"))
    sequence = [names[i] for i in torch.randperm(len(names), generator=generator).tolist()]
    return [row for name in sequence for row in order[name]][:limit]


def hidden_rows(pictures: Gallery | Classes, queries: Pictures, truth: Tensor) -> set[int]:
    """The rows of the gallery of held-out clusters, such as tiles of a photograph, which the attack may not see."""
    attacked_rows = {*truth[queries.attacked].tolist()}
    held_out = sorted({*truth.tolist()} - attacked_rows)
    if isinstance(pictures, Classes) or not held_out:
        return set()
    numbers = pictures.cluster_numbers
    return {*torch.isin(numbers, numbers[held_out]).nonzero()[:, 0].tolist()} - attacked_rows


def targeted(
    target: str,
    pictures: Gallery | Classes,
    truth: Tensor,
    seed: int,
    size: int | None,
    exclusions: Set[int] = frozenset(),
    cache: str | None = None,
    entries: Sequence[Entry] = (),
) -> tuple[Gallery | Classes, Tensor]:
    """The gallery with the targets in it, and the row of each query's target, (N,): one for all, or that of each of
    the `entries`. `another` is none of the rows `exclusions`."""
    texts, sources = [target] * len(truth), ["`objective.target`"] * len(truth)
    if target == TABLE:
        texts = column_cells(entries, "target", "objective.target")
        sources = [f"{entry.where}: `target`" for entry in entries]
    if isinstance(pictures, Classes):
        return pictures, pictures.target(texts, truth, seed, sources)
    if target == "another":
        generator = torch.Generator().manual_seed(stream(seed, "target"))
        rows = [_another(pictures, int(row), generator, exclusions) for row in truth]
        return pictures, torch.tensor(rows)
    if target in pictures.names:
        goal = torch.full_like(truth, pictures.names.index(target))
    else:
        if target == TABLE:
            files = [Entry(entry.file("target"), "", where=entry.where) for entry in entries]
        else:
            files = [_target(target)] * len(truth)
        unique = name_entries(list({file.path: file for file in files}.values()))
        pictures, rows = pictures.joined(read_entries(unique, [], size))
        if target == TABLE or pictures.source != "the bundled tiles":
            pictures = join_duplicates(pictures, cache)
        row_of = dict(zip((file.path for file in unique), rows, strict=True))
        goal = torch.tensor([row_of[file.path] for file in files])
    for row in pictures.same(goal, truth).nonzero()[:, 0].tolist():
        raise ValueError(f"{sources[row]} is itself the attacked picture, or shows the same: {texts[row]!r}")
    return pictures, goal


def _target(path: str) -> Entry:
    if not Path(path).is_file():
        raise ValueError(
            f"`objective.target` must be another, table, a gallery picture or an image file; got {path!r}"
        )
    entries, _ = list_entries(path)
    if len(entries) > 1:
        raise ValueError(f"`objective.target` must be one picture; {path!r} names {len(entries)}")
    return entries[0]


def _another(pictures: Gallery, row: int, generator: torch.Generator, exclusions: Set[int]) -> int:
    """A random row of another cluster, such as another photograph, and of another identity."""
    clusters, copies = pictures.cluster_numbers, pictures.same(torch.arange(len(pictures)), torch.tensor(row))
    rows: list[int] = ((clusters != clusters[row]) & ~copies).nonzero()[:, 0].tolist()
    candidates = [i for i in rows if i not in exclusions]
    if not candidates:
        raise ValueError("`objective.target=another` needs a gallery with more than one picture, or identity")
    return candidates[int(torch.randint(len(candidates), (), generator=generator))]


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
    `cache`: a folder that keeps the hashes for other runs."""
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


def idle_columns(run: Run, queries: Pictures) -> list[str]:
    """A note on columns of the table that have a meaning and no use in this run, and the words that use them."""
    is_patch, is_scene = run.perturbation.name == "patch", run.data.name == "scenes"
    uses = {
        "target": ("objective.target=table", getattr(run.objective, "target", None) == TABLE),
        "mask": ("perturbation.mask=table of a ball", is_scene or getattr(run.perturbation, "mask", None) == TABLE),
        "eps": ("perturbation.eps=table of a ball", getattr(run.perturbation, "eps", None) == TABLE),
        "split": ("perturbation.shared=true", is_patch or getattr(run.perturbation, "shared", False)),
        "x1": ("data=scenes", is_scene),
    }
    columns = {column for entry in queries.entries for column in entry.cells}
    idle = [f"{name} ({words})" for name, (words, is_used) in uses.items() if name in columns and not is_used]
    return [f"columns of the table without use in this run, and what uses them: {', '.join(idle)}"] if idle else []

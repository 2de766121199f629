"""The configured pictures: the queries, their gallery, and their targets."""

from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attacks.data import gallery
from attacks.data.gallery import Gallery, Pictures
from attacks.data.pictures import Shelf, read_files
from attacks.data.scene_geometry import Print
from attacks.data.scenes import placements_in, read_scenes
from attacks.data.vectors import read_vectors
from attacks.evaluation.classes import Classes
from attacks.experiment.build.duplicates import near_duplicates
from attacks.experiment.build.make import make
from attacks.experiment.build.patch import made_size
from attacks.schema import groups
from attacks.schema.patch import PatchConfig, ScenesConfig
from transforms import stream


def data(
    node: groups.BundledConfig | groups.FolderConfig | ScenesConfig, perturbation: object = None
) -> tuple[Pictures, Gallery, Tensor]:
    """The queries, the gallery, and each query's row in it, (N,). Scenes have placements for a patch, which depend on
    its shape; without a `perturbation` they are plain pictures.

    Every query is in the gallery. So recall measures whether the attacked picture still retrieves the original, or,
    with identities, any picture of the same identity. It does not measure whether an encoder recognises a person from
    other pictures alone.
    """
    if isinstance(node, groups.BundledConfig):
        queries, pictures = make(gallery.tiles, node, "data"), gallery.tiles(node.size)
        chosen = queries.spread(node.count)
        rows = {name: row for row, name in enumerate(pictures.names)}
        truth = torch.tensor([rows[name] for name in chosen.names])
        return chosen, gallery.on_shelf(pictures.shelf()), truth
    if isinstance(node, ScenesConfig):
        return _scenes(node, perturbation)
    return _folder(node)


def _folder(node: groups.FolderConfig) -> tuple[Pictures, Gallery, Tensor]:
    _check(node)
    path = gallery.PHOTOS if node.path == "bundled" else node.path
    own = read_files(path, node.size, node.unreadable, node.cache, node.split)
    return _chosen(node, own, gallery.spread(_clusters(own), node.count))


def _scenes(node: ScenesConfig, perturbation: object) -> tuple[Pictures, Gallery, Tensor]:
    if not isinstance(perturbation, PatchConfig | None):
        raise ValueError(
            "`data=scenes` says where a patch lies: use it with perturbation=patch; data=folder takes plain pictures"
        )
    _check(node)
    own, photos = read_scenes(node.path, node.size, node.unreadable, node.split)
    rows = gallery.spread(_clusters(own), node.count)
    queries, pictures, truth = _chosen(node, own, rows)
    if perturbation is None:
        return queries, pictures, truth
    sheet = Print(made_size(perturbation), perturbation.width_mm)
    placements, notes = placements_in([photos[row] for row in rows], node.size, sheet)
    return replace(queries, placements=placements, notes=(*queries.notes, *notes)), pictures, truth


def _check(node: groups.FolderConfig | ScenesConfig) -> None:
    if node.unreadable not in ("refuse", "skip"):
        raise ValueError(f"`data.unreadable` must be refuse or skip; got {node.unreadable!r}")
    if node.cache is not None:
        try:
            Path(node.cache).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"`data.cache` must be a folder that can be written to; got {node.cache} ({error})"
            ) from None


def _chosen(
    node: groups.FolderConfig | ScenesConfig, own: Shelf, rows: list[int]
) -> tuple[Pictures, Gallery, Tensor]:
    """The chosen rows of the user's pictures as queries, and their gallery."""
    chosen = own.only(rows)
    notes, vectors = chosen.remarks(), None
    if isinstance(node, groups.FolderConfig) and node.classes is not None:  # classes replace the gallery
        others = own.only([])
    elif node.gallery is None:
        others = gallery.tiles(128).shelf(node.size)
    elif node.gallery == node.path:
        others = own
    elif node.gallery.endswith(".npy"):
        others, vectors = own.only([]), read_vectors(node.gallery)
    else:
        others = read_files(node.gallery, node.size, node.unreadable, node.cache)
        notes += others.notes  # without the conversions, of which there may be thousands
    images = chosen.read(range(len(chosen)))
    if others is not own:
        own.forget()
    clusters, joined = near_duplicates(chosen.names, images, _clusters(chosen))
    queries = Pictures(chosen.names, images, (*notes, *joined), clusters=clusters, split=chosen.split)
    known = gallery.gathered(chosen, others) if vectors is None else gallery.beside(chosen, vectors)
    return queries, known, torch.arange(len(chosen))


def _clusters(shelf: Shelf) -> tuple[str, ...]:
    """The cluster of each picture, by default its own name. A cluster and a picture of the same name stay apart."""
    given = shelf.clusters or (None,) * len(shelf)
    return tuple(
        name if cluster is None else f"cluster {cluster}" for name, cluster in zip(shelf.names, given, strict=True)
    )


def hidden(known: Gallery | Classes, queries: Pictures, truth: Tensor) -> set[int]:
    """The rows of the gallery that show held-out pictures, which the attack may not see."""
    if isinstance(known, Classes):
        return set()
    attacked = queries.attacked
    return {*truth.tolist()} - {*truth[attacked].tolist()}


def targeted(
    target: str, pictures: Gallery | Classes, truth: Tensor, seed: int, size: int, never: Set[int] = frozenset()
) -> tuple[Gallery | Classes, Tensor]:
    """The gallery with the target in it, and the row of each query's target, (N,). `another` is none of the rows
    `never`."""
    if isinstance(pictures, Classes):
        return pictures, pictures.target(target, truth, seed)
    if target == "another":
        generator = torch.Generator().manual_seed(stream(seed, "target"))
        rows = [_another(pictures, int(row), generator, never) for row in truth]
        return pictures, torch.tensor(rows)
    if target in pictures.names:
        row = pictures.names.index(target)
    else:
        if not Path(target).is_file():
            raise ValueError(
                f"`objective.target` must be another, a gallery picture or an image file; got {target!r}"
            )
        shelf = read_files(target, size)
        if len(shelf) > 1:
            raise ValueError(f"`objective.target` must be one picture; {target!r} names {len(shelf)}")
        pictures, (row,) = pictures.joined(shelf)
    goal = torch.full_like(truth, row)
    if bool(pictures.same(goal, truth).any()):
        raise ValueError(f"`objective.target` is itself one of the attacked pictures, or shows the same: {target!r}")
    return pictures, goal


def _another(pictures: Gallery, row: int, generator: torch.Generator, never: Set[int]) -> int:
    """A random row of another photograph and another identity; of files, of another file."""
    photograph = gallery.photograph(pictures.names[row])
    same = pictures.same(torch.arange(len(pictures)), torch.tensor(row)).tolist()
    same = [each or i in never for i, each in enumerate(same)]
    others = [i for i, name in enumerate(pictures.names) if gallery.photograph(name) != photograph and not same[i]]
    if not others:
        raise ValueError("`objective.target=another` needs a gallery with more than one picture, or identity")
    return others[int(torch.randint(len(others), (), generator=generator))]

"""The embeddings of a gallery, computed in blocks of pictures, and their cache on disk.

The last bits of an embedding depend on the other pictures in the same pass. So the cache holds whole passes, one file
for each, named by a digest of everything the result depends on. Their size is the engine's chunk, up to `BLOCK`:
another chunk finds nothing in the cache.
"""

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from attacks.data.gallery import Gallery
from attacks.data.pictures import PIXELS, Shelf, shape_ranges
from attacks.encoders.engine import Decision
from attacks.encoders.tree import Encoder
from attacks.encoders.weights import fingerprint
from attacks.eot.batching import in_parts
from attacks.evaluation.classes import Classes
from attacks.evaluation.retrieval import Rows
from attacks.runtime.values import load_values, write_values

#: The most pictures of a block: few enough for any encoder, whatever chunk the engine measured.
BLOCK = Decision().chunk
#: One picture in so many begins a block, wherever it stands.
CUT = 256
#: Embeddings are of one picture where their cosine is 1 less this at most.
COPY = 1e-6
#: Version of the cache files, and what stands in them in place of the key of a run: any run may read them.
FORMAT, KEY = 2, "embeddings"


@dataclass(frozen=True)
class Cache:
    """A folder of embeddings, the sha256 of everything but the pictures that they depend on, and their length."""

    folder: Path
    recipe: str
    width: int


class GalleryEmbeddings(NamedTuple):
    """The gallery's embeddings (G,D), counts of pictures encoded and cached, and notes on unusable cache files."""

    rows: Tensor | Rows
    passes: int
    cached: int
    notes: tuple[str, ...]


@torch.no_grad()
def embed_gallery(
    gallery: Gallery | Classes,
    encoder: Encoder,
    device: torch.device,
    chunk: int,
    cache: Cache | None = None,
    *,
    keep: bool = True,
) -> GalleryEmbeddings:
    """The embeddings of a gallery on `device`; at most `chunk` pictures are in memory at a time. Classes already have
    embeddings. Where several processes share the `cache`, one may `keep` what it computes."""
    if isinstance(gallery, Classes):
        return GalleryEmbeddings(gallery.rows.to(device), 0, 0, ())
    parts: list[Tensor] = []
    counts, notes = {True: 0, False: 0}, []
    for shelf in gallery.shelves:
        for rows in _blocks(shelf, min(chunk, BLOCK)):
            file = None if cache is None else _file(cache, [shelf.digests[row] for row in rows])
            block_rows, trouble = (
                (None, "") if cache is None or file is None else _read(file, (len(rows), cache.width))
            )
            counts[block_rows is None] += len(rows)
            if block_rows is None:
                parts_of = [part for _, part in in_parts(encoder, shelf.read(rows).to(device), len(rows))]
                block_rows = torch.cat(parts_of)
                # A pass that was split for lack of memory has other bits than a whole one.
                if file is not None and keep and len(parts_of) == 1:
                    trouble = _write(file, block_rows) or trouble
            notes += [trouble] if trouble else []
            parts.append(block_rows.to(device))
    for shelf in gallery.shelves:  # after all, for two may be parts of one
        shelf.forget()
    embeddings = torch.cat(parts)[gallery.order.to(device)]
    return GalleryEmbeddings(_with_vectors(embeddings, gallery), counts[True], counts[False], tuple(notes))


def _with_vectors(embeddings: Tensor, gallery: Gallery) -> Tensor | Rows:
    """Embeddings of pictures, then those of a file. Raises ValueError where it has a picture's own as another's."""
    vectors = gallery.vectors
    if vectors is None:
        return embeddings
    if embeddings.shape[1] != vectors.rows.shape[1]:
        raise ValueError(
            f"`data.gallery` must hold embeddings of the run's encoder, {embeddings.shape[1]} numbers a row; got "
            f"{vectors.rows.shape[1]}: embed the gallery with this encoder"
        )
    rows, unit = Rows((embeddings, vectors.rows)), Rows((embeddings,)).unit(embeddings)
    for start, block in rows.blocks(len(embeddings)):
        for i, j in (unit @ block.T > 1 - COPY).nonzero().tolist():
            j += start
            labels = (*gallery.labels, *(vectors.labels or (None,) * len(vectors)))
            if j >= len(embeddings) and None in (labels[i], labels[j]):
                raise ValueError(
                    f"`data.gallery`: row {gallery.names[j]!r} is the embedding of the picture {gallery.names[i]!r}, "
                    "and would count as something else: leave it out, or give both one identity"
                )
    return rows


def _blocks(shelf: Shelf, size: int) -> Iterator[range]:
    """Ranges of at most `size` rows, of one shape. A block also begins at one picture in `CUT`, chosen by its digest:
    so a picture that comes or goes shifts only the blocks up to the next of these."""
    cuts = [row for row, digest in enumerate(shelf.digests) if int(digest, 16) % CUT == 0]
    for start, stop in pairwise(sorted({0, *cuts, len(shelf)})):
        for rows in shape_ranges(shelf.shapes[start:stop], size, PIXELS):
            yield range(start + rows.start, start + rows.stop)


def _file(cache: Cache, digests: list[str]) -> Path:
    """The cache file of one block."""
    key = hashlib.sha256(json.dumps([FORMAT, cache.recipe, digests]).encode()).hexdigest()
    return cache.folder / f"{key}.safetensors"


def _read(file: Path, shape: tuple[int, int]) -> tuple[Tensor | None, str]:
    """The embeddings (n,D), or None and the reason why an existing file is unusable."""
    if not file.exists():
        return None, ""
    try:
        rows = load_values(file, KEY)
        if not isinstance(rows, Tensor) or tuple(rows.shape) != shape:
            raise ValueError(f"it holds no tensor of shape {shape}")
    except (ValueError, OSError) as error:
        return None, f"cached embeddings {file} are of no use, and made afresh: {' '.join(str(error).split())}"
    return rows, ""


def _write(file: Path, rows: Tensor) -> str:
    """Write the embeddings; returns why they cannot be written, or nothing."""
    try:
        write_values(file, rows.detach().cpu(), KEY)
    except (SafetensorError, OSError) as error:
        return f"cached embeddings cannot be kept in {file.parent}: {' '.join(str(error).split())}"
    return ""


def cache_of(
    folder: str | None, encoder: nn.Module, identity: Mapping[str, Any], like: Tensor, decision: Decision
) -> Cache | None:
    """The cache in a folder, for an encoder with its `identity`, pictures `like` (1,3,H,W) and an engine's decision.

    Its recipe digests everything the embeddings depend on: the encoder's identity (preprocessing, read-out,
    defences), weights and modules, the decision of the engine, the pictures' size, the release of torch, and the
    device with its number of threads. What has no name (the code of a plugin, another release of a library) shows in
    the embeddings of two pictures of noise, which are part of the recipe; these two passes are not counted.
    """
    if folder is None:
        return None
    device, size = like.device, like.shape[2:]
    noise = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answer: Tensor = encoder(noise.to(device))
    plain = answer.cpu().contiguous().view(torch.uint8).numpy().data
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    ingredients = {
        "encoder": identity,
        "weights": fingerprint(encoder),
        "modules": [f"{name} {type(module).__qualname__}" for name, module in encoder.named_modules()],
        "run": {key: value for key, value in decision.to_dict().items() if key != "chunk"},
        "answer": [str(answer.dtype), list(answer.shape), hashlib.sha256(plain).hexdigest()],
        "size": list(size),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
    }
    recipe = hashlib.sha256(json.dumps(ingredients, sort_keys=True, default=str).encode()).hexdigest()
    return Cache(Path(folder), recipe, answer.shape[1])

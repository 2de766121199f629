"""The embeddings of a gallery, a few pictures at a time, and where they are kept for the next run.

A network's last bits depend on the pictures that share a pass, so what is kept is the answer to a whole pass: a file
for each block of pictures, named after everything that makes it what it is. What is read back has the bits that the
encoder would give again. The size of a pass is the engine's chunk, up to `BLOCK`: a smaller chunk than before reads
nothing, so where the engine measures, repeat its decision (`engine.reuse`).
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from attacks.data.gallery import Gallery
from attacks.encoders.engine import Decision
from attacks.encoders.tree import Encoder
from attacks.encoders.weights import fingerprint
from attacks.eot.batching import in_parts
from attacks.evaluation.classes import Classes
from attacks.runtime.files import write_bytes
from attacks.schema.validate import Run

#: The most pictures of a block: few enough for any encoder, and the same whatever chunk the engine has measured.
BLOCK = Decision().chunk
#: Of the files: another number where their content changes its meaning.
FORMAT = 1


@dataclass(frozen=True)
class Cache:
    """A folder of embeddings; the sha256 of all but the pictures that they depend on, and how long they are."""

    folder: Path
    recipe: str
    width: int


class Embedded(NamedTuple):
    """The gallery's embeddings (G,D) in the order of its rows, how many pictures went through the encoder for them
    and how many were read from the cache, and notes on files there that were of no use."""

    rows: Tensor
    passed: int
    cached: int
    notes: tuple[str, ...]


@torch.no_grad()
def embedded(
    gallery: Gallery | Classes,
    encoder: Encoder,
    device: torch.device,
    chunk: int,
    cache: Cache | None = None,
    *,
    keep: bool = True,
) -> Embedded:
    """The embeddings of a gallery on `device`; at most `chunk` pictures are in memory at a time. Classes have
    theirs already.

    Args:
        keep: whether to write to the cache. Of several processes one does, so what it counts is its own.
    """
    if isinstance(gallery, Classes):
        return Embedded(gallery.rows.to(device), 0, 0, ())
    parts: list[Tensor] = []
    counts, notes = {True: 0, False: 0}, []
    for shelf in gallery.shelves:
        for rows in _blocks(len(shelf), min(chunk, BLOCK)):
            block = _Block(cache, [shelf.digests[row] for row in rows])
            found, trouble = block.read()
            counts[found is None] += len(rows)
            if found is None:
                parts_of = [part for _, part in in_parts(encoder, shelf.read(rows).to(device), len(rows))]
                found = torch.cat(parts_of)
                # What had to be halved for lack of memory has not the bits of the whole pass.
                trouble = (block.write(found) if keep and len(parts_of) == 1 else "") or trouble
            notes += [trouble] if trouble else []
            parts.append(found.to(device))
    return Embedded(torch.cat(parts)[gallery.order.to(device)], counts[True], counts[False], tuple(notes))


def _blocks(length: int, size: int) -> Iterator[range]:
    return (range(start, min(start + size, length)) for start in range(0, length, size))


class _Block:
    """The file of some pictures' embeddings."""

    def __init__(self, cache: Cache | None, digests: list[str]) -> None:
        self.shape: tuple[int, int] | None = None
        self.path: Path | None = None
        if cache is not None:
            self.shape = (len(digests), cache.width)
            self.key = hashlib.sha256(json.dumps([FORMAT, cache.recipe, digests]).encode()).hexdigest()
            self.path = cache.folder / f"{self.key}.safetensors"

    def read(self) -> tuple[Tensor | None, str]:
        """The embeddings (n,D), or None and what is wrong with the file, if there is one."""
        if self.path is None or not self.path.exists():
            return None, ""
        try:
            with safe_open(self.path, framework="pt") as file:
                said, found = file.metadata() or {}, file.get_tensor("embeddings")
        except (SafetensorError, OSError, ValueError) as error:
            return None, self._trouble(" ".join(str(error).split()))
        if said.get("key") != self.key:
            return None, self._trouble("it is of other pictures or another encoder")
        if tuple(found.shape) != self.shape or not found.is_floating_point():
            return None, self._trouble(f"it holds {found.dtype} of shape {tuple(found.shape)}, not {self.shape}")
        if said.get("sha256") != _sha256(found) or found.itemsize < 2 or not bool(found.isfinite().all()):
            return None, self._trouble("its numbers are not those that were written")
        return found, ""

    def write(self, found: Tensor) -> str:
        """Keep the embeddings; what is wrong with the folder, if they cannot be kept."""
        if self.path is None:
            return ""
        plain = found.detach().cpu().contiguous()
        try:
            write_bytes(self.path, save({"embeddings": plain}, {"key": self.key, "sha256": _sha256(plain)}))
        except (SafetensorError, OSError) as error:
            return f"cached embeddings cannot be kept in {self.path.parent}: {' '.join(str(error).split())}"
        return ""

    def _trouble(self, why: str) -> str:
        assert self.path is not None
        return f"cached embeddings {self.path} are of no use, and made afresh: {why}"


def _sha256(tensor: Tensor) -> str:
    plain = tensor.contiguous().flatten().view(torch.uint8).numpy().data if tensor.numel() else b""
    return hashlib.sha256(plain).hexdigest()


def cache_of(run: Run, encoder: nn.Module, decision: Decision, device: torch.device) -> Cache | None:
    """The cache that a run asks for, of its encoder run in one way; None if it asks for none.

    Embeddings are kept for everything that makes them what they are. What can be named is: the encoder's
    configuration, its weights, its modules with their settings (preprocessing, read-out, defences), how it is run,
    and on what. What cannot (the code of a plugin, a library's next release) shows in its answer to two pictures of
    noise, of which the digest is one more ingredient; these two passes are not counted.
    """
    folder, size = getattr(run.data, "cache", None), run.data.size
    if folder is None:
        return None
    noise = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answer: Tensor = encoder(noise.to(device))
    said = {
        "node": asdict(run.encoder),
        "weights": fingerprint(encoder),
        "modules": [f"{name} {_words(module)}" for name, module in encoder.named_modules()],
        "run": {key: value for key, value in decision.to_dict().items() if key != "chunk"},
        "answer": [str(answer.dtype), list(answer.shape), _sha256(answer.cpu())],
        "size": size,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
    }
    recipe = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    return Cache(Path(folder), recipe, answer.shape[1])


def _processor() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"


def _words(module: nn.Module) -> str:
    """A module's class, and those of its settings that are plain values or records of them."""
    kind = type(module)
    plain = {
        name: repr(value)
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and (isinstance(value, bool | int | float | str | tuple) or is_dataclass(value))
    }
    return re.sub(" at 0x[0-9a-f]+", "", f"{kind.__module__}.{kind.__qualname__} {plain}")

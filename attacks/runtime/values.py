"""Results and states as files of plain data: tensors in safetensors, everything else as JSON in its header.

A file holds its own name, the key of its run, and the SHA-256 of all its other bytes, so that one that is damaged, or
copied over another, is noticed. It names a type by its tag (`@stored`), so reading a file can create no other type.
Tensors come back with the same bits and the same order of axes in memory: sums over other strides round differently.
"""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attacks.runtime.files import write_bytes

#: Format of the files; raise it when the meaning of their content changes.
FORMAT = "7"
#: The header entry that holds everything but the tensors, behind the digest of the file with zeros in its place.
HEADER = "viewproof"
ZEROS = "0" * 64
CPU = torch.device("cpu")
#: Tag -> type that a file may contain.
TYPES: dict[str, type] = {"list": list, "tuple": tuple}
Type = TypeVar("Type", bound=type)
#: What a reader of a file raises where the file is not what a run writes.
UNREADABLE = (ValueError, OSError, KeyError, IndexError, csv.Error, SafetensorError, RecursionError)


class Damaged(ValueError):
    """A file does not hold what was written under its name."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """For a block that reads a file: raise Damaged with its name where it cannot be read."""
    try:
        yield
    except Damaged:
        raise
    except UNREADABLE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise Damaged(f"{name}: it cannot be read ({reason})") from error


def stored(tag: str) -> Callable[[Type], Type]:
    """Class decorator: files may contain this NamedTuple or dataclass, under `tag`. The tag outlives moves and
    renames of the class. Raises ValueError for a tag in use."""

    def register(cls: Type) -> Type:
        if tag in TYPES or tag in ("dict", "tensor"):
            raise ValueError(f"`stored`: the tag {tag!r} of {cls.__qualname__} is in use; choose another")
        TYPES[tag] = cls
        return cls

    return register


def write_values(path: Path, value: Any, key: str) -> None:
    """Write a value atomically: numbers, strings, None, tensors, and lists, tuples, dicts and `@stored` types of
    these; TypeError for others. `key` is the fingerprint of the run, which `load_values` compares."""
    tensors: dict[str, Tensor] = {}
    header = {"format": FORMAT, "key": key, "name": path.name, "value": _encode(value, tensors, {})}
    write_bytes(path, file_bytes(tensors, json.dumps(header)))


def file_bytes(tensors: dict[str, Tensor], header: str) -> bytes:
    """A file of tensors and a header, with its digest."""
    data = save(tensors, {HEADER: ZEROS + header})  # one entry: safetensors does not order several
    at = _place(data)
    return b"".join([data[:at], _digest(data, at).encode(), data[at + len(ZEROS) :]])


def check_value(path: Path) -> dict[str, Any]:
    """The header of a file. Raises Damaged where it has other bytes or another name than were written."""
    data = path.read_bytes()
    try:
        at = _place(data)
        if data[at : at + len(ZEROS)] != _digest(data, at).encode():
            raise ValueError("its bytes are not those that were written")
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][HEADER][len(ZEROS) :])
        if header["name"] != path.name:
            raise ValueError(f"it was written as {header['name']}")
        return dict(header)
    except Exception as error:  # anybody may have written the file
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from None


def load_values(path: Path, key: str, device: torch.device = CPU) -> Any:
    """Read a value back, to `device` if not of the CPU. Raises Damaged, and ValueError for another key or version."""
    header = check_value(path)
    if header.get("format") != FORMAT or header.get("key") != key:
        raise ValueError(f"`resume`: {path} belongs to another run or another version; start a new run")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _decode(header["value"], tensors, device)
    except Exception as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())}") from None


def _place(data: bytes) -> int:
    """Where the digest stands in a file. Raises ValueError where there is none."""
    start = f'"{HEADER}":"'.encode()
    return data.index(start) + len(start)


def _digest(data: bytes, at: int) -> str:
    """SHA-256 of a file with zeros in place of its digest, which stands at `at`."""
    digest = hashlib.sha256(memoryview(data)[:at])
    digest.update(ZEROS.encode())
    digest.update(memoryview(data)[at + len(ZEROS) :])
    return digest.hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], entries: dict[int, Any]) -> Any:
    """JSON for a value; its tensors go to `tensors`. `entries` by id: a tensor that occurs twice is stored once."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        if id(value) not in entries:
            name, axes = str(len(tensors)), list(range(value.dim()))
            order = sorted(axes, key=value.stride, reverse=True)
            if not value.is_contiguous() and value.permute(order).is_contiguous():
                axes = order
            tensors[name] = value.detach().permute(axes).clone(memory_format=torch.contiguous_format).cpu()
            entries[id(value)] = {"tensor": [name, axes, value.device.type == "cpu"]}
        return entries[id(value)]
    if type(value) is dict:
        return {"dict": [[_encode(part, tensors, entries) for part in item] for item in value.items()]}
    tag = next((tag for tag, cls in TYPES.items() if cls is type(value)), None)
    if tag is None:
        raise TypeError(f"{type(value).__name__} is not a `@stored` type")
    fields = [getattr(value, f.name) for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else value
    return {tag: [_encode(part, tensors, entries) for part in fields]}


def _decode(entry: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The inverse of `_encode`."""
    if not isinstance(entry, dict):
        if isinstance(entry, list):
            raise ValueError("its content is malformed")
        return entry
    ((tag, content),) = entry.items()
    if tag == "tensor":
        name, axes, on_cpu = content
        tensor = tensors[name].permute([axes.index(axis) for axis in range(len(axes))])
        return tensor if on_cpu else tensor.to(device)
    if tag == "dict":
        return {_decode(name, tensors, device): _decode(part, tensors, device) for name, part in content}
    fields = [_decode(part, tensors, device) for part in content]
    return TYPES[tag](fields) if tag in ("list", "tuple") else TYPES[tag](*fields)

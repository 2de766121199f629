"""Values of ours as files that hold data and nothing else: tensors in safetensors, the rest as JSON in its header.

Which types a file may name is said here in the code (`@kept`), so a stranger's file can only make values of these.
What is read back has the bits of what was written, strides included: a sum over other strides rounds otherwise.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attacks.runtime.files import write_bytes

#: Of the files: another number where their content changes its meaning.
FORMAT = "2"
#: The entry of its header that holds all but the tensors.
ABOUT = "viewproof"
#: The types that a file may name.
TYPES: dict[str, type] = {}
CPU = torch.device("cpu")

Kept = TypeVar("Kept", bound=type)


def kept(made: Kept) -> Kept:
    """Let files name this NamedTuple or dataclass."""
    TYPES[_name(made)] = made
    return made


def write(path: Path, value: Any, key: str) -> None:
    """Write a value, whole or not at all.

    Args:
        value: of numbers, texts, tensors, and tuples, lists, mappings and `@kept` types of these.
        key: what it belongs to; `read` asks for it.
    """
    tensors: dict[str, Tensor] = {}
    about = {"format": FORMAT, "key": key, "value": _folded(value, tensors, {})}
    write_bytes(path, save(tensors, {ABOUT: json.dumps(about)}))  # one entry: several have no order


def read(path: Path, key: str, device: torch.device = CPU) -> Any:
    """A value as it was written; what was on another device than the CPU comes to `device`.

    Raises:
        ValueError: a file that is none of these, or that belongs to another key.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            if about.get("format") != FORMAT or about.get("key") != key:
                raise ValueError("it belongs to another run, another encoder or another version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _unfolded(about["value"], tensors, device)
    except (
        SafetensorError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        RuntimeError,
    ) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`resume`: {path} cannot be taken up: {reason}; remove it to do its part again") from None


def _name(made: type) -> str:
    return f"{made.__module__}.{made.__qualname__}"


def _folded(value: Any, tensors: dict[str, Tensor], known: dict[int, Any]) -> Any:
    """A value as JSON, its tensors apart; one that is there twice is written once, as is `known` by its identity."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        if id(value) in known:
            return known[id(value)]
        name = str(len(tensors))
        dense = value.detach().contiguous()
        tensors[name] = dense.cpu().clone() if dense.data_ptr() == value.data_ptr() else dense.cpu()
        strides = list(value.stride()) if not value.is_contiguous() and _dense(value.shape, value.stride()) else None
        known[id(value)] = {"tensor": name, "strides": strides, "cpu": value.device.type == "cpu"}
        return known[id(value)]
    if type(value) in (list, tuple):
        return {type(value).__name__: [_folded(each, tensors, known) for each in value]}
    if type(value) is dict:
        return {
            "dict": [[_folded(name, tensors, known), _folded(each, tensors, known)] for name, each in value.items()]
        }
    if TYPES.get(_name(type(value))) is not type(value):
        raise TypeError(f"{_name(type(value))} is not marked as `@kept`")
    return {
        "type": _name(type(value)),
        "fields": {name: _folded(each, tensors, known) for name, each in _fields(value)},
    }


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor so laid out has each place of its memory once."""
    size = 1
    for stride, count in sorted(zip(strides, shape, strict=True)):
        if count > 1 and stride != size:
            return False
        size *= count
    return True


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
    return iter(value._asdict().items())


def _unfolded(said: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    if not isinstance(said, dict):
        if isinstance(said, list):
            raise ValueError("its content is not understood")
        return said
    if "tensor" in said:
        tensor = tensors[said["tensor"]]
        if said["strides"] is not None:
            if not _dense(tensor.shape, said["strides"]):
                raise ValueError("its strides are out of range")
            tensor = torch.empty_strided(tensor.shape, said["strides"], dtype=tensor.dtype).copy_(tensor)
        return tensor if said["cpu"] else tensor.to(device)
    if "type" in said:
        fields = {name: _unfolded(each, tensors, device) for name, each in said["fields"].items()}
        return TYPES[said["type"]](**fields)
    if "dict" in said:
        return {_unfolded(a, tensors, device): _unfolded(b, tensors, device) for a, b in said["dict"]}
    (kind,) = said
    return {"list": list, "tuple": tuple}[kind](_unfolded(each, tensors, device) for each in said[kind])

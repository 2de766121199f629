"""Results and states as files of plain data: tensors in safetensors, everything else as JSON in its header.

A file names a type by the tag that the code gives it (`@stored`), so reading a file can create no other type. Tensors
come back with the same bits and the same order of axes in memory: a sum over other strides rounds differently.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from attacks.runtime.files import write_bytes
from attacks.runtime.stored import TYPES

#: Format of the files; raise it when the meaning of their content changes.
FORMAT = "4"
#: The header entry that holds everything but the tensors.
HEADER = "viewproof"
CPU = torch.device("cpu")


def write(path: Path, value: Any, key: str) -> None:
    """Write a value atomically.

    Args:
        value: numbers, strings, None, tensors, and lists, tuples, dicts and `@stored` types of these.
        key: fingerprint of the run it belongs to; `read` compares it.

    Raises:
        TypeError: a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    header = {"format": FORMAT, "key": key, "value": _encode(value, tensors, {})}
    write_bytes(path, save(tensors, {HEADER: json.dumps(header)}))  # one entry: safetensors does not order several


def read(path: Path, key: str, device: torch.device = CPU) -> Any:
    """Read a value back; tensors that were not on the CPU are moved to `device`.

    Raises:
        ValueError: not such a file, or one that belongs to another key.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
            if header.get("format") != FORMAT or header.get("key") != key:
                raise ValueError("it belongs to another run, another encoder or another version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _decode(header["value"], tensors, device)
    except Exception as error:  # anybody may have written the file
        reason = " ".join(str(error).split())
        raise ValueError(f"`resume`: cannot use {path}: {reason}; remove it to repeat its part of the run") from None


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
        return {"dict": [[_encode(each, tensors, entries) for each in item] for item in value.items()]}
    tag = next((tag for tag, cls in TYPES.items() if cls is type(value)), None)
    if tag is None:
        raise TypeError(f"{type(value).__name__} is not a `@stored` type")
    fields = [getattr(value, f.name) for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else value
    return {tag: [_encode(each, tensors, entries) for each in fields]}


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
        return {_decode(name, tensors, device): _decode(each, tensors, device) for name, each in content}
    fields = [_decode(each, tensors, device) for each in content]
    return TYPES[tag](fields) if tag in ("list", "tuple") else TYPES[tag](*fields)

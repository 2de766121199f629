"""A device that does not exist: tensors that claim to be on it are computed on the CPU.

Within `Waits` an operator on tensors of the host and of the device together is an error, as on a GPU, and all that
the host would wait for is counted. So a computer without a GPU shows where a GPU would have to wait.
"""

import collections
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from attacks.encoders import contract

#: Its name must be one that torch knows, and that autograd runs on without a driver.
DEVICE, HOST = torch.device("meta"), torch.device("cpu")
#: Operators whose result, or the shape of it, the host must know.
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "bincount"}
INDEXING = {"index", "index_put_", "index_put", "_index_put_impl_"}
ROOT = Path(__file__).parents[2]


class Pretended(torch.Tensor):
    """A tensor of the device; `inner` has its values."""

    @staticmethod
    def __new__(cls, inner):
        options = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        result = torch.Tensor._make_wrapper_subclass(cls, inner.size(), device=DEVICE, **options)
        result.inner = inner
        return result

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} outside of `Waits`")


def on_device(module):
    """The module with its parameters, which need no gradient, and buffers on the device. It counts as checked (see
    `attacks.encoders.contract`): what is counted are the waits of an attack, not those of its door."""
    for modules in contract._honest.values():
        modules.add(module)
    for layer in module.modules():
        for name, value in [*layer._parameters.items()]:
            if value is not None:
                layer._parameters[name] = nn.Parameter(Pretended(value.detach()), requires_grad=False)
        for name, value in [*layer._buffers.items()]:
            if value is not None:
                layer._buffers[name] = Pretended(value)
    return module


class Waits(TorchDispatchMode):
    """The mode in which `Pretended` tensors compute; `counts` are the waits by operator and line of the project."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func._schema.name.split("::")[1]
        tensors = tree_leaves((args, kwargs))
        tensors = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        device_flags = [isinstance(tensor, Pretended) for tensor in tensors]
        self._check(name, args, tensors, device_flags)
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        arguments = kwargs | ({"device": HOST} if target == DEVICE else {})
        plain, options = tree_map_only(Pretended, lambda tensor: tensor.inner, (args, arguments))
        if name == "_to_copy" and target is not None:
            if (target == DEVICE) != device_flags[0] and not (target == DEVICE and kwargs.get("non_blocking")):
                self._count("upload" if target == DEVICE else "download")
            result = func(*plain, **options)
            return Pretended(result) if target == DEVICE else result
        result = func(*plain, **options)
        if func._schema.is_mutable and any(device_flags):
            return args[0]
        return tree_map_only(torch.Tensor, Pretended, result) if any(device_flags) or target == DEVICE else result

    def _check(self, name, args, tensors, device_flags):
        if any(tensor.device == DEVICE and not flag for tensor, flag in zip(tensors, device_flags, strict=True)):
            raise RuntimeError(f"{name}: torch.tensor(..., device=...) waits; use `uploaded` or `constants`")
        if not any(device_flags):
            return
        if name in INDEXING and not device_flags[0]:
            raise RuntimeError(f"{name}: a tensor on the host is indexed by one on the device")
        if name == "copy_" and len(set(device_flags)) == 2:
            self._count("copy")
        elif name in INDEXING:
            places = [tensor for tensor in tree_leaves(args[1]) if isinstance(tensor, torch.Tensor)]
            if any(tensor.dtype == torch.bool or not isinstance(tensor, Pretended) for tensor in places):
                self._count(name)
        elif not all(flag or not tensor.dim() for tensor, flag in zip(tensors, device_flags, strict=True)):
            raise RuntimeError(f"{name}: some tensors are on the host, others on the device: {tensors}")
        elif name in WAITS:
            self._count(name)

    def _count(self, kind):
        ours = tuple(f"{ROOT / room}/" for room in ("attacks", "transforms"))
        lines = [tensor for tensor in traceback.extract_stack() if tensor.filename.startswith(ours)][-1:]
        self.counts[kind, *(f"{Path(tensor.filename).relative_to(ROOT)}:{tensor.lineno}" for tensor in lines)] += 1

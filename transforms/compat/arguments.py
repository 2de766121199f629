"""Arguments of the drop-ins: tensors, arrays, numbers and lists of any of these, all of them differentiable."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transforms.devices import wide_dtype

Numbers = Any  # a number, a tensor, a NumPy array, or lists of these to any depth


def tensor_of(values: Numbers, name: str, images: Tensor) -> Tensor:
    """`values`, lists of tensors too, in float64 (where there is one) on the device of `images`, with their graph.
    Raises ValueError for anything but numbers, and for rows of different lengths."""
    if isinstance(values, list | tuple):
        try:
            return torch.stack([tensor_of(value, name, images) for value in values])
        except RuntimeError:
            raise ValueError(f"`{name}` must hold numbers in rows of one length; got {values!r}") from None
    try:
        return torch.as_tensor(values, dtype=wide_dtype(images), device=images.device)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"`{name}` must hold numbers; got {values!r}") from None


def number_of(value: Numbers, name: str, images: Tensor) -> Tensor:
    """One number for all images or one each, (1,) or (N,); ValueError on anything else, or what is not finite."""
    number = tensor_of(value, name, images)
    if number.dim() > 1:
        raise ValueError(f"`{name}` must be a number, or one per image (N,); got shape {tuple(number.shape)}")
    return _finite(number, name).reshape(-1)


def pair_of(values: Numbers, name: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers (x, y), each (1,) or (N,): of a pair of numbers or of (N,) tensors, of (2,), or of (N,2)."""
    if isinstance(values, list | tuple) and len(values) == 2 and all(_is_vector(value) for value in values):
        return number_of(values[0], name, images), number_of(values[1], name, images)
    pairs = tensor_of(values, name, images)
    if pairs.shape[-1:] != (2,) or pairs.dim() > 2:
        raise ValueError(f"`{name}` must be (x, y), or one pair per image (N,2); got shape {tuple(pairs.shape)}")
    x, y = _finite(pairs, name).reshape(-1, 2).unbind(-1)
    return x, y


def _is_vector(value: Numbers) -> bool:
    return not isinstance(value, Sequence) and getattr(value, "ndim", 0) <= 1


def _finite(values: Tensor, name: str) -> Tensor:
    if not bool(values.detach().isfinite().all()):
        raise ValueError(f"`{name}` must be finite; got {values.detach().tolist()}")
    return values


def align(images: Tensor, matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Broadcast N over images and matrices (N,3,3); check that they fit."""
    counts = {len(images), len(matrix)}
    if len(counts - {1}) > 1:
        raise ValueError(f"`{name}` must hold one row, or one per image; got {len(matrix)} for {len(images)} images")
    n = max(counts)
    return images.expand(n, *images.shape[1:]), matrix.expand(n, 3, 3)

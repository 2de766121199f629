"""The form of an embedding: one floating-point tensor (N,D), or (N,T,D) with a vector for each token."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.tree import Tree


def embedding(value: Any, label: str, rows: int | None = None, *, tokens: bool = True) -> Tensor:
    """`value`, if it is an embedding. Only its type and shape are read, so no device is waited for.

    Args:
        label: its name in errors.
        rows: N; None for any number.
        tokens: whether (N,T,D) is one.

    Raises ValueError: in one line, with the change that makes it one.
    """
    fix, got = "", ""
    if not isinstance(value, Tensor):
        got, fix = _other(value)
    elif not value.is_floating_point():
        got, fix = f"{value.dtype}", "return its numbers before they are rounded or compared, as floats"
    elif value.dim() == 4:
        fix = "it is a map: pool it, answer.mean((2, 3)), or flatten it, answer.flatten(1)"
    elif value.dim() < 2:
        fix = "keep one row a picture: no .squeeze(); answer[:, None] where a picture has one number"
    elif value.dim() > 3 or (value.dim() == 3 and not tokens):
        fix = "pool its tokens, answer.mean(1) or answer[:, 0], or flatten it, answer.flatten(1)"
    elif rows is not None and len(value) != rows:
        fix = "keep one row a picture, on the first axis"
    elif not value.shape[-1]:
        fix = "it is empty"
    if not fix:
        tensor: Tensor = value
        return tensor
    shapes = "(N,D) or (N,T,D)" if tokens else "(N,D)"
    count = "a row for each picture" if rows is None else f"a row for each of {rows} pictures"
    got = got or f"shape {tuple(value.shape)}"
    raise ValueError(f"{label} must be one floating-point tensor {shapes}, {count}; got {got}: {fix}")


def embeddings(answer: Any, label: str, rows: int) -> Tree:
    """`embedding` of every part of a dict (`Layers`) or a tuple (`Ensemble`)."""
    if type(answer) is dict and answer:
        return {name: embeddings(part, f"{label}, {name!r}", rows) for name, part in answer.items()}
    if type(answer) is tuple and answer:
        return tuple(embeddings(part, f"{label}, part {i}", rows) for i, part in enumerate(answer))
    return embedding(answer, label, rows)


def _other(value: Any) -> tuple[str, str]:
    """(description, fix) of an answer that is no tensor."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        first = next((name for name, part in value.items() if isinstance(part, Tensor)), "embedding")
        fix = f"return its embedding alone, such as answer[{first!r}]; `Each` compares layers"
        return f"a {kind} of {', '.join(map(str, value))}", fix
    if isinstance(value, tuple | list):
        fix = "return its embedding alone, such as answer[0]; `Members` compares encoders"
        return f"a {kind} of {len(value)}", fix
    if hasattr(value, "__array__"):
        return f"a NumPy {kind}", "compute in torch, for a gradient, or ask it as a black box (docs/black_box.md)"
    tensors = [name for name, part in getattr(value, "__dict__", {}).items() if torch.is_tensor(part)]
    return f"a {kind}", f"return its embedding alone{f', such as answer.{tensors[0]}' if tensors else ''}"

"""What is inside an encoder: every layer by name, with the shape of its answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.encoders.layers import OUTPUT, named_layers


class Visit(NamedTuple):
    """What a layer did in one pass.

    Attributes:
        name: as `named_layers` has it, or "output".
        kind: its class.
        calls: how often it was called.
        shape: of its last answer, of the first tensor if there were several; None where there was none.
        answer: what it answered, if it was not one tensor: "a dict", "2 parts".
        order: places in time, by the end of the last call.
        same: the layer that gave this very tensor first; a Sequential answers with that of its last layer.
        features: whether the answer has a row of numbers for each picture, as features must.
    """

    name: str
    kind: str
    calls: int = 0
    shape: tuple[int, ...] | None = None
    answer: str | None = None
    order: int = -1
    same: str | None = None
    features: bool = False


@torch.no_grad()
def visits(encoder: nn.Module, images: Tensor) -> list[Visit]:
    """One pass of (N,3,H,W), layer by layer, in the order of their names; the encoder's own answer comes last.

    The answers are held until the pass is over: mind the memory, one picture is enough.
    """
    layers = named_layers(encoder)
    found = {name: Visit(name, type(layer).__name__) for name, layer in layers.items()}
    found[OUTPUT] = Visit(OUTPUT, type(encoder).__name__)
    ends: dict[str, tuple[Tensor, int]] = {}  # what each has answered; a change in place makes it another version
    time = 0

    def end(name: str, answer: Any) -> None:
        nonlocal time
        time += 1
        before = found[name]
        first = answer[0] if isinstance(answer, tuple | list) and answer else answer
        found[name] = before._replace(calls=before.calls + 1, answer=_said(answer), order=time)
        if isinstance(first, Tensor):
            state = first, first._version
            twins = (other for other, (tensor, version) in ends.items() if tensor is first and version == state[1])
            rows = first.dim() > 1 and len(first) == len(images) and first.is_floating_point()
            found[name] = found[name]._replace(shape=tuple(first.shape), same=next(twins, None), features=rows)
            ends[name] = state

    handles = [
        layer.register_forward_hook(lambda _module, _inputs, answer, name=name: end(name, answer))
        for name, layer in layers.items()
    ]
    try:
        end(OUTPUT, encoder(images))
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def layer_shapes(encoder: nn.Module, images: Tensor) -> dict[str, tuple[int, ...]]:
    """{layer: the shape of its answer to images (N,3,H,W)}, in the order of names, and "output" for the encoder's own
    answer. Layers that took no part, or answered with something else than tensors, are left out."""
    return {visit.name: visit.shape for visit in visits(encoder, images) if visit.shape is not None}


def layer_listing(encoder: nn.Module, image: Tensor) -> str:
    """The encoder as it prints itself, and a line for every layer: name, class, answer to the picture (1,3,H,W)."""
    rows = [(visit.name, visit.kind, _words(visit)) for visit in visits(encoder, image)]
    size = f"{image.shape[3]}x{image.shape[2]}"
    rows = [("layer", "class", f"answer to one picture of {size}"), *rows]
    wide, wider = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
    return "\n".join([repr(encoder), "", *(f"{name:<{wide}}{kind:<{wider}}{words}" for name, kind, words in rows)])


def _words(visit: Visit) -> str:
    if not visit.calls:
        return "was not called"
    said = [] if visit.shape is None else [f"({','.join(map(str, visit.shape))})"]
    if visit.answer is not None:
        said.append(visit.answer if visit.shape is None else f"the first of {visit.answer}")
    if visit.calls > 1:
        said.append(f"the last of {visit.calls} calls")
    if not visit.features:
        said.append("no row for each picture, so no features")
    return ", ".join(said)


def _said(answer: Any) -> str | None:
    if isinstance(answer, Tensor):
        return None
    return f"{len(answer)} parts" if isinstance(answer, tuple | list) else f"a {type(answer).__name__}"

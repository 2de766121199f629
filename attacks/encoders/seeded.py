"""Random numbers that are a function of the view: what a network draws, it draws row by row from the view's own seed.

torch's generators hand out one stream of numbers in the order in which they are asked for, so a mask would depend on
the rest of the batch. Here the operators that draw are caught below autograd, and each row of the batch gets its
numbers from (the row's seed, the number of the call in this pass). They are made on the CPU, in float32: the same
ones on every device and in every precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transforms import stream

aten = torch.ops.aten
#: (shape, normal) -> so many numbers, uniform in [0,1) or N(0, 1).
Numbers = Callable[..., Tensor]
#: (the number of a call, shape of a picture) -> how many rows of its numbers belong to one picture.
Known = dict[tuple[int, tuple[int, ...]], int]


class Seeded(TorchDispatchMode):
    """While it is entered, every random operator draws by rows. A generator that is handed over is used as it is.

    The first axis of the numbers must be the batch: N, or a multiple where each picture has several rows in a run
    (windows, heads).

    Args:
        seeds: one for each row of the batch.
        frame: the shape of a picture.
        known: what earlier passes have shown; a number of rows that changes with the batch belongs to another axis.
    """

    def __init__(self, seeds: Sequence[float], frame: tuple[int, ...], known: Known) -> None:
        super().__init__()
        self.seeds, self.frame, self.known, self.calls = seeds, frame, known, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or _idle(func, args, kwargs):
            return func(*args, **kwargs)
        fill = FILLS.get(func.overloadpacket)
        if fill is None:
            raise ValueError(
                f"`encoder.stochastic`: nobody here knows how to draw {func} row by row; known are "
                f"{', '.join(str(known) for known in FILLS)}: write the layer with one of these"
            )
        call, self.calls = self.calls, self.calls + 1

        def numbers(shape: Sequence[int], normal: bool = False) -> Tensor:
            return self._numbers(func, call, tuple(shape), normal)

        return fill(numbers, *args, **kwargs)

    def _numbers(self, func: Any, call: int, shape: tuple[int, ...], normal: bool) -> Tensor:
        rows = len(self.seeds)
        each, rest = divmod(shape[0], rows) if shape else (0, 1)
        if rest or not each or self.known.setdefault((call, self.frame), each) != each:
            raise ValueError(
                f"`encoder.stochastic`: {func} draws numbers of shape {shape} for {rows} views, whose first axis is "
                "not the batch, so no view has numbers of its own: drop by rows (batch first; StochasticDepth with "
                "mode row)"
            )
        draw = torch.randn if normal else torch.rand
        # torch seeds its CPU generator with 32 bits and drops the others, so the seed is hashed into those.
        keys = [stream(0, "encoder", seed, call) % 2**32 for seed in self.seeds]
        own, wide = (each, *shape[1:]), torch.float32
        found = [draw(own, generator=torch.Generator().manual_seed(k), dtype=wide, device="cpu") for k in keys]
        return torch.cat(found)


def _idle(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator that can draw does not: it has a generator of its own, or nothing to drop."""
    if kwargs.get("generator") is not None:
        return True
    places = {argument.name: i for i, argument in enumerate(func._schema.arguments)}

    def given(name: str) -> Any:
        i = places[name]
        return kwargs.get(name, args[i] if i < len(args) else func._schema.arguments[i].default_value)

    return any(name in places and given(name) in (0, False) for name in ("dropout_p", "train", "training"))


def _dropout(numbers: Numbers, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    keep = (numbers(x.shape) < 1 - p).to(x.device)
    return x * keep.to(x.dtype) * (1 / (1 - p) if p < 1 else 0.0), keep


def _bernoulli_(numbers: Numbers, x: Tensor, p: float | Tensor = 0.5, **_: Any) -> Tensor:
    return x.copy_(numbers(x.shape).to(x.device) < p)


def _bernoulli(numbers: Numbers, x: Tensor, p: float | None = None, **_: Any) -> Tensor:
    return (numbers(x.shape).to(x.device) < (x if p is None else p)).to(x.dtype)


def _uniform_(numbers: Numbers, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return x.copy_(low + (high - low) * numbers(x.shape))


def _normal_(numbers: Numbers, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return x.copy_(mean + std * numbers(x.shape, normal=True))


def _made(normal: bool) -> Callable[..., Tensor]:
    def fill(numbers: Numbers, size: Sequence[int], **how: Any) -> Tensor:
        return torch.empty(size, dtype=how.get("dtype"), device=how.get("device")).copy_(numbers(size, normal))

    return fill


def _alike(normal: bool) -> Callable[..., Tensor]:
    def fill(numbers: Numbers, x: Tensor, **how: Any) -> Tensor:
        found = torch.empty_like(x, dtype=how.get("dtype"), device=how.get("device"))
        return found.copy_(numbers(x.shape, normal))

    return fill


#: Operator -> what it returns, from the numbers of this call and its own arguments.
FILLS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout: _dropout,
    aten.bernoulli_: _bernoulli_,
    aten.bernoulli: _bernoulli,
    aten.uniform_: _uniform_,
    aten.normal_: _normal_,
    aten.rand: _made(False),
    aten.randn: _made(True),
    aten.rand_like: _alike(False),
    aten.randn_like: _alike(True),
}

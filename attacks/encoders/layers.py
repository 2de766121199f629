"""Features from inside an encoder, layer by layer."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from attacks.encoders.engine.native_precision import NativePrecision, in_native_precision, innermost_precision
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.tree import PictureModule, check_mode, optional
from transforms.doors import checked, unchecked

#: How a layer's output becomes features: flattened, (N,D); the mean over positions (N,C,H,W) or tokens (N,T,D); the
#: first token; or every token (or position), (N,T,D).
Pool = Literal["flat", "mean", "cls", "tokens"]
#: The name of the encoder's own output among the layers.
OUTPUT = "output"
#: (a layer's name, its features) -> the features to keep.
Keep = Callable[[str, Tensor], Tensor]


def unwrap(encoder: nn.Module) -> nn.Module:
    """The encoder within this package's wrappers (`Layers`, `Features`, ...); another module unchanged."""
    while _ours(encoder) and isinstance(inner := optional(encoder, "encoder"), nn.Module):
        encoder = inner
    return encoder


def named_layers(encoder: nn.Module) -> dict[str, nn.Module]:
    """The layers by the names of the encoder's library: `layer3`, not `network.layer3`, without this package's
    wrappers. A layer with two names has both. TorchScript layers take no hooks and are left out.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Defended, named_layers
        >>> from transforms.camera import Quantise
        >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten()).eval()
        >>> named_layers(Defended(encoder, [Quantise()]))
        {'0': Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1)), '1': Flatten(start_dim=1, end_dim=-1)}
    """
    network = unwrap(encoder)
    while _ours(network) and isinstance(inner := optional(network, "network"), nn.Module):
        network = inner
    layers = network.named_modules(remove_duplicate=False)
    return {name: layer for name, layer in layers if name and not isinstance(layer, ScriptModule)}


def _ours(module: nn.Module) -> bool:
    """Whether its class belongs to this package; a library's attribute `encoder` is an ordinary layer."""
    return type(module).__module__.partition(".")[0] == __name__.partition(".")[0]


def layer_pools(texts: Sequence[str], key: str) -> dict[str, Pool]:
    """The pool of each layer, from the values of the configuration key `key`: `layer3`, or `layer3:mean`. `Layers`
    checks the pools."""
    pools: dict[str, Pool] = {}
    for text in texts:
        name, _, pool = text.partition(":")
        if name in pools:
            raise ValueError(f"`{key}` may name a layer once; got {name} twice")
        pools[name] = pool or "flat"  # type: ignore[assignment]
    return pools


@contextmanager
def key_in_errors(key: str) -> Iterator[None]:
    """Rename `layers` in errors to the configuration key `key`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("`layers`", f"`{key}`", 1)) from None


class Layers(PictureModule):
    """The features of named layers: (N,3,H,W) -> {layer: (N,D) or (N,T,D)}, with the encoder's own output under
    "output", from one pass.

    Hooks are registered here, and removed by `close` or at the end of a `with`. Between calls they store nothing, so
    the encoder can be used by itself. A deep copy has hooks of its own.

    Of an encoder in one precision the features of a layer with one output tensor, unless pooled by mean or reduced by
    `keep`, are what the encoder goes on with: the gradient at that inner layer is `torch.autograd.grad(loss,
    features[name])`.

    A layer's output is copied before anything changes it in place; of a layer called more than once, the last output;
    of one with several output tensors (an attention with its weights; a tower with its tokens and what it pools), the
    first. Where a network is `packed`, its layers take the tokens of all pictures, or several views of each, in one
    row; those of a picture are its tokens here.

    Args:
        encoder: in evaluation mode; its preprocessing belongs to it.
        layers: names as `named_layers` has them, all pooled "flat"; or a mapping of names to pools.
        keep: reduces a layer's features as soon as they are computed; None keeps all. Those of many layers together
            may exceed the memory.

    Raises:
        ValueError: an unknown name (with the nearest ones) or pool, no layer, or an encoder in training mode.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Layers
        >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
        >>> with Layers(encoder, {"0": "mean", "1": "tokens"}) as layers:
        ...     {name: tuple(features.shape) for name, features in layers(torch.zeros(2, 3, 8, 8)).items()}
        {'0': (2, 4), '1': (2, 36, 4), 'output': (2, 144)}
    """

    def __init__(
        self, encoder: nn.Module, layers: Sequence[str] | Mapping[str, Pool], *, keep: Keep | None = None
    ) -> None:
        super().__init__()
        check_mode(encoder)
        encoder = in_native_precision(encoder)
        pools: dict[str, Pool] = dict(layers) if isinstance(layers, Mapping) else dict.fromkeys(layers, "flat")
        self.pools = pools
        modules = named_layers(encoder)
        _check(pools, modules)
        self.encoder, self.randomness = encoder, encoder_randomness(encoder)
        self.training = False
        is_packed = _is_packed(encoder)
        self._taps = [
            _Tap(name, pool, keep, is_packed, innermost_precision(encoder, modules[name]))
            for name, pool in pools.items()
            if name != OUTPUT
        ]
        self._output = _Tap(OUTPUT, pools[OUTPUT], keep) if OUTPUT in pools else None
        self._handles = [modules[tap.name].register_forward_hook(tap) for tap in self._taps]
        self._is_closed = False  # the compiler cannot trace the handles

    def forward(self, images: Tensor, **options: Any) -> dict[str, Tensor]:
        """(N,3,H,W) -> {layer: (N,...)}, and "output". Raises ValueError after `close`, and for a layer that did not
        run or whose output has no such pool."""
        if self._taps and self._is_closed:
            raise ValueError("these layers are closed: their hooks are gone; make new ones")
        for tap in self._taps:
            tap.rows, tap.features = len(images), None
        try:
            output = unchecked(self.encoder)(images, **options)
            features = {tap.name: tap.taken_features() for tap in self._taps}
        finally:
            for tap in self._taps:
                tap.rows = tap.features = None
        return features | {OUTPUT: output if self._output is None else self._output.reduce(output)}

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._is_closed = True

    def __enter__(self) -> "Layers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Tap:
    """A hook that stores the last output of one layer while it is open."""

    def __init__(
        self, name: str, pool: Pool, keep: Keep | None, is_packed: bool = False, native: NativePrecision | None = None
    ) -> None:
        self.name, self.pool, self.keep, self.is_packed, self.native = name, pool, keep, is_packed, native
        self.rows: int | None = None
        self.features: Tensor | None = None

    def taken_features(self) -> Tensor:
        if self.features is None:
            raise ValueError(
                f"layer `{self.name}` took no part in the pass: a branch that was not run, or a scripted encoder"
            )
        return self.features

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Tensor | None:  # noqa: ARG002
        if self.rows is None:
            return None
        answer = _first(output)
        if self.is_packed and isinstance(answer, Tensor):
            answer = _unpack(answer, self.rows)
        if not isinstance(answer, Tensor) or len(answer) != self.rows:
            kind = f"shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
            raise ValueError(f"layer `{self.name}` must answer with a row for each of {self.rows} images; got {kind}")
        self.features = self.reduce(answer if self.native is None else self.native.leave(answer))
        on_path = answer is output and self.pool != "mean" and self.keep is None and self.native is None
        return self.onward(self.features, answer) if on_path and self.features.requires_grad else None

    def onward(self, features: Tensor, answer: Tensor) -> Tensor:
        """The layer's `answer` as a function of its features, in its own layout: what the network goes on with."""
        if self.pool == "cls":
            features = torch.cat((features[:, None], answer[:, 1:]), 1)
        elif self.pool == "tokens" and answer.dim() == 4:
            features = features.transpose(1, 2)
        return torch.empty_like(answer).copy_(features.reshape(answer.shape))

    def reduce(self, answer: Tensor) -> Tensor:
        return self.pool_answer(answer) if self.keep is None else self.keep(self.name, self.pool_answer(answer))

    def pool_answer(self, answer: Tensor) -> Tensor:
        if self.pool == "flat" or (self.pool == "mean" and answer.dim() == 2):
            return answer.flatten(1).clone()
        if answer.dim() == 4:
            answer = answer.flatten(2).transpose(1, 2)  # a position is a token
            if self.pool == "cls":
                raise ValueError(f"layer `{self.name}` has places, (N,C,H,W), and no first token: pool it by mean")
        if answer.dim() != 3:
            raise ValueError(
                f"layer `{self.name}` has no tokens to pool by {self.pool}: it gives {tuple(answer.shape)}; use flat"
            )
        if self.pool == "mean":
            return answer.mean(1)
        return answer[:, 0].clone() if self.pool == "cls" else answer.clone()


def _is_packed(encoder: nn.Module) -> bool:
    """Whether the layers of the encoder's network hold the tokens of all pictures one after the other."""
    return optional(optional(unwrap(encoder), "network"), "is_packed") is True


def _first(output: Any) -> Any:
    several = tuple(output.values()) if isinstance(output, Mapping) else output
    return several[0] if isinstance(several, tuple | list) and several else several


def _unpack(answer: Tensor, rows: int) -> Tensor:
    """(N*T,D), (1,N*T,D), (N*V,T,D) or (N*V,C,H,W) -> (N,T,D); unchanged where N rows are there already, or cannot
    be."""
    if len(answer) == rows or answer.dim() not in (2, 3, 4) or answer.numel() % (rows * answer.shape[-1]):
        return answer
    tokens = answer.flatten(2).transpose(1, 2) if answer.dim() == 4 else answer
    return tokens.reshape(rows, -1, tokens.shape[-1])


def _check(pools: Mapping[str, str], modules: Mapping[str, nn.Module]) -> None:
    if not pools:
        raise ValueError("`layers` must name at least one layer")
    for name, pool in pools.items():
        if pool not in get_args(Pool):
            raise ValueError(f"`layers`: the pool of {name} must be one of {', '.join(get_args(Pool))}; got {pool!r}")
        if name != OUTPUT and name not in modules:
            raise ValueError(f"`layers`: the encoder has no {name!r}; {_hint(name, list(modules))}")


def _hint(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
    if near:
        return f"did you mean {', '.join(near)}?"
    if not names:
        return f"it has no named layers, only {OUTPUT!r}, its own answer"
    first = names if len(names) <= 8 else [*names[:8], f"... ({len(names)} in all)"]
    return f"it has {', '.join(first)}, and {OUTPUT!r}, its own answer"


class Visit(NamedTuple):
    """The calls of a layer in one pass, and its last output."""

    name: str  # as `named_layers` has it, or "output"
    kind: str  # its class
    calls: int = 0
    shape: tuple[int, ...] | None = None  # of the first tensor of several; None without one
    answer: str | None = None  # the kind of an output that is not one tensor: "a dict", "2 parts"
    order: int = -1  # the position in time of its last call's end
    alias: str | None = None  # the first layer with the same output tensor, such as the last one of a Sequential
    features: bool = False  # whether the output has a row of numbers for each picture, as features must


@torch.no_grad()
def visits(encoder: nn.Module, images: Tensor) -> list[Visit]:
    """One pass of (N,3,H,W), layer by layer, in the order of their names, the encoder's own output last.

    All outputs stay in memory until the pass is over: one picture is enough.
    """
    layers, is_packed = named_layers(encoder), _is_packed(encoder)
    records = {name: Visit(name, type(layer).__name__) for name, layer in layers.items()}
    records[OUTPUT] = Visit(OUTPUT, type(encoder).__name__)
    ends: dict[str, tuple[Tensor, int]] = {}  # outputs and their versions; a change in place raises the version
    clock = count(1)

    def end(name: str, answer: Any) -> None:
        record, first = records[name], _first(answer)
        records[name] = record._replace(calls=record.calls + 1, answer=_kind(answer), order=next(clock))
        if isinstance(first, Tensor):
            state = first, first._version
            twins = (other for other, (tensor, version) in ends.items() if tensor is first and version == state[1])
            value = _unpack(first, len(images)) if is_packed and name != OUTPUT else first
            rows = value.dim() > 1 and len(value) == len(images) and value.is_floating_point()
            records[name] = records[name]._replace(shape=tuple(value.shape), alias=next(twins, None), features=rows)
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
    return list(records.values())


def layer_shapes(encoder: nn.Module, images: Tensor) -> dict[str, tuple[int, ...]]:
    """{layer: the shape of its output for images (N,3,H,W)}, in the order of names, and "output" for the encoder's
    own output. Layers that did not run or returned no tensor are left out.

    Examples:
        >>> import torch
        >>> from attacks.encoders import layer_shapes
        >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten()).eval()
        >>> layer_shapes(encoder, torch.zeros(2, 3, 8, 8))
        {'0': (2, 4, 6, 6), '1': (2, 144), 'output': (2, 144)}
    """
    checked(images)
    return {visit.name: visit.shape for visit in visits(encoder, images) if visit.shape is not None}


def layer_listing(encoder: nn.Module, image: Tensor, *about: str) -> str:
    """The encoder's repr with lines `about` it, and a line for every layer: name, class, output for the picture
    (1,3,H,W)."""
    rows = [(visit.name, visit.kind, _text(visit)) for visit in visits(encoder, image)]
    size = f"{image.shape[3]}x{image.shape[2]}"
    rows = [("layer", "class", f"output for one picture of {size}"), *rows]
    wide, wider = (max(len(row[i]) for row in rows) + 2 for i in (0, 1))
    table = (f"{name:<{wide}}{kind:<{wider}}{text}" for name, kind, text in rows)
    return "\n".join([repr(encoder), *about, "", *table])


def _text(visit: Visit) -> str:
    if not visit.calls:
        return "was not called"
    parts = [] if visit.shape is None else [f"({','.join(map(str, visit.shape))})"]
    if visit.answer is not None:
        parts.append(visit.answer if visit.shape is None else f"the first of {visit.answer}")
    if visit.calls > 1:
        parts.append(f"the last of {visit.calls} calls")
    if not visit.features:
        parts.append("no row for each picture, so no features")
    return ", ".join(parts)


def _kind(answer: Any) -> str | None:
    if isinstance(answer, Tensor):
        return None
    return f"{len(answer)} parts" if isinstance(answer, tuple | list) else f"a {type(answer).__name__}"

"""An encoder with active dropout, as in Monte Carlo dropout (Gal & Ghahramani 2016), or with a randomised defence."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attacks.encoders.contract import grey_input, refuse_dependent
from attacks.encoders.defended import Randomised
from attacks.encoders.randomness import Seed, split_draws
from attacks.encoders.tree import Tree
from transforms import Compose
from transforms.doors import unchecked
from transforms.draws import stream

aten = torch.ops.aten
#: (shape, normal) -> so many numbers, uniform in [0,1) or N(0, 1).
Numbers = Callable[..., Tensor]
#: (the number of a call, shape of a picture) -> how many rows of its numbers belong to one picture.
RowCounts = dict[tuple[int, tuple[int, ...]], int]


class Seeded(TorchDispatchMode):
    """Within this mode every random operator draws row by row. Calls with a generator of their own are unchanged.

    The first axis of the numbers must be the batch: N, or a multiple where each picture has several rows in a run
    (windows, heads).

    Args:
        seeds: one for each row of the batch.
        frame: the shape of a picture.
        row_counts: rows per picture in earlier passes; a number that changes with the batch belongs to another axis.
    """

    def __init__(self, seeds: Sequence[float], frame: tuple[int, ...], row_counts: RowCounts) -> None:
        super().__init__()
        self.seeds, self.frame, self.row_counts, self.calls = seeds, frame, row_counts, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or _idle(func, args, kwargs):
            return func(*args, **kwargs)
        fill = FILLS.get(func.overloadpacket)
        if fill is None:
            raise ValueError(
                f"`encoder.stochastic`: {func} cannot be drawn row by row; known are "
                f"{', '.join(map(str, FILLS))}: write the layer with one of these"
            )
        call, self.calls = self.calls, self.calls + 1
        return fill(partial(self._numbers, func, call), *args, **kwargs)

    def _numbers(self, func: Any, call: int, shape: Sequence[int], normal: bool = False) -> Tensor:
        rows, shape = len(self.seeds), tuple(shape)
        per_picture, rest = divmod(shape[0], rows) if shape else (0, 1)
        if rest or not per_picture or self.row_counts.setdefault((call, self.frame), per_picture) != per_picture:
            raise ValueError(
                f"`encoder.stochastic`: {func} draws numbers of shape {shape} for {rows} views, whose first axis is "
                "not the batch, so no view has numbers of its own: drop by rows (batch first; StochasticDepth with "
                "mode row)"
            )
        draw = torch.randn if normal else torch.rand
        # torch seeds its CPU generator with 32 bits and drops the others, so the seed is hashed into those.
        keys = [stream(0, "encoder", seed, call) % 2**32 for seed in self.seeds]
        size, wide = (per_picture, *shape[1:]), torch.float32
        return torch.cat(
            [draw(size, generator=torch.Generator().manual_seed(k), dtype=wide, device="cpu") for k in keys]
        )


def _idle(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a random operator draws nothing here: it has a generator of its own, or nothing to drop."""
    arguments = func._schema.arguments
    values = {argument.name: argument.default_value for argument in arguments}
    values |= {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    is_seeded = values.get("generator") is not None
    return is_seeded or any(values.get(name) in (0, False) for name in ("dropout_p", "train", "training"))


def _dropout(numbers: Numbers, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    keep = (numbers(x.shape) < 1 - p).to(x.device)
    return x * keep.to(x.dtype) * (1 / (1 - p) if p < 1 else 0.0), keep


def _empty(make: Callable[..., Tensor], like: Any, options: Mapping[str, Any]) -> Tensor:
    return make(like, dtype=options.get("dtype"), device=options.get("device"))


#: Operator -> what it returns, from the numbers of this call and its own arguments.
FILLS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout: _dropout,
    aten.bernoulli_: lambda numbers, x, p=0.5, **_: x.copy_(numbers(x.shape).to(x.device) < p),
    aten.bernoulli: lambda numbers, x, p=None, **_: (numbers(x.shape).to(x.device) < (x if p is None else p)).to(
        x.dtype
    ),
    aten.uniform_: lambda numbers, x, low=0.0, high=1.0, **_: x.copy_(low + (high - low) * numbers(x.shape)),
    aten.normal_: lambda numbers, x, mean=0.0, std=1.0, **_: x.copy_(mean + std * numbers(x.shape, True)),
    aten.rand: lambda numbers, size, **options: _empty(torch.empty, size, options).copy_(numbers(size)),
    aten.randn: lambda numbers, size, **options: _empty(torch.empty, size, options).copy_(numbers(size, True)),
    aten.rand_like: lambda numbers, x, **options: _empty(torch.empty_like, x, options).copy_(numbers(x.shape)),
    aten.randn_like: lambda numbers, x, **options: _empty(torch.empty_like, x, options).copy_(numbers(x.shape, True)),
}
#: Attributes with the dropout rate of a layer, and of an attention's weights.
_RATES = ("p", "drop_prob", "prob")
_ATTENTION_RATES = ("dropout", "dropout_p", "dropout_prob", "attention_dropout", "attn_drop", "attn_drop_p")
#: Training mode and kernels are set for the whole process, so a pass of another thread must wait. (A lock cannot be
#: copied, so no encoder can hold it.)
_ONE_PASS = threading.RLock()


class Stochastic(Randomised):
    """The encoder with its randomness: called with `draws` (N,k) in [0,1), a row for each view, dropout is active and
    a defence draws from its ranges. Without `draws` the encoder runs unchanged.

    Layers that drop are in training mode during such a pass only: dropout of any kind, stochastic depth, drop
    path and patch dropout, of torch, torchvision, timm and transformers. Norms stay in evaluation mode. The numbers
    of a view are a function of its row of `draws`, independent of the rest of the batch (see `Seeded`).

    `EOT(randomised(transforms, encoder))` includes the randomness in an attack's expectation.

    Args:
        encoder: in evaluation mode.

    Raises:
        ValueError: nothing in the encoder is random; or the draws of a layer cannot be assigned to views. That is
            tested here on two small batches, if the encoder accepts such pictures, and in every call.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Stochastic
        >>> encoder = Stochastic(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Flatten()).eval())
        >>> images, draws = torch.ones(2, 3, 8, 8), torch.tensor([[0.25], [0.75]])
        >>> torch.equal(encoder(images, draws=draws), encoder(images, draws=draws))  # a function of the draws
        True
        >>> encoder(images, draws=draws).unique().tolist(), encoder(images).unique().tolist()
        ([0.0, 2.0], [1.0])
    """

    def __init__(self, encoder: nn.Module) -> None:
        attentions = [module for module in encoder.modules() if _attention_drops(module)]
        alive = [*attentions, *(module for module in encoder.modules() if _drops(module))]
        super().__init__(encoder, Compose([Seed()] if alive else []))
        self._attentions, self._alive = attentions, alive
        self._row_counts: RowCounts = {}
        if self.randomness is None:
            raise ValueError(
                "`encoder.stochastic=true` keeps dropout or a randomised defence alive, and there is neither: no "
                "layer that drops with a rate above 0, and no range in the stages of a defence before it"
            )
        try:
            draws_by_view(self)
        except Exception as error:  # a network may reject pictures of this size with any error
            if isinstance(error, ValueError) and "`encoder.stochastic`" in str(error):
                raise

    def forward(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tree:
        dropout_draws, inner = split_draws(draws, self._draws, len(images))
        with _ONE_PASS, ExitStack() as stack:
            if dropout_draws:
                seeds = dropout_draws["draws"][:, 0].detach().double().tolist()
                stack.enter_context(self._active())
                stack.enter_context(Seeded(seeds, tuple(images.shape[1:]), self._row_counts))
            return unchecked(self.encoder)(images, **inner, **options)

    def __repr__(self) -> str:
        randomness = self.randomness
        return f"{self.encoder!r}\n  {'draws':<10} {'none' if randomness is None else ', '.join(randomness.names)}"

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Training mode for layers that drop, without fused kernels, which draw by themselves or skip dropout."""
        fast = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            torch.backends.mha.set_fastpath_enabled(False)
            if self._attentions:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            for module in self._alive:
                stack.callback(setattr, module, "training", module.training)
                module.training = True
            yield


def draws_by_view(encoder: nn.Module) -> None:
    """Run small batches with draws. Raises ValueError where an output depends on the rest of its batch."""
    refuse_dependent(
        encoder,
        grey_input(encoder),
        fix="with `encoder.stochastic`, a layer that drops has another axis first, or counts over the batch (timm's "
        "DropBlock2d); leave encoder.stochastic false",
    )


def _drops(module: nn.Module) -> bool:
    """Whether a layer is a dropout layer, by the name of its class, with a rate above 0."""
    names = [kind.__name__ for kind in type(module).__mro__]
    is_dropout = any("Drop" in name or name == "StochasticDepth" for name in names)
    return is_dropout and any(_above_zero(getattr(module, rate, None)) for rate in _RATES)


def _attention_drops(module: nn.Module) -> bool:
    """Whether an attention drops its weights; in most libraries its training mode changes nothing else."""
    is_attention = "Attention" in type(module).__name__
    return is_attention and any(_above_zero(getattr(module, rate, None)) for rate in _ATTENTION_RATES)


def _above_zero(rate: object) -> bool:
    if isinstance(rate, nn.Module):
        return _drops(rate)
    return isinstance(rate, int | float) and rate > 0

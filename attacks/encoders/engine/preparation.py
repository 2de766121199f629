"""A prepared encoder, and its fall back to float32, a state that is stored with that of the attack."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.encoders.engine.batch_norm import fold
from attacks.encoders.engine.decision import Decision
from attacks.encoders.engine.native_precision import in_native_precision, is_half
from attacks.encoders.engine.precision import low_pass, make_low, tf32_pass
from attacks.encoders.tree import Encoder, Tree, check_mode, optional
from transforms.doors import unchecked

Result = TypeVar("Result")
State = dict[str, float | int | bool]  # a step of a checkpoint holds plain numbers


class Runner:
    """Images to embeddings, in the layout and precision of a decision: `run`; after a fall back what `make_exact`
    makes, the same encoder in float32."""

    def __init__(self, run: Encoder, decision: Decision, make_exact: Callable[[], Encoder]) -> None:
        self.run, self.decision, self.make_exact = run, decision, make_exact
        self.fell_back = self.has_warned = False

    @cached_property
    def exact(self) -> Encoder:
        return self.make_exact()

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        if self.fell_back:
            return unchecked(self.exact)(images, **draws)
        if self.decision.layout == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        if self.decision.precision == "tf32":
            return tf32_pass(self.run, images, **draws)
        if self.decision.precision == "bfloat16":
            return low_pass(self.run, images, **draws)
        return unchecked(self.run)(images, **draws)


def prepare(encoder: Encoder, decision: Decision) -> Encoder:
    """The encoder under the settings of `decision`: (N,3,H,W) in [0,1] -> (N,D) in the dtype of the images.

    The encoder given is never changed: a module is copied, its weights frozen. With the settings of `Decision()` (any
    chunk) it is returned itself. Of a plain callable only layout, tf32 and bfloat16 can be set.

    Raises:
        ValueError: a setting that needs a module, a precision for which there is no layer, another precision than
            float32 for an encoder in half precision, or an encoder in training mode.
    """
    encoder, half = in_native_precision(encoder), is_half(encoder)
    if half is not None and decision.precision != "float32":
        raise ValueError(
            f"`engine.precision` must be float32 (or auto) for an encoder in {half}, which is its own precision and "
            f"stays; got {decision.precision} (encoder.precision=float32 widens its weights)"
        )
    if decision == Decision(chunk=decision.chunk):
        return encoder
    run = _module(encoder, decision) if isinstance(encoder, nn.Module) else encoder
    if run is encoder and decision.fold:
        kind = type(encoder).__name__
        raise ValueError(f"`engine.fold=true` needs an encoder that is an nn.Module; got a {kind}")
    return Runner(run, decision, lambda: prepare(encoder, decision.exact))


def _module(encoder: nn.Module, decision: Decision) -> nn.Module:
    check_mode(encoder)
    module = copy.deepcopy(encoder).requires_grad_(False)
    if decision.fold:
        fold(module)
    if decision.layout == "channels_last":
        module = module.to(memory_format=torch.channels_last)
    if decision.precision == "bfloat16" and not make_low(module):
        raise ValueError(
            "`engine.precision=bfloat16` needs a layer of nn.Conv2d or nn.Linear, and "
            f"{type(encoder).__name__} has none; use engine.precision=float32"
        )
    return module


def find_runner(encoder: object) -> Runner | None:
    """The `Runner` within wrappers that only count or select (see `attacks.experiment.arms.Counted`); None where an
    encoder runs unchanged."""
    while not isinstance(encoder, Runner):
        if encoder is None or isinstance(encoder, nn.Module):
            return None
        inner = optional(encoder, "encoder") or optional(encoder, "__wrapped__")
        encoder = encoder.func if isinstance(encoder, partial) else inner
    return encoder


def engine_state(encoder: object) -> State:
    """An encoder's state: whether it has fallen back to float32. Empty for an encoder without state."""
    runner = find_runner(encoder)
    return {} if runner is None else {"fell_back": runner.fell_back}


def engine_restore(encoder: object, state: Mapping[str, float | int | bool]) -> None:
    """Restore an `engine_state` of the same encoder under the same decision. Raises ValueError for another."""
    runner, names = find_runner(encoder), engine_state(encoder)
    if set(state) != set(names):
        raise ValueError(
            f"`engine`: the state holds {', '.join(state) or 'nothing'}, and this encoder has "
            f"{', '.join(names) or 'nothing'}; it belongs to another decision"
        )
    if runner is not None:
        runner.fell_back = bool(state["fell_back"])


def engine_reset(encoder: object) -> None:
    """The state before the first pass, so that the results of a batch do not depend on earlier batches."""
    engine_restore(encoder, dict.fromkeys(engine_state(encoder), False))


@contextmanager
def in_float32(encoder: object) -> Iterator[None]:
    """An encoder as after a fall back."""
    state = engine_state(encoder)
    engine_restore(encoder, dict.fromkeys(state, True))
    try:
        yield
    finally:
        engine_restore(encoder, state)


def fall_back(encoder: object, run: Callable[[], Result], finite: Callable[[Result], bool]) -> Result | None:
    """What `run` gives in float32, where it is not finite in the lower precision of an encoder: the encoder then
    stays in float32, with one warning. None where float32 is in use already, or is no better: nothing changes.

    All processes must get the same result, as they do for a sum over all of them.
    """
    runner = find_runner(encoder)
    if runner is None or runner.fell_back or runner.decision.precision == "float32":
        return None
    runner.fell_back = True
    exact = run()
    if not finite(exact):
        runner.fell_back = False
        return None
    if not runner.has_warned:
        runner.has_warned = True
        warnings.warn(
            f"`engine.precision={runner.decision.precision}` gives a loss or a gradient that is not finite, and "
            "float32 does not: from here on it is float32, which is slower (engine.precision=float32 avoids "
            "the warning)",
            stacklevel=2,
        )
    return exact

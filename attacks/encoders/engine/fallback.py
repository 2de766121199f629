"""A prepared encoder, its state between passes, and its fall back to float32.

Where a lower precision overflows, a loss or a gradient is not finite although float32 has a number: the rest of the
run is then done in float32. This state belongs to that of the attack: it is stored beside the perturbation and
restored when the attack is resumed.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.encoders.engine.decision import Decision
from attacks.encoders.engine.precision import low_pass
from attacks.encoders.engine.tf32 import tf32_pass
from attacks.encoders.tree import Encoder, Tree, optional
from transforms.doors import unchecked

Result = TypeVar("Result")
State = dict[str, float | int | bool]  # a step of a checkpoint holds plain numbers


class Prepared:
    """Images to embeddings, in the layout and precision of a decision; in float32 after a fall back.

    Args:
        run: the encoder under the decision.
        make_exact: makes the same encoder in float32, when it is first needed.
    """

    def __init__(self, run: Encoder, decision: Decision, make_exact: Callable[[], Encoder]) -> None:
        self.run, self.decision, self.make_exact = run, decision, make_exact
        self.fell_back = self.warned = False

    @cached_property
    def exact(self) -> Encoder:
        """The same in float32."""
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


def prepared(encoder: object) -> Prepared | None:
    """The `Prepared` within wrappers that only count or select (see `attacks.experiment.arms.Counted`); None where an
    encoder runs unchanged."""
    while not isinstance(encoder, Prepared):
        if encoder is None or isinstance(encoder, nn.Module):
            return None
        around = optional(encoder, "encoder") or optional(encoder, "__wrapped__")
        encoder = encoder.func if isinstance(encoder, partial) else around
    return encoder


def engine_state(encoder: object) -> State:
    """An encoder's state: whether it has fallen back to float32. Empty for an encoder without state."""
    own = prepared(encoder)
    return {} if own is None else {"fell_back": own.fell_back}


def engine_restore(encoder: object, state: Mapping[str, float | int | bool]) -> None:
    """Restore an `engine_state` of the same encoder under the same decision. Raises ValueError for another."""
    own = prepared(encoder)
    if set(state) != set(engine_state(encoder)):
        raise ValueError(
            f"`engine`: the state holds {', '.join(state) or 'nothing'}, and this encoder has "
            f"{', '.join(engine_state(encoder)) or 'nothing'}; it belongs to another decision"
        )
    if own is not None:
        own.fell_back = bool(state["fell_back"])


def engine_reset(encoder: object) -> None:
    """The state before the first pass, so that the results of a batch do not depend on earlier batches."""
    if prepared(encoder) is not None:
        engine_restore(encoder, {"fell_back": False})


@contextmanager
def in_float32(encoder: object) -> Iterator[None]:
    """Within, an encoder runs as after a fall back."""
    own, state = prepared(encoder), engine_state(encoder)
    if own is not None:
        own.fell_back = True
    try:
        yield
    finally:
        if own is not None:
            own.fell_back = bool(state["fell_back"])


def fall_back(encoder: object, run: Callable[[], Result], finite: Callable[[Result], bool]) -> Result | None:
    """What `run` gives in float32, where it is not finite in the lower precision of an encoder: the encoder then
    stays in float32, with one warning. None where float32 is in use already, or is no better: nothing changes.

    All processes must get the same result, as they do for a sum over all of them.
    """
    own = prepared(encoder)
    if own is None or own.fell_back or own.decision.precision == "float32":
        return None
    own.fell_back = True
    exact = run()
    if not finite(exact):
        own.fell_back = False
        return None
    if not own.warned:
        own.warned = True
        warnings.warn(
            f"`engine.precision={own.decision.precision}` gives a loss or a gradient that is not finite, and float32 "
            "does not: from here on it is float32, which is slower (engine.precision=float32 avoids the warning)",
            stacklevel=2,
        )
    return exact

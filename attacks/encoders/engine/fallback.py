"""What a prepared encoder remembers from one pass to the next, and its way back to full precision.

A lower precision that overflows makes a loss or a gradient that is not finite, where float32 has a number. The rest
is then done in float32. What an encoder remembers is a part of where an attack stands: it is read, kept beside the
perturbation, and set again when the attack goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from torch import nn

from attacks.encoders.engine.precision import SCALE
from attacks.encoders.engine.prepare import Prepared
from attacks.runtime.distributed import World

Result = TypeVar("Result")
State = dict[str, float | int | bool]


def prepared(encoder: object) -> Prepared | None:
    """The engine's own object within what only counts or narrows it (see `attacks.experiment.arms.Counted`); None
    where an encoder runs as it came."""
    while not isinstance(encoder, Prepared):
        if encoder is None or isinstance(encoder, nn.Module):
            return None
        around = getattr(encoder, "encoder", getattr(encoder, "__wrapped__", None))
        encoder = encoder.func if isinstance(encoder, partial) else around
    return encoder


def engine_state(encoder: object) -> State:
    """What the engine remembers of an encoder: whether it has fallen back to float32, and the loss scale of float16.
    Empty for an encoder that remembers nothing."""
    own = prepared(encoder)
    return {} if own is None else {"fell_back": own.fell_back, "scale": own.scale.value}


def engine_restore(encoder: object, state: Mapping[str, float | int | bool]) -> None:
    """Set what `engine_state` has read, on the same encoder under the same decision. Raises ValueError for a state of
    another."""
    own = prepared(encoder)
    if set(state) != set(engine_state(encoder)):
        raise ValueError(
            f"`engine`: the state holds {', '.join(state) or 'nothing'}, and this encoder has "
            f"{', '.join(engine_state(encoder)) or 'nothing'}; it belongs to another decision"
        )
    if own is not None:
        own.fell_back, own.scale.value = bool(state["fell_back"]), float(state["scale"])


def engine_reset(encoder: object) -> None:
    """Forget, as before the first pass: so that what a batch gives does not hang on the batches before it."""
    if prepared(encoder) is not None:
        engine_restore(encoder, {"fell_back": False, "scale": SCALE})


def engine_agree(encoder: object, world: World) -> None:
    """The least loss scale of all processes for all of them; every process must call it."""
    own = prepared(encoder)
    if own is not None and own.decision.precision == "float16":
        own.scale.value = float(world.least(int(own.scale.value)))


@contextmanager
def in_float32(encoder: object) -> Iterator[None]:
    """Inside, an encoder answers as after a fall back."""
    own, before = prepared(encoder), engine_state(encoder)
    if own is not None:
        own.fell_back = True
    try:
        yield
    finally:
        if own is not None:
            own.fell_back = bool(before["fell_back"])


def fall_back(encoder: object, run: Callable[[], Result], finite: Callable[[Result], bool]) -> Result | None:
    """What `run` gives in float32, where it is not finite in the lower precision of an encoder: the encoder then
    stays in float32, with one warning. None where float32 is in use already, or is no better: nothing changes.

    Several processes must agree on the result, as they do on a sum over all of them.
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
            "does not: from here on it is float32, which is slower (engine.precision=float32 says so from the start)",
            stacklevel=2,
        )
    return exact

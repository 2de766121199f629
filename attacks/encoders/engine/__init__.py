"""How an encoder is run: its layout, precision, folding and chunk. `engine.tuner` measures which."""

from attacks.encoders.engine.decision import Choice, Decision, Trial, describe
from attacks.encoders.engine.memory import keep_freed_memory
from attacks.encoders.engine.precision import Overflow
from attacks.encoders.engine.preparation import (
    engine_reset,
    engine_restore,
    engine_state,
    in_float32,
    prepare,
)

__all__ = [
    "Choice",
    "Decision",
    "Overflow",
    "Trial",
    "describe",
    "engine_reset",
    "engine_restore",
    "engine_state",
    "in_float32",
    "keep_freed_memory",
    "prepare",
]

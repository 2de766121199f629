"""How an encoder is run: its layout, precision, folding, compilation and chunk. `engine.tuner` measures which."""

from __future__ import annotations

from attacks.encoders.engine.decision import Choice, Decision, Measurement, Trial, describe
from attacks.encoders.engine.fallback import (
    engine_agree,
    engine_reset,
    engine_restore,
    engine_state,
    fall_back,
    in_float32,
)
from attacks.encoders.engine.fold import foldable
from attacks.encoders.engine.memory import free_memory, keep_freed_memory
from attacks.encoders.engine.precision import Overflow
from attacks.encoders.engine.prepare import prepare

__all__ = [
    "Choice",
    "Decision",
    "Measurement",
    "Overflow",
    "Trial",
    "describe",
    "engine_agree",
    "engine_reset",
    "engine_restore",
    "engine_state",
    "fall_back",
    "foldable",
    "free_memory",
    "in_float32",
    "keep_freed_memory",
    "prepare",
]

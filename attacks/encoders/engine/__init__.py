"""How an encoder is run: its layout, precision, folding and chunk. `engine.tuner` measures which."""

from attacks.encoders.engine.decision import Choice as Choice
from attacks.encoders.engine.decision import Decision as Decision
from attacks.encoders.engine.decision import Trial as Trial
from attacks.encoders.engine.decision import describe as describe
from attacks.encoders.engine.memory import keep_freed_memory as keep_freed_memory
from attacks.encoders.engine.precision import Overflow as Overflow
from attacks.encoders.engine.preparation import engine_reset as engine_reset
from attacks.encoders.engine.preparation import engine_restore as engine_restore
from attacks.encoders.engine.preparation import engine_state as engine_state
from attacks.encoders.engine.preparation import in_float32 as in_float32
from attacks.encoders.engine.preparation import prepare as prepare

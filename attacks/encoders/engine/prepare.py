"""An encoder as a decision runs it."""

import copy

import torch
from torch import nn

from attacks.encoders.engine.decision import Decision
from attacks.encoders.engine.fallback import Prepared
from attacks.encoders.engine.fold import fold
from attacks.encoders.engine.mixed import make_mixed
from attacks.encoders.engine.own import in_own_precision, is_half
from attacks.encoders.engine.precision import make_low
from attacks.encoders.tree import Encoder


def prepare(encoder: Encoder, decision: Decision) -> Encoder:
    """The encoder under the settings of `decision`: (N,3,H,W) in [0,1] -> (N,D) in the dtype of the images.

    The encoder given is never changed: a module is copied, its weights frozen. With the settings of `Decision()`
    (any chunk) it is returned itself. Of a plain callable only layout, tf32 and bfloat16 can be set.

    Raises:
        ValueError: a setting that needs a module, a precision for which there is no layer, or an encoder in training
            mode.
    """
    encoder, half = in_own_precision(encoder), is_half(encoder)
    if half is not None and decision.precision != "float32":
        raise ValueError(
            f"`engine.precision` must be float32 (or auto) for an encoder in {half}, which is its own precision and "
            f"stays; got {decision.precision} (encoder.precision=float32 widens its weights)"
        )
    if decision == Decision(chunk=decision.chunk):
        return encoder
    run = _module(encoder, decision) if isinstance(encoder, nn.Module) else encoder
    if run is encoder:
        needs = {"precision=mixed": decision.precision == "mixed", "fold=true": decision.fold}
        for name, needed in needs.items():
            if needed:
                kind = type(encoder).__name__
                raise ValueError(f"`engine.{name}` needs an encoder that is an nn.Module; got a {kind}")
    return Prepared(run, decision, lambda: prepare(encoder, decision.exact))


def _module(encoder: nn.Module, decision: Decision) -> nn.Module:
    if encoder.training:
        raise ValueError("`encoder` is in training mode, so its output changes from call to call; call .eval()")
    module = copy.deepcopy(encoder).requires_grad_(False)
    if decision.fold:
        fold(module)
    if decision.layout == "channels_last":
        module = module.to(memory_format=torch.channels_last)
    lowered = 1
    if decision.precision == "mixed":
        lowered = make_mixed(module)
    elif decision.precision == "bfloat16":
        lowered = make_low(module)
    if not lowered:
        raise ValueError(
            f"`engine.precision={decision.precision}` needs a layer of nn.Conv2d or nn.Linear, and "
            f"{type(encoder).__name__} has none; use engine.precision=float32"
        )
    return module

"""An encoder as a decision wants it run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.engine.decision import Decision
from attacks.encoders.engine.fold import fold
from attacks.encoders.engine.mixed import make_mixed
from attacks.encoders.engine.precision import LossScale, half_pass, make_low
from attacks.encoders.randomness import randomness_of
from attacks.encoders.tree import Tree, mapped

Encoder = Callable[..., Tree]  # (N,3,H,W) in [0,1] -> (N,D), or several of them

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def prepare(encoder: Encoder, decision: Decision) -> Encoder:
    """The encoder, run as `decision` says: (N,3,H,W) in [0,1] -> (N,D) in the dtype of the images.

    The encoder given is never changed: a module is copied, its weights frozen. With the settings of `Decision()`
    (any chunk) it is returned itself. A callable that is no module can have another layout and autocast, no more.

    Raises:
        ValueError: a setting that needs a module, a precision for which there is no layer, compilation of an encoder
            that draws, or an encoder in training mode.
    """
    if decision == Decision(chunk=decision.chunk):
        return encoder
    if decision.compile and randomness_of(encoder) is not None:
        raise ValueError(
            "`engine.compile=true` cannot be had for an encoder with draws of its own (dropout that is kept alive, a "
            "defence with ranges): compiled operators draw for themselves; use engine.compile=false"
        )
    if isinstance(encoder, nn.Module):
        if encoder.training:
            raise ValueError("`encoder` is in training mode, so its answers change from call to call; call .eval()")
        return Prepared(_module(encoder, decision), decision, encoder)
    for name, wanted in (
        ("precision=mixed", decision.precision == "mixed"),
        ("fold=true", decision.fold),
        ("compile=true", decision.compile),
    ):
        if wanted:
            raise ValueError(f"`engine.{name}` needs an encoder that is an nn.Module; got a {type(encoder).__name__}")
    return Prepared(encoder, decision, encoder)


def _module(encoder: nn.Module, decision: Decision) -> nn.Module:
    module = copy.deepcopy(encoder).requires_grad_(False)
    if decision.fold:
        fold(module)
    if decision.layout == "channels_last":
        module = module.to(memory_format=torch.channels_last)
    lowered = 1
    if decision.precision == "mixed":
        lowered = make_mixed(module)
    elif decision.precision in HALVES:
        lowered = make_low(module, HALVES[decision.precision])
    if not lowered:
        raise ValueError(
            f"`engine.precision={decision.precision}` finds no layer in {type(encoder).__name__} to work on "
            "(nn.Conv2d, nn.Linear); use engine.precision=float32"
        )
    return torch.compile(module, dynamic=False) if decision.compile else module  # type: ignore[return-value]


class Prepared:
    """Images in, embeddings out, in the decision's layout and precision; in float32 once it has fallen back (see
    `attacks.encoders.engine.fallback`). `source` is the encoder as it came."""

    def __init__(self, run: Encoder, decision: Decision, source: Encoder) -> None:
        self.run, self.decision, self.source = run, decision, source
        self.scale = LossScale()
        self.fell_back = self.warned = False
        self._exact: Encoder | None = None

    @property
    def exact(self) -> Encoder:
        """The same in float32, made when it is first asked for: not compiled, for it may be needed once."""
        if self._exact is None:
            self._exact = prepare(self.source, replace(self.decision, precision="float32", compile=False))
        return self._exact

    def __call__(self, images: Tensor, **which: Any) -> Tree:
        if self.fell_back:
            return self.exact(images, **which)
        dtype, precision = images.dtype, self.decision.precision
        if self.decision.layout == "channels_last":
            images = images.contiguous(memory_format=torch.channels_last)
        if precision not in HALVES:
            return self.run(images, **which)
        scaled = precision == "float16"
        features = self._half(self.scale.enter(images) if scaled else images, HALVES[precision], which)
        features = mapped(features, lambda leaf: leaf.to(dtype))
        return mapped(features, self.scale.leave) if scaled else features

    def _half(self, images: Tensor, dtype: torch.dtype, which: dict[str, Any]) -> Tree:
        if isinstance(self.run, nn.Module):
            return half_pass(self.run, images, dtype, **which)
        # Where the layers of a plain callable begin, nobody can tell.
        with torch.autocast(images.device.type, dtype, cache_enabled=False):
            return self.run(images.float(), **which)

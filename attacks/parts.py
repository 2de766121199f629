"""The parts of an attack, as protocols.

attack = encoder + objective + perturbation + optimiser + EOT
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor

from attacks.adaptive import Adaptive
from attacks.distributed import World
from attacks.eot import EOT
from transforms import Scene

Encoder = Callable[[Tensor], Tensor]  # (N,C,H,W) in [0,1] -> (N,D)


class Objective(Protocol):
    """What the attacker wants; lower is better."""

    @property
    def stationary_at_anchor(self) -> bool:
        """Whether the gradient vanishes where features equal the anchor."""

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D), (N,D) -> (N,)."""


class Perturbation(Protocol):
    """What may be changed: a start, the way into a scene, and the set that delta must stay in."""

    @property
    def eps(self) -> float:
        """The radius of the set, in its own norm."""

    @property
    def random_start(self) -> bool:
        """Whether `start` draws at random, or is zero."""

    @property
    def shared(self) -> bool:
        """Whether one delta (1,...) serves all images, or each has its own (N,...)."""

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def scene(self, images: Tensor, delta: Tensor) -> Scene: ...
    def steepest(self, grad: Tensor) -> Tensor: ...
    def project(self, delta: Tensor, images: Tensor) -> Tensor: ...
    def norm(self, delta: Tensor) -> Tensor: ...
    def quantise(self, delta: Tensor, images: Tensor) -> Tensor: ...


class Optimiser(Protocol):
    """Gradient in, move out."""

    def init(self, delta: Tensor, *, eps: float, steps: int) -> Any: ...
    def step(self, grad: Tensor, state: Any, steepest: Callable[[Tensor], Tensor]) -> tuple[Tensor, Any]: ...


class Setup(TypedDict):
    """The parts of an attack, as keyword arguments of `attack` and of those that run it."""

    encoder: Encoder
    objective: Objective
    perturbation: Perturbation
    optimiser: Optimiser
    eot: EOT
    steps: NotRequired[int]
    seed: NotRequired[int]
    budget: NotRequired[int | Tensor | None]
    adaptive: NotRequired[Adaptive | None]
    world: NotRequired[World]

"""The parts of an attack, as protocols.

attack = encoder + objective + perturbation + optimiser + EOT
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.risk import Risk
from attacks.runtime.distributed import World
from transforms import Scene, Shown


class Ground(NamedTuple):
    """Where an optimiser moves: the set of a perturbation, round some pictures.

    `descend(grad, length, delta)` is the move of that length (a number, or one for each delta) that lowers the loss
    the most, to first order; `go(delta, move)` is the point of the set that the move leads to.
    """

    descend: Callable[[Tensor, float | Tensor, Tensor], Tensor]
    go: Callable[[Tensor, Tensor], Tensor]


#: Pictures (B,), and the coordinates (B*V,dims) of V views of each in turn -> losses (B*V,).
Look = Callable[[Tensor, Tensor], Tensor]


class Objective(Protocol):
    """What the attacker wants; lower is better.

    An objective with `paired` true gets, as anchor, the features of the same views of the untouched pictures.
    """

    @property
    def stationary_at_anchor(self) -> bool:
        """Whether the gradient vanishes where features equal the anchor."""

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        """The encoder's features of N views, and what each is compared with (embeddings (N,D), labels (N,), ...)
        -> losses (N,)."""


class Penalty(Protocol):
    """A price on how the perturbation looks, added to the loss of every picture."""

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:
        """The delta itself, the attacked pictures seen directly (N,C,H,W), the untouched ones (N,C,H,W) -> (N,)."""


class Perturbation(Protocol):
    """What may be changed: a start, the way into a scene, and the set that delta must stay in."""

    @property
    def eps(self) -> float:
        """The radius of the set, in its own norm."""

    @property
    def reach(self) -> float:
        """The length that an optimiser's steps are shares of, in the unit of `descend`."""

    @property
    def random_start(self) -> bool:
        """Whether `start` draws at random, or is zero."""

    @property
    def shared(self) -> bool:
        """Whether one delta (1,...) serves all images, or each has its own (N,...)."""

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def scene(self, images: Tensor, delta: Tensor) -> Scene: ...
    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor: ...
    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor: ...
    def norm(self, delta: Tensor) -> Tensor: ...
    def quantise(self, delta: Tensor, images: Tensor) -> Tensor: ...

    # With defaults in `attacks.perturbations.base.PerturbationSet`.
    @property
    def texture_size(self) -> tuple[int, int] | None: ...
    @property
    def texture_alpha(self) -> Tensor | None: ...
    def take(self, rows: Tensor) -> Perturbation: ...
    def written(self, images: Tensor, delta: Tensor) -> Tensor: ...
    def evaluated(self, images: Tensor, delta: Tensor) -> Shown: ...
    def corners(self) -> list[list[list[list[float]]]]: ...
    def footprint(self, size: tuple[int, int], sheet: bool = False) -> Scene | None: ...


def among(perturbation: Perturbation, rows: Tensor) -> Perturbation:
    """The perturbation of some of the pictures, if it holds something of each (a mask, a place)."""
    part = getattr(perturbation, "take", None)
    return perturbation if part is None else part(rows)


class Optimiser(Protocol):
    """From where delta is, and what was learned there, to the next delta. A pure function: its state is a value."""

    def init(self, delta: Tensor, *, reach: float, steps: int) -> Any: ...
    def step(self, delta: Tensor, found: Estimate, state: Any, ground: Ground) -> tuple[Tensor, Any]: ...


class Proposer(Protocol):
    """Where a search looks next. A pure function of the step and of the generator, the same for every picture, so
    that a picture's path does not depend on its neighbours."""

    @property
    def gradient_free(self) -> bool:
        """True: `solve` then runs `search`."""

    def direction(self, like: Tensor, *, step: int, steps: int, generator: torch.Generator) -> Tensor:
        """What to move against, (1,...) for the deltas `like` (N,...)."""


class Inner(Protocol):
    """The inner maximisation of a min-max attack: which views of each picture a step is taken against."""

    def cost(self, n: int) -> int:
        """The encoder passes for each picture that choosing n views takes."""

    def risk(self, n: int) -> Risk:
        """What the attack then minimises, as a risk over random views."""

    def views(
        self, look: Look, eot: EOT, n: int, *, like: Tensor, count: int, seed: int, step: int, world: World
    ) -> Tensor:
        """The views (count,n,dims) of a step."""


class Setup(TypedDict):
    """The parts of an attack, as keyword arguments of `attack` and of those that run it."""

    encoder: Encoder
    objective: Objective
    perturbation: Perturbation
    optimiser: Optimiser | Proposer
    eot: EOT
    steps: NotRequired[int]
    seed: NotRequired[int]
    budget: NotRequired[int | Tensor | None]
    adaptive: NotRequired[Adaptive | None]
    world: NotRequired[World]
    penalty: NotRequired[Penalty | None]
    adversary: NotRequired[Inner | None]

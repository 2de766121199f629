"""The parts of an attack, as protocols.

attack = encoder + objective + perturbation + optimiser + EOT
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.risk import Risk
from attacks.runtime.distributed import World
from transforms import Scene


#: Images (B,), and the coordinates (B*V,dims) of V views of each in turn -> losses (B*V,).
LossFn = Callable[[Tensor, Tensor], Tensor]


class Objective(Protocol):
    """What the attacker minimises. Inherit from it for the defaults."""

    #: Whether the anchor is the features of the same views of the untouched images, made anew in each pass.
    paired: bool = False

    @property
    def stationary_at_anchor(self) -> bool:
        """Whether the gradient vanishes where features equal the anchor: then a start at zero is refused."""
        return False

    def members(self, encoder: Encoder, anchor: Tree) -> Sequence[tuple[Encoder, Objective, Tree]]:  # noqa: ARG002
        """The parts whose *gradients* are to be combined, each with its encoder and anchor; none where the losses
        are one number."""
        return ()

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

    def take(self, rows: Tensor) -> Perturbation:  # noqa: ARG002
        """The perturbation of some of the images, where it holds something of each (a mask, a placement)."""
        return self

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def scene(self, images: Tensor, delta: Tensor) -> Scene: ...
    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor: ...
    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor: ...
    def norm(self, delta: Tensor) -> Tensor: ...
    def quantise(self, delta: Tensor, images: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Constraint:
    """Where an optimiser moves: the set of a perturbation round some images."""

    perturbation: Perturbation
    images: Tensor

    def steepest(self, grad: Tensor, length: float | Tensor, delta: Tensor) -> Tensor:
        """The move of that length (a number, or one for each delta) that lowers the loss most, to first order."""
        return self.perturbation.descend(grad, length, delta, self.images)

    def project(self, delta: Tensor, move: Tensor) -> Tensor:
        """The point of the set that a move leads to."""
        return self.perturbation.move(delta, move, self.images)


class Optimiser(Protocol):
    """From a delta and the estimate there to the next delta. A pure function: its state is a value."""

    #: Whether it only proposes directions, and `search` runs it (see `Proposer`).
    gradient_free: bool = False

    def init(self, delta: Tensor, *, reach: float, steps: int) -> Any: ...
    def step(
        self, delta: Tensor, estimate: Estimate, state: Any, constraint: Constraint
    ) -> tuple[Tensor, Any]: ...


class Proposer(Protocol):
    """The directions of a search without gradients. A pure function of the step and of the generator, the same for
    every image, so that an image's path does not depend on its neighbours."""

    gradient_free: bool = True

    def direction(self, like: Tensor, *, step: int, steps: int, generator: torch.Generator) -> Tensor:
        """What to move against, (1,...) for the deltas `like` (N,...)."""


class Adversarial(Protocol):
    """The inner maximisation of a min-max attack: the views of each image that a step is taken against."""

    def cost(self, n: int) -> int:
        """The encoder passes for each picture that choosing n views takes."""

    def risk(self, n: int) -> Risk:
        """What the attack then minimises, as a risk over random views."""

    def views(
        self, loss: LossFn, eot: EOT, n: int, *, like: Tensor, count: int, seed: int, step: int, world: World
    ) -> Tensor:
        """The views (count,n,dims) of a step."""

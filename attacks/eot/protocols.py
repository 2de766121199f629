"""The parts of an attack, as protocols: encoder + objective + perturbation + optimiser + EOT.

An encoder is a callable, in evaluation mode, of pictures (N,C,H,W) in [0,1]. It returns one finite floating-point
tensor with a row for each picture, which depends on it alone: (N,D), or (N,T,D) with a vector for each token
(`Layers` and `Ensemble` return several). What it draws, it takes as `draws`. Where an optimiser follows gradients,
the graph from pictures to features is whole. `attacks.encoders.contract` checks it where an encoder enters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT, Question
from attacks.eot.risk import Risk
from transforms.scene import Scene, Shown


@runtime_checkable
class Objective(Protocol):
    """What the attacker minimises. Inherit from it for the defaults.

    Examples:
        >>> from attacks import Objective
        >>> class Brightest(Objective):
        ...     def __call__(self, features, anchor):
        ...         return -features.amax(1)
        >>> Brightest()(torch.tensor([[0.25, 0.75]]), torch.zeros(1)).item(), Brightest().paired
        (-0.75, False)
    """

    @property
    def paired(self) -> bool:
        """Whether the anchor is the features of the same views of the untouched images, made anew in each pass."""
        return False

    @property
    def attracts(self) -> bool:
        """Whether it draws features toward the anchor, rather than away from it."""
        return False

    @property
    def combine(self) -> str:
        """What is combined of several parts, "losses" or "gradients" (see `members`)."""
        return "losses"

    @property
    def stationary_at_anchor(self) -> bool:
        """Whether the gradient vanishes where features equal the anchor: then a start at zero is refused."""
        return False

    def members(self, encoder: Encoder, anchor: Tree) -> "Sequence[tuple[Encoder, Objective, Tree]]":  # noqa: ARG002
        """The parts whose *gradients* are to be combined, with encoder and anchor; none where the losses are one."""
        return ()

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        """Features of N views, and what each is compared with (embeddings (N,D), labels (N,), ...) -> losses (N,)."""


class Penalty(Protocol):
    """A price on how the perturbation looks, added to the loss of every picture."""

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:
        """The delta itself, the attacked pictures seen directly (N,C,H,W), the untouched ones (N,C,H,W) -> (N,)."""


class Perturbation(Protocol):
    """What may be changed: a start, the way into a scene, and the set that delta must stay in.

    `eps` is the radius of the set in its own norm, and `reach` the length that an optimiser's steps are shares of, in
    the unit of `descend`. Without `random_start` delta begins at zero. One delta (1,...) that is `shared` serves all
    images. `attacks.perturbations.base.PerturbationSet` says what the others mean, and has defaults.
    """

    @property
    def eps(self) -> float: ...
    @property
    def reach(self) -> float: ...
    @property
    def random_start(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def texture_size(self) -> tuple[int, int] | None: ...
    @property
    def texture_alpha(self) -> Tensor | None: ...
    def take(self, rows: Tensor) -> "Perturbation": ...
    def for_arm(self, arm: str) -> "Perturbation": ...
    def written(self, images: Tensor, delta: Tensor) -> Tensor: ...
    def evaluated(self, images: Tensor, delta: Tensor) -> Shown: ...
    def corners(self) -> list[list[list[list[float]]]]: ...
    def footprint(self, size: tuple[int, int], sheet: bool = False) -> Scene | None: ...
    def start(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor: ...
    def scene(self, images: Tensor, delta: Tensor) -> Scene: ...
    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor: ...
    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor: ...
    def step(self, delta: Tensor, grad: Tensor, length: float | Tensor, images: Tensor) -> Tensor: ...
    def norm(self, delta: Tensor) -> Tensor: ...
    def length(self, delta: Tensor) -> Tensor: ...
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
        return self.perturbation.move(delta, move, self.images)

    def step(self, delta: Tensor, grad: Tensor, length: float | Tensor) -> Tensor:
        return self.perturbation.step(delta, grad, length, self.images)


class Done(NamedTuple):
    """The share of the run, 0 to 1, that is done `before` and `after` a step: (D,) float64, one for each delta. It is
    the share of the gradients, so schedules do not depend on how they are divided into steps."""

    before: Tensor
    after: Tensor


class Optimiser(Protocol):
    """From a delta and the estimate there to the next delta. A pure function: its state is a value.

    Examples:
        >>> from attacks import PGD, Optimiser
        >>> optimiser: Optimiser = PGD()
        >>> optimiser.gradient_free, optimiser.counts_steps
        (False, False)
    """

    #: Whether it only proposes directions, and `random_search` runs it (see `Proposer`).
    gradient_free: ClassVar[bool] = False
    #: Whether a picture leaves where its loss does not fall. It need not fall before it does at once.
    leaves_early: ClassVar[bool] = True
    #: Whether its schedule counts steps, which must then have equally many views.
    counts_steps: ClassVar[bool] = False

    def init(self, delta: Tensor, *, reach: float, steps: int) -> Any: ...
    def step(
        self, delta: Tensor, estimate: Estimate, state: Any, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, Any]: ...


class Proposer(Protocol):
    """The directions of a search without gradients. A pure function of the step and of the generator, the same for
    every image, so that an image's path does not depend on its neighbours."""

    gradient_free: ClassVar[bool] = True
    leaves_early: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = False

    def direction(self, like: Tensor, *, step: int, steps: int, generator: torch.Generator) -> Tensor:
        """What to move against, (1,...) for the deltas `like` (N,...)."""


class Adversarial(Protocol):
    """The inner maximisation of a min-max attack: the views of each image that a step is taken against."""

    def cost(self, n: int) -> int:
        """The encoder passes for each picture that choosing n views takes."""

    def risk(self, n: int) -> Risk:
        """What the attack then minimises, as a risk over random views."""

    def views(self, problem: Question, delta: Tensor, eot: EOT, n: int, *, seed: int, step: int) -> Tensor:
        """The views (N,n,dims) of a step on a problem of N images, at `delta`."""

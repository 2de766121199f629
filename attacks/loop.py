"""The toolkit on one screen: the parts of an attack, as protocols, and the loop.

    attack = encoder + objective + perturbation + optimiser + EOT

The loop is a generator: the caller's iteration is the callback. Progress, checkpoints and early stopping live in
the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor, nn

from attacks.eot import EOT, Estimate
from transforms import Scene, stream

STEPS = 100

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


class Step(NamedTuple):
    """After step `index`: the perturbation as it stands now, the estimate that led there (it belongs to the
    perturbation *before* the step), and the encoder passes (forward and backward of one view) spent so far."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    delta: Tensor
    estimate: Estimate
    evals: int


def attack(
    images: Tensor,
    anchor: Tensor,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    optimiser: Optimiser,
    eot: EOT,
    steps: int = STEPS,
    seed: int = 0,
) -> Iterator[Step]:
    """Optimise one perturbation per image over the expected views; yields after every step.

    Args:
        images: (N,3,H,W) in [0,1].
        anchor: (N,D) embeddings to move away from, or toward.
        encoder: images to embeddings, in evaluation mode; its preprocessing belongs to it.
        steps: gradient steps; each costs N * eot.n encoder passes.
        seed: of the start and of the views. The same seed gives the same bits on the same machine.

    Raises:
        ValueError: wrong shapes or ranges, an encoder in training mode, a start where the gradient is zero, or a
            gradient that is zero in the first step.
        FloatingPointError: a loss or gradient that is not finite, with the step.
    """
    _check(images, anchor, encoder, objective, perturbation, steps)
    delta = perturbation.start(images, torch.Generator().manual_seed(stream(seed, "start")))
    state = optimiser.init(delta, eps=perturbation.eps, steps=steps)
    views = stream(seed, "attack")

    def scene(part: Tensor, rows: slice) -> Scene:
        return perturbation.scene(images[rows], part)

    def loss(pixels: Tensor, rows: Tensor) -> Tensor:
        return objective(encoder(pixels), anchor[rows])

    for index in range(steps):
        estimate = eot.estimate(delta, scene, loss, eot.points(views, index, images))
        _watch(estimate, index)
        move, state = optimiser.step(estimate.grad, state, perturbation.steepest)
        # Added to the picture first, as every published PGD does, so that ours equals theirs to the last bit.
        delta = perturbation.project(((images + delta) + move) - images, images)
        yield Step(index, delta, estimate, evals=(index + 1) * eot.n * len(images))


def _check(
    images: Tensor, anchor: Tensor, encoder: Encoder, objective: Objective, perturbation: Perturbation, steps: int
) -> None:
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(f"`images` must be floating (N,3,H,W); got {images.dtype} of shape {tuple(images.shape)}")
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # so written, NaN is out of range too
        raise ValueError(f"`images` must lie in [0, 1]; got {low:g} to {high:g} (divide 8-bit values by 255)")
    if len(anchor) != len(images):
        raise ValueError(f"`anchor` must hold one embedding per image; got {len(anchor)} for {len(images)} images")
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1; got {steps}")
    if isinstance(encoder, nn.Module) and encoder.training:
        raise ValueError("`encoder` is in training mode, so its answers change from call to call; call .eval()")
    if objective.stationary_at_anchor and not perturbation.random_start:
        raise ValueError(
            f"{type(objective).__name__} has a zero gradient at delta = 0, so the attack would never move; "
            "`random_start` must be true"
        )


def _watch(estimate: Estimate, index: int) -> None:
    """A gradient must not die in silence."""
    energy = estimate.grad.flatten(1).abs().amax(1)
    if not bool(estimate.mean.isfinite().all() & energy.isfinite().all()):
        rows = (~(estimate.mean.isfinite() & energy.isfinite())).nonzero()[:, 0].tolist()
        raise FloatingPointError(f"step {index}: the loss or its gradient is not finite for image(s) {rows}")
    if index == 0 and bool((energy == 0).any()):
        rows = (energy == 0).nonzero()[:, 0].tolist()
        raise ValueError(
            f"the gradient is exactly zero for image(s) {rows}: a stage or the encoder cuts the graph "
            "(uint8, .numpy(), no_grad), or no view shows the picture"
        )

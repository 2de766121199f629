"""How an estimate becomes a step. An optimiser is a pair of pure functions; its state is a value of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from attacks.estimate import Estimate
from attacks.ground import Ground

Schedule = Literal["constant", "cosine"]


class State(NamedTuple):
    """`momentum` (like delta), the number of steps done and planned, and the length that steps are measured in."""

    momentum: Tensor
    step: int
    steps: int
    reach: float


@dataclass(frozen=True)
class PGD:
    """Projected gradient descent: a step along the steepest direction of the perturbation's norm.

    Args:
        rel_step_size: length of the first step as a share of eps, in the perturbation's norm, so that a sweep over
            eps cannot leave the step too short to reach the ball's edge.
        momentum: of gradients normalised per image to L1 norm 1, before the sign (MI-FGSM, Dong et al. 2018, eq. 6);
            0 is plain PGD (Madry et al. 2018).
        schedule: cosine (to zero over the run) or constant.
    """

    rel_step_size: float = 0.2
    momentum: float = 0.9
    schedule: Schedule = "cosine"

    def __post_init__(self) -> None:
        _check("rel_step_size", self.rel_step_size, self.momentum, self.schedule)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> State:
        """The state before the first of `steps` steps."""
        return State(torch.zeros_like(delta), 0, steps, reach)

    def step(self, delta: Tensor, found: Estimate, state: State, ground: Ground) -> tuple[Tensor, State]:
        """The next delta and state."""
        grad = found.grad
        share = grad.flatten(1).abs().sum(1).clamp(min=torch.finfo(grad.dtype).tiny)
        momentum = self.momentum * state.momentum + grad / share[:, None, None, None]
        size = self.rel_step_size * state.reach * _decay(self.schedule, state)
        after = ground.go(delta, ground.descend(momentum, size, delta))
        return after, state._replace(momentum=momentum, step=state.step + 1)


@dataclass(frozen=True)
class SGD:
    """Projected stochastic gradient descent with (heavy-ball) momentum, as `torch.optim.SGD`: the step is as long as
    the gradient says, so `lr` depends on the loss and on the picture's size. For the L-inf ball use PGD.

    Args:
        lr: step per unit of gradient.
        momentum: 0 to below 1.
        schedule: cosine (to zero over the run) or constant.
    """

    lr: float
    momentum: float = 0.9
    schedule: Schedule = "cosine"

    def __post_init__(self) -> None:
        _check("lr", self.lr, self.momentum, self.schedule)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> State:
        """The state before the first of `steps` steps."""
        return State(torch.zeros_like(delta), 0, steps, reach)

    def step(self, delta: Tensor, found: Estimate, state: State, ground: Ground) -> tuple[Tensor, State]:
        """The next delta and state."""
        momentum = self.momentum * state.momentum + found.grad
        after = ground.go(delta, -self.lr * _decay(self.schedule, state) * momentum)
        return after, state._replace(momentum=momentum, step=state.step + 1)


def _decay(schedule: Schedule, state: State) -> float:
    return 1.0 if schedule == "constant" else (1 + math.cos(math.pi * state.step / state.steps)) / 2


def _check(name: str, size: float, momentum: float, schedule: str) -> None:
    if not (size > 0 and math.isfinite(size)):
        raise ValueError(f"`{name}` must be a positive number; got {size}")
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must lie in [0, 1); got {momentum}")
    if schedule not in get_args(Schedule):
        raise ValueError(f"`schedule` must be one of {', '.join(get_args(Schedule))}; got {schedule!r}")

"""APGD: projected gradient descent that sets its own step lengths, picture by picture."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Constraint, Done, Optimiser
from attacks.optimisers.gradient import LONGEST
from attacks.runtime.values import stored
from attacks.schema.options import option
from transforms.devices import uploaded


@stored("apgd")
class APGDState(NamedTuple):
    """Like delta: the `previous` point, the `best` point so far and the gradient there. For each delta (N,): the loss
    of the best point and of the latest one, the `length` of the next step, and since the last checkpoint how many
    `gains`, the `reference_loss` (the best there), and whether the length `is_halved`. Then the number of steps done
    and planned, the next checkpoint (the index of a step), and the `gap` since the last one."""

    previous: Tensor
    best: Tensor
    best_grad: Tensor
    best_loss: Tensor
    latest: Tensor
    length: Tensor
    gains: Tensor
    reference_loss: Tensor
    is_halved: Tensor
    step: int
    steps: int
    checkpoint: int
    gap: int


@dataclass(frozen=True)
class APGD(Optimiser):
    """Auto-PGD (Croce & Hein 2020, algorithm 1): sets its own step lengths, picture by picture.

    Long steps come first; at each checkpoint, a picture whose steps seldom gained, or whose best loss did not fall,
    goes back to its best point and halves its step.

    A run of n steps tries n points, the start among them, like n - 1 iterations of the published code, whose
    checkpoints it has; the last step returns the best point. A loss here is the estimate's `value`, over all views of
    the step; where one delta serves all images, their mean. With `draws=fixed` it is exact, but the attack fits these
    views, and with few of them is weaker: cosine 0.410 against 0.360 with 4 a step, equal with 16 (pocket encoder,
    8/255).

    Use: a loss without noise (`draws=fixed`), and numbers beside those of AutoAttack.
    Not: new views in every step, whose noise its checkpoints take for a lost or a gained step.
    Cost: one gradient for each view of a step, of 4 views unless `attack.views` says otherwise.
    Oracle: torchattacks, tests/optimisers/test_peers_apgd.py.

    `rel_step_size` is the length of the first step as a share of eps, in the perturbation's norm; `momentum`, alpha
    of the algorithm, in (0, 1], the share of the new move in each step; `rho` the share of the steps between two
    checkpoints that must gain, 0 to 1.

    Examples:
        >>> from attacks import APGD, EOT, Linf, Toward, attack
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "eot": EOT()}
        >>> parts |= {"perturbation": Linf(8 / 255, random_start=False), "optimiser": APGD()}
        >>> images, goal = torch.full((1, 3, 8, 8), 0.5), torch.full((1, 192), 0.5 - 2 / 255)
        >>> levels = [255 * float(step.delta.mean()) for step in attack(images, goal, **parts, steps=50)]
        >>> round(levels[0], 1), round(levels[-1], 1)  # beyond the goal at first, then with shorter steps back to it
        (-8.0, -2.0)
    """

    counts_steps: ClassVar[bool] = True
    rel_step_size: float = option(2.0, "first step as a share of eps", range="above 0", paper="Croce & Hein 2020")
    momentum: float = option(0.75, "share of the new move in each step; 1: no momentum", range="(0, 1]")
    rho: float = option(0.75, "share of the steps between two checkpoints that must gain", range="[0, 1]")

    def __post_init__(self) -> None:
        if not 0 < self.rel_step_size <= LONGEST:
            raise ValueError(f"`rel_step_size` must be above 0 and at most {LONGEST:,}; got {self.rel_step_size}")
        if not 0 < self.momentum <= 1:
            raise ValueError(f"`momentum` must lie in (0, 1], got {self.momentum}; 1 is without momentum")
        if not 0 <= self.rho <= 1:
            raise ValueError(f"`rho` must lie in [0, 1]; got {self.rho}")

    def init(self, delta: Tensor, *, reach: float, steps: int) -> APGDState:
        worst = delta.new_full((len(delta),), torch.inf)
        gap = _part(0.22, steps)
        return APGDState(
            previous=delta,
            best=delta,
            best_grad=torch.zeros_like(delta),
            best_loss=worst,
            latest=-worst,  # the start is no gain
            length=torch.full_like(worst, self.rel_step_size * reach),
            gains=torch.zeros_like(worst),
            reference_loss=worst,
            is_halved=torch.ones_like(worst, dtype=torch.bool),  # at the first checkpoint, gains alone count
            step=0,
            steps=steps,
            checkpoint=gap,
            gap=gap,
        )

    def step(
        self,
        delta: Tensor,
        estimate: Estimate,
        state: APGDState,
        constraint: Constraint,
        progress: Done,  # noqa: ARG002  # its checkpoints are numbers of steps
    ) -> tuple[Tensor, APGDState]:
        loss = uploaded(estimate.value, delta.device)
        loss = loss if len(loss) == len(delta) else loss.mean(0, keepdim=True)
        state = _record(state, delta, loss, estimate.grad)
        point, grad = delta, estimate.grad
        if state.step == state.checkpoint:
            state = self._at_checkpoint(state)
            point, grad = _choose(state.is_halved, state.best, point), _choose(state.is_halved, state.best_grad, grad)
        state = state._replace(step=state.step + 1)
        if state.step == state.steps > 1:
            return state.best, state
        new = constraint.step(point, grad, state.length) - point
        share = self.momentum if state.step > 1 else 1.0
        next_delta = constraint.project(point, share * new + (1 - share) * (point - state.previous))
        return next_delta, state._replace(previous=point)

    def _at_checkpoint(self, state: APGDState) -> APGDState:
        stalls = ~state.is_halved & (state.best_loss >= state.reference_loss)
        halves = (state.gains <= self.rho * state.gap) | stalls
        gap = max(state.gap - _part(0.03, state.steps), _part(0.06, state.steps))
        return state._replace(
            length=torch.where(halves, state.length / 2, state.length),
            gains=torch.zeros_like(state.gains),
            reference_loss=state.best_loss,
            is_halved=halves,
            checkpoint=state.checkpoint + gap,
            gap=gap,
        )


def _record(state: APGDState, delta: Tensor, loss: Tensor, grad: Tensor) -> APGDState:
    better = loss < state.best_loss
    return state._replace(
        best=_choose(better, delta, state.best),
        best_grad=_choose(better, grad, state.best_grad),
        best_loss=torch.where(better, loss, state.best_loss),
        gains=state.gains + (loss < state.latest),
        latest=loss,
    )


def _part(share: float, steps: int) -> int:
    """A share of the moves between the points that a run tries, at least one."""
    return max(1, int(share * (steps - 1)))


def _choose(mask: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The rows of the first where `mask` (N,) is true, else those of the second."""
    return torch.where(mask[:, None, None, None], first, second)

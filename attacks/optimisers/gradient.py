"""Optimisers by gradient: PGD, SGD and Adam. An optimiser is a pair of pure functions; its state is a value."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Constraint, Done, Optimiser
from attacks.runtime.blocks import columns, in_blocks
from attacks.runtime.values import stored
from attacks.schema.options import option
from transforms.devices import uploaded, wide_dtype
from transforms.doors import check_choice

SCHEDULES = ("constant", "cosine", "linear")
#: The longest step, as a multiple of eps.
LONGEST = 1000


@stored("momentum")
class MomentumState(NamedTuple):
    """`momentum` (like delta), the length that steps are measured in, and the `point` that delta looks ahead from."""

    momentum: Tensor
    reach: float
    point: Tensor | None = None


@dataclass(frozen=True)
class PGD(Optimiser):
    r"""Projected gradient descent: a step along the steepest direction of the perturbation's norm.

    With `nesterov` the estimate is taken at a look-ahead point (NI-FGSM, Lin et al. 2020): `momentum` times the next
    step ahead, along the steepest direction of the momentum. Delta is this point, which lies in the set; after the
    last planned step it is the point that steps start from.

    Formula: m \leftarrow \mu m + g / \|g\|_1, \quad \delta \leftarrow \Pi(\delta - \eta \, \mathrm{sign}(m))
    Use: the usual baseline, and large pictures, whose transforms cost `Wiener` time and memory.
    Not: few noisy steps, whose noise costs it more than `Wiener`.
    Cost: one gradient for each view of a step.
    Oracle: torchattacks and other peers, bit for bit, tests/optimisers/test_peers.py; MI-FGSM,
    tests/optimisers/test_gradient.py.

    `rel_step_size` is the length of the first step as a share of eps, in the perturbation's norm; `momentum` that of
    gradients normalised per image to L1 norm 1, before the sign (MI-FGSM, Dong et al. 2018, eq. 6), 0 for plain PGD;
    `schedule` cosine or linear (to zero over the run), or constant.

    Examples:
        >>> from attacks import EOT, Linf, PGD, Toward, attack
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "eot": EOT()}
        >>> parts |= {"perturbation": Linf(8 / 255, random_start=False), "optimiser": PGD(rel_step_size=0.5)}
        >>> run = attack(torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, 192), **parts, steps=4)
        >>> [round(255 * float(step.delta.mean()), 2) for step in run]
        [-4.0, -7.41, -8.0, -8.0]
    """

    rel_step_size: float = option(0.8, "first step as a share of eps", range="above 0", paper="Madry et al. 2018")
    momentum: float = option(0.75, "of normalised gradients; 0: none", range="[0, 1)", paper="Dong et al. 2018")
    schedule: str = option("cosine", "how the step shrinks", range="constant, cosine, linear")
    nesterov: bool = option(False, "look ahead; needs momentum", paper="Lin et al. 2020")

    def __post_init__(self) -> None:
        check_step("rel_step_size", self.rel_step_size, self.schedule, self.nesterov, momentum=self.momentum)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> MomentumState:  # noqa: ARG002
        return MomentumState(torch.zeros_like(delta), reach, delta if self.nesterov else None)

    def step(
        self, delta: Tensor, estimate: Estimate, state: MomentumState, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, MomentumState]:
        norm = l1_norm(estimate.grad)
        momentum = in_blocks(lambda old, grad: self.momentum * old + grad / norm, state.momentum, estimate.grad)
        start = delta if state.point is None else state.point
        length, ahead = (self.rel_step_size * state.reach * decay(self.schedule, share, delta) for share in progress)
        next_delta = constraint.step(start, momentum, length)
        if not self.nesterov:
            return next_delta, state._replace(momentum=momentum)
        state = state._replace(momentum=momentum, point=next_delta)
        ahead = self.momentum * torch.where(progress.after.to(delta) < 1, ahead, 0)
        return constraint.step(next_delta, momentum, ahead), state


@dataclass(frozen=True)
class SGD(Optimiser):
    """Projected stochastic gradient descent with momentum, as `torch.optim.SGD`; for the L2 ball.

    The step is as long as the gradient says, so `lr` depends on the loss and on the picture's size. For the L-inf
    ball use PGD.

    Use: an L2 ball and a loss whose scale is known.
    Not: the L-inf ball, or a loss of unknown scale: PGD.
    Source: torch.optim.SGD.
    Cost: one gradient for each view of a step.
    Oracle: torch.optim.SGD, tests/optimisers/test_gradient.py.
    With: perturbation=l2 perturbation.eps=4

    `lr` is the step per unit of gradient, `momentum` 0 to below 1; `schedule` is cosine or linear (to zero over the
    run), or constant. `nesterov` is Nesterov's momentum instead of the heavy ball, in the form of `torch.optim.SGD`:
    delta stands for the look-ahead point, and steps along grad + momentum * velocity. It needs momentum.

    Examples:
        >>> from attacks import EOT, L2, SGD, Toward, attack
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "eot": EOT()}
        >>> parts |= {"perturbation": L2(4.0, random_start=False), "optimiser": SGD(1.5, 0.0, "constant")}
        >>> run = attack(torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, 192), **parts, steps=4)
        >>> [round(float(step.delta.norm()), 2) for step in run]  # the gradient of a distance has length 1
        [1.5, 3.0, 4.0, 4.0]
    """

    lr: float = option(2.0, "step per unit of gradient: depends on the loss and the pictures' size", range="above 0")
    momentum: float = option(0.9, "of the heavy ball; 0: none", range="[0, 1)")
    schedule: str = option("cosine", "how the step shrinks", range="constant, cosine, linear")
    nesterov: bool = option(False, "look ahead; needs momentum")

    def __post_init__(self) -> None:
        check_step("lr", self.lr, self.schedule, self.nesterov, momentum=self.momentum)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> MomentumState:  # noqa: ARG002
        return MomentumState(torch.zeros_like(delta), reach)

    def step(
        self, delta: Tensor, estimate: Estimate, state: MomentumState, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, MomentumState]:
        momentum = self.momentum * state.momentum + estimate.grad
        direction = estimate.grad + self.momentum * momentum if self.nesterov else momentum
        length = self.lr * decay(self.schedule, progress.before, delta)
        next_delta = constraint.project(delta, -length[:, None, None, None] * direction)
        return next_delta, state._replace(momentum=momentum)


@stored("moments")
class Moments(NamedTuple):
    """Running means of the gradient and of its square (like delta), the number of steps, and the length that steps
    are measured in."""

    first: Tensor
    second: Tensor
    step: int
    reach: float


@dataclass(frozen=True)
class Adam(Optimiser):
    r"""Adam (Kingma & Ba 2015) in the geometry of the perturbation's norm.

    It takes the steepest step along the mean gradient, each value damped by how well its gradients agree,
    `|m| / sqrt(v)`.

    For L-inf this is `torch.optim.Adam` with a learning rate of rel_step_size * eps. In another norm an undamped step
    has that length, and goes along m rather than sign(m). Adam's `eps` is 0: the scale of the loss has no effect.

    Formula: \delta \leftarrow \Pi(\delta - \eta \, \hat{m} / \sqrt{\hat{v}})
    Use: gradients whose size differs much from value to value.
    Not: short runs: below some 200 steps its first step has to be longer.
    Cost: one gradient for each view of a step.
    Oracle: torch.optim.Adam, tests/optimisers/test_gradient.py.

    `rel_step_size` is the length of an undamped first step as a share of eps, about 1 below some 200 steps; `beta1`
    and `beta2`, 0 to below 1, are the memory of the mean gradient and of the mean square; `schedule` as of `PGD`.

    Examples:
        >>> from attacks import Adam, EOT, Linf, Toward, attack
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "eot": EOT()}
        >>> parts |= {"perturbation": Linf(8 / 255, random_start=False), "optimiser": Adam(0.3, schedule="constant")}
        >>> run = attack(torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, 192), **parts, steps=4)
        >>> [round(255 * float(step.delta.mean()), 2) for step in run]
        [-2.4, -4.8, -7.2, -8.0]
    """

    rel_step_size: float = option(
        0.5, "first step as a share of eps; more below some 200 steps", range="above 0", paper="Kingma & Ba 2015"
    )
    beta1: float = option(0.9, "memory of the mean gradient", range="[0, 1)")
    beta2: float = option(0.999, "memory of the mean square", range="[0, 1)")
    schedule: str = option("cosine", "how the step shrinks", range="constant, cosine, linear")

    def __post_init__(self) -> None:
        check_step("rel_step_size", self.rel_step_size, self.schedule, beta1=self.beta1, beta2=self.beta2)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> Moments:  # noqa: ARG002
        """The state before the first step. Moments are float64 where the device has it: the square of a very small or
        very large gradient is 0 or infinite in float32."""
        zeros = torch.zeros_like(delta, dtype=wide_dtype(delta))
        return Moments(zeros, zeros, 0, reach)

    def step(
        self, delta: Tensor, estimate: Estimate, state: Moments, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, Moments]:
        grad = estimate.grad.to(state.first)
        first = self.beta1 * state.first + (1 - self.beta1) * grad
        second = self.beta2 * state.second + (1 - self.beta2) * grad.square()
        mean = first / (1 - self.beta1 ** (state.step + 1))
        size = (second / (1 - self.beta2 ** (state.step + 1))).sqrt()
        agreement = torch.where(size > 0, mean.abs() / size, 0)
        length = self.rel_step_size * state.reach * decay(self.schedule, progress.before, delta)
        move = constraint.steepest(mean.to(delta), length, delta) * agreement.to(delta)
        return constraint.project(delta, move), state._replace(first=first, second=second, step=state.step + 1)


def l1_norm(grad: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The L1 norm of each gradient (N,C,H,W), in its type or in `dtype`, at least the smallest normal number of that
    type: (N,1,1,1), a divisor. The order of a sum does not depend on the other pictures."""
    norm = grad.new_zeros(len(grad), dtype=dtype)
    for (part,) in columns(grad.flatten(1)):
        norm += part.abs().sum(1, dtype=norm.dtype)
    return norm.clamp(min=torch.finfo(norm.dtype).tiny)[:, None, None, None]


def decay(schedule: str, progress: Tensor, like: Tensor) -> Tensor:
    """The length of a step as a share of that of the first one, for shares (D,) of the run that are done; of the type
    and on the device of `like`."""
    if schedule == "constant":
        return torch.ones_like(progress, dtype=like.dtype, device=like.device)
    length = 1 - progress if schedule == "linear" else (1 + (math.pi * progress).cos()) / 2
    return uploaded(length.to(like.dtype), like.device)


def check_step(name: str, size: float, schedule: str, nesterov: bool = False, **memories: float) -> None:
    """Raise ValueError for a length, a schedule, or a share of memory that no optimiser could use, and for `nesterov`
    without momentum."""
    if not 0 < size <= LONGEST:
        raise ValueError(f"`{name}` must be above 0 and at most {LONGEST:,}; got {size}")
    for memory, share in memories.items():
        if not 0 <= share < 1:
            raise ValueError(f"`{memory}` must lie in [0, 1); got {share}")
    check_choice("schedule", schedule, SCHEDULES)
    if nesterov and memories["momentum"] == 0:
        raise ValueError("`nesterov` needs `momentum` above 0, got 0; 0.9 is common")

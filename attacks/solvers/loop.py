"""The loop of every attack: budget, images that leave, and the end of a run.

It is a generator: progress, checkpoints and early stopping live in the caller.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.eot.adaptive import Noise
from attacks.eot.estimate import Estimate
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Done
from attacks.runtime.values import stored
from transforms.devices import uploaded
from transforms.draws import stream

#: Fields of an estimate with a row for each image, and for each delta.
OF_IMAGES, OF_DELTAS = ("mean", "stderr", "value"), ("snr", "grad", "views")
#: Of attacks that do not count the blocks of their views.
NO_BLOCKS = torch.zeros(0, dtype=torch.long)


@stored("loop_state")
class LoopState(NamedTuple):
    """All that the next step depends on, besides the problem and the options: a value, from which `attack` resumes to
    the bit."""

    index: int  # type: ignore[assignment]  # of the next step; hides tuple.index, which is not needed here
    delta: Tensor
    optimiser: Any
    estimate: Estimate | None
    evals: int
    left: Tensor  # encoder passes that each image may still have (N,)
    solved: Tensor  # images that have left (N,)
    silent: Tensor | None = None  # for how many steps in a row a delta has had no gradient
    drawn: Tensor = NO_BLOCKS  # blocks of views that each image has had (N,)
    times: Tensor = NO_BLOCKS  # blocks of views that each image's next step has (N,)
    noise: Noise | None = None  # of each delta's gradients, where it chooses the views
    generator: Tensor | None = None  # of a search


@stored("step")
class Step(NamedTuple):
    """After step `index`: the perturbation, the estimate that led there (at the perturbation *before* the step; of an
    image that took no part its last one), the encoder passes (forward and backward of one view) so far, which images
    took part (N,), the share of each image's run that is done (N,), whether this is the last step, and the `state`
    that the attack resumes from (None: it cannot).

    Examples:
        >>> from attacks import EOT, Linf, PGD, Toward, attack
        >>> from attacks.solvers import Step
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "perturbation": Linf()}
        >>> parts |= {"optimiser": PGD(), "eot": EOT(views=4)}
        >>> run: list[Step] = [*attack(torch.full((2, 3, 8, 8), 0.5), torch.zeros(2, 192), **parts, steps=2)]
        >>> [(step.index, step.evals, step.done.tolist(), step.last) for step in run]
        [(0, 8, [0.5, 0.5], False), (1, 16, [1.0, 1.0], True)]
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed here
    delta: Tensor
    estimate: Estimate
    evals: int
    active: Tensor
    done: Tensor
    last: bool
    state: Any = None


@stored("trace")
class Trace(NamedTuple):
    """One line of `steps.csv`. `attack` is the optimiser, or the member of a suite. `objective` is the mean loss of
    the step's views (of `toward`, the cosine itself); `held_out` that (or the risk, if it is not the mean) at the
    last look, on the first views of the bank that chooses among iterates, or None before the first: from few views,
    so it tells iterates of a run apart rather than how strong they are; mean `views` of a picture, and `pictures`
    that took part. `evals` are the encoder passes of the steps so far, of all pictures; those that compare iterates
    are not among them."""

    batch: int
    arm: str
    attack: str
    step: int
    objective: float
    stderr: float
    snr: float
    held_out: float | None
    views: float
    pictures: int
    evals: int


Steps = Generator[Step, Tensor | None, None]


class Turn(NamedTuple):
    """One step: its number, the images that take part, as a mask (N,) and by their numbers (R,), and the encoder
    passes (N,) that each image has left after it. All on the host."""

    number: int
    active: Tensor
    rows: Tensor
    left: Tensor


class TurnPlan(NamedTuple):
    """What is made of a turn: the state; how delta and the optimiser's memory move, given the share of the run that
    is done; and the estimate that the step shows."""

    state: LoopState
    move: Callable[[Done], tuple[Tensor, Any]]
    estimate: Estimate


Propose = Callable[[LoopState, Turn], TurnPlan]


def first_state(delta: Tensor, total: Tensor, memory: Any = None, estimate: Estimate | None = None) -> LoopState:
    """The state before the first step, of images with `total` encoder passes (N,)."""
    mask, single = torch.zeros(len(total), dtype=torch.bool), torch.ones(len(total), dtype=torch.long)
    return LoopState(0, delta, memory, estimate, 0, total, mask, times=single)


def drive(
    propose: Propose, problem: Problem, options: Options, state: LoopState, total: Tensor, extra: int = 0
) -> Steps:
    """Repeat what `propose` does for one step, from a state on, until the steps or the budgets (N,), `total` in the
    whole run, are spent or all images have left. A step has `extra` encoder passes besides its views."""
    shared, count, views, steps = problem.shared, len(problem), options.eot.views, options.steps
    for index in range(state.index, steps):
        budget, cost = state.left, state.times * views + extra
        active = ~state.solved & (budget >= cost)
        rows = active.nonzero()[:, 0]
        if not len(rows):
            return
        left = budget - cost * active
        state, move, estimate = propose(state, Turn(index, active, rows, left))
        goes_on = (left >= state.times * views + extra) & (index + 1 < steps)
        progress = done_of(shared, index, steps, torch.stack([budget, left * goes_on]) / total.double())
        delta, memory = move(progress)
        del move  # it holds the previous memory
        delta = delta if len(rows) == count else move_active(state.delta, delta, active)
        evals = state.evals + int((budget - left).sum())
        is_end = not bool((~state.solved & goes_on).any())
        state = state._replace(index=index + 1, delta=delta, optimiser=memory, evals=evals, left=left)
        answer = yield Step(index, delta, estimate, evals, active, progress.after.expand(count), is_end, state)
        if answer is not None:
            state = state._replace(solved=state.solved | answer.cpu())


def move_active(old: Tensor, new: Tensor, active: Tensor) -> Tensor:
    """The deltas after a step: those of images that took no part stay."""
    moves = active if len(old) == len(active) else active.any()[None]
    if bool(moves.all()):
        return new
    return torch.where(uploaded(moves, new.device)[:, None, None, None], new, old)


def done_of(shared: bool, index: int, steps: int, left: Tensor) -> Done:
    """The share of the run that is done before and after step `index`: of the `steps` or, where that is larger, of
    the gradients, of which shares (2,N) are `left`."""
    floor = torch.tensor([index, index + 1], dtype=torch.float64)[:, None] / steps
    shares = torch.maximum(1 - left, floor)
    return Done(*(shares.amin(1, keepdim=True) if shared else shares))


def start(problem: Problem, seed: int) -> Tensor:
    """The delta that every run of a problem with this seed begins with."""
    if problem.first is not None:
        return problem.first
    return problem.perturbation.start(problem.images, torch.Generator().manual_seed(stream(seed, "start")))


def generator_of(options: Options, state: LoopState) -> torch.Generator:
    generator = torch.Generator().manual_seed(stream(options.seed, "search"))
    if state.generator is not None:
        generator.set_state(state.generator)
    return generator


def merge_estimates(previous: Estimate | None, update: Estimate, rows: Tensor, shared: bool) -> Estimate:
    """The estimates of all images, with a step's fresh ones for some, whose numbers `rows` are on the host; the
    others have no gradient."""
    if previous is None or len(rows) == len(previous.mean):
        return update
    old = previous._replace(grad=torch.zeros_like(previous.grad))

    def insert(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, uploaded(rows, old.device), new)

    names = OF_IMAGES if shared else OF_IMAGES + OF_DELTAS
    columns: dict[str, Any] = {name: insert(getattr(old, name), getattr(update, name)) for name in names}
    return update._replace(**columns)

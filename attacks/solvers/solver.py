"""The loop run to its end, keeping for each picture the iterate that is best on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Candidates are therefore compared on common views.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.bank import Bank, bank
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Objective, Perturbation
from attacks.eot.risk import Risk
from attacks.runtime.stored import stored
from attacks.solvers.loop import LoopState, Step, Steps, merged
from attacks.solvers.search import bank_losses, loop_of
from transforms import stream

#: Views of the bank that chooses the best iterate.
VIEWS = 32
#: How many times during a run the current iterate is compared.
COMPARISONS = 5
#: With early stopping a picture leaves once its number of steps is so many times that of its best iterate.
PATIENCE = 4


@dataclass(frozen=True, eq=False)
class Selection:
    """How the best iterate is chosen: the loss of an iterate is the `risk` of its views in the bank.

    Without `early` the iterate is compared `COMPARISONS` times, at equal distances. With it after 1, 2, 3, 4, 6, 8,
    11, 16, 23, ... steps (powers of the root of 2, rounded), and a picture leaves at the first comparison after at
    least `PATIENCE` times as many steps as its best iterate has, so after three or more comparisons that have not
    improved it. Where all pictures share one delta, all leave together. Either way the last iterate is compared.
    """

    bank: Bank
    risk: Risk
    early: bool = False

    def due(self, done: int, steps: int) -> bool:
        """Whether the iterate is compared after `done` of `steps` steps."""
        if not self.early:
            return done % max(1, steps // COMPARISONS) == 0
        return done == round(2 ** (round(2 * math.log2(done)) / 2))

    def idle(self, best: "Best", done: int) -> Tensor:
        """The pictures (N,), on the CPU, that leave after a comparison because it is long since they improved."""
        return (self.early & (done >= PATIENCE * (best.step + 1))).cpu()


@stored("best")
class Best(NamedTuple):
    """The best perturbation so far (of each picture, or the one that all share), the loss of each picture under it on
    the bank (N,), the step that it comes from (N,), and the last comparison's loss (N,)."""

    delta: Tensor
    loss: Tensor
    step: Tensor
    latest: Tensor


@stored("solve_state")
class SolveState(NamedTuple):
    """All that the next step of `watch` depends on: the restart, the pictures (R,) that take part in it, the state of
    the loop, the last step of the previous restart and the latest one, the best, which pictures have moved since the
    last comparison (N,), and which are solved (N,)."""

    restart: int
    rows: Tensor
    inner: LoopState
    previous: Step | None
    step: Step
    best: Best | None
    moved: Tensor
    solved: Tensor


def solve(
    images: Tensor,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    stop: float | None = None,
    restarts: int = 1,
    **options: Any,
) -> Best:
    """Run the attack to its end: `attack` with the best iterate chosen on held-out views. Arguments and errors as
    there (`options` are those of `attacks.eot.problem.Options`); `stop` and `restarts` as in `watch`."""
    problem = Problem(images, anchor, encoder, objective, perturbation)
    best: Best | None = None
    for _, latest in watch(problem, Options(**options), stop=stop, restarts=restarts):
        best = latest
    assert best is not None  # the last step is always compared
    return best


def watch(
    problem: Problem,
    options: Options,
    *,
    stop: float | None = None,
    restarts: int = 1,
    state: SolveState | None = None,
    select: Selection | None = None,
) -> Iterator[tuple[Step, Best | None]]:
    """The steps of `attack` (of `search`, if the optimiser is gradient-free), each with the best iterate so far (None
    until the first comparison). It is chosen by `select`: by default on a bank of the attack's own views, weighed as
    the attack weighs them.

    A picture whose loss on the bank is `stop` or less is solved and leaves the batch; where all share one delta, all
    leave when one delta solves all. With `restarts` above 1 the run is repeated with other seeds, each time with all
    `steps` and the whole `budget` for the pictures that are not solved yet; all runs are compared on one bank, and
    steps and encoder passes are counted on. From a step's `state` the same run resumes after that step, to the bit.

    Raises:
        ValueError: as `attack`, for `restarts` below 1, and for `restarts` of a selection that stops early.
    """
    if type(restarts) is not int or restarts < 1:
        raise ValueError(f"`restarts` must be a whole number of runs, at least 1; got {restarts!r}")
    select = select or selection(problem, options)
    if select.early and restarts > 1:
        raise ValueError(f"`restarts` must be 1 for a selection that stops early; got {restarts}")
    device, best, shared = problem.images.device, None, problem.shared
    solved = torch.zeros(len(problem), dtype=torch.bool)
    step: Step | None = None
    if state is not None:
        step, best, solved = state.step, state.best, state.solved
    for restart in range(0 if state is None else state.restart, restarts):
        rows, previous, moved, inner = (~solved).nonzero()[:, 0].to(device), step, torch.zeros_like(solved), None
        if state is not None:
            rows, previous, moved, inner = state.rows, state.previous, state.moved, state.inner
            state = None
        if not len(rows):
            return
        running, answer = _run(problem, options, restart, rows, inner), None
        while True:
            try:
                own = running.send(answer)
            except StopIteration:
                break
            inner = own.state
            own = own._replace(state=None)
            step = own if previous is None or best is None else _joined(own, rows, previous, best)
            answer, moved = None, moved | step.active
            if select.due(own.index + 1, options.steps) or own.last:
                best = _better(best, _compared(step, best, moved, select, problem, options), shared)
                if stop is not None:
                    solved = (best.loss <= stop).cpu()
                    solved = solved.all().expand_as(solved) if shared else solved
                answer = (solved | select.idle(best, own.index + 1))[rows.cpu()]
                inner = inner._replace(solved=inner.solved | answer)
                moved = torch.zeros_like(moved)
            at = SolveState(restart, rows, inner, previous, step, best, moved, solved)
            yield step._replace(last=step.last and restart == restarts - 1, state=at), best


def _run(problem: Problem, options: Options, restart: int, rows: Tensor, state: LoopState | None) -> Steps:
    """One run on the `rows` that are left: the first one is the run of the options themselves, on all pictures."""
    run = loop_of(options.optimiser)
    if not restart:
        return run(problem, options, state)
    budget = options.budget
    if isinstance(budget, Tensor) and budget.dim():
        budget = budget[rows.to(budget.device)]
    own = replace(options, seed=stream(options.seed, "restart", restart), budget=budget)
    return run(problem.take(rows), own, state)


def _joined(own: Step, rows: Tensor, previous: Step, best: Best) -> Step:
    """A step of a later run on some `rows`, as a step of all pictures, counted on from the `previous` run's last."""
    shared = len(best.delta) < len(best.loss)
    return Step(
        index=previous.index + 1 + own.index,
        delta=own.delta if shared else best.delta.index_copy(0, rows, own.delta),
        estimate=merged(previous.estimate, own.estimate, rows, shared),
        evals=previous.evals + own.evals,
        active=torch.zeros_like(previous.active).index_copy(0, rows.cpu(), own.active),
        last=own.last,
    )


def _compared(
    step: Step, best: Best | None, moved: Tensor, select: Selection, problem: Problem, options: Options
) -> Best:
    """The current iterate on the bank; a picture that has not `moved` since the last comparison is as it was."""
    rows = torch.arange(len(problem)) if best is None or problem.shared else moved.nonzero()[:, 0]
    rows = rows.to(problem.images.device)
    delta = step.delta if problem.shared else step.delta[rows]
    loss = _bank_loss(delta, problem.take(rows), select, step.estimate.chunk, options)
    if best is not None:
        latest = best.latest.clone()
        latest[rows] = loss
        loss = latest
    return Best(step.delta, loss, torch.full_like(loss, step.index, dtype=torch.long), loss)


def _bank_loss(delta: Tensor, problem: Problem, select: Selection, chunk: int, options: Options) -> Tensor:
    """The loss of each picture on a bank (N,), as its risk weighs it, with the attack's penalty."""
    losses, penalty = bank_losses(problem, delta, select.bank, chunk, options)
    loss = select.risk.value(losses).to(losses)
    return loss if penalty is None else loss + penalty


def _better(best: Best | None, latest: Best, shared: bool) -> Best:
    """Picture by picture, the one with the lower loss; of a shared perturbation, the one with the lower mean."""
    if best is None:
        return latest
    better = (latest.loss.mean() < best.loss.mean()).expand_as(latest.loss) if shared else latest.loss < best.loss
    delta = torch.where(better[: len(latest.delta), None, None, None], latest.delta, best.delta)
    return Best(
        delta, torch.where(better, latest.loss, best.loss), torch.where(better, latest.step, best.step), latest.loss
    )


def compare(best: Best | None, other: Best, problem: Problem, options: Options) -> Best:
    """The better of two, picture by picture, where `other` comes from an attack with another objective: its loss is
    computed anew, on the problem's own bank. `best` has been so compared before."""
    loss = _bank_loss(other.delta, problem, selection(problem, options), options.eot.chunk, options)
    return _better(best, Best(other.delta, loss, other.step, loss), problem.shared)


def selection(problem: Problem, options: Options) -> Selection:
    """How an attack itself chooses among its iterates: on as many views as its risk can be taken of, weighed as in
    its steps."""
    eot, adversary = options.eot, options.adversary
    risk = eot.risk if adversary is None else adversary.risk(eot.views)
    size = max(risk.multiple, VIEWS // risk.multiple * risk.multiple) if eot.transforms.dims else risk.multiple
    views = bank(eot.transforms, size, seed=options.seed, purpose="select")
    return Selection(views._replace(u=views.u.to(problem.images)), risk)

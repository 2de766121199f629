"""The attack: its loop, and a run of it that keeps for each picture the iterate that is best on a bank of views."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.adaptive import Adaptive
from attacks.eot.estimator import EOT
from attacks.eot.minibatches import PictureSource
from attacks.eot.problem import STEPS, Options, Problem, problem_for
from attacks.eot.protocols import Adversarial, Objective, Optimiser, Penalty, Perturbation, Proposer
from attacks.runtime.values import stored
from attacks.solvers.loop import LoopState, Step, Steps, merge_estimates, start
from attacks.solvers.loops import loop_of
from attacks.solvers.selection import Chooser, Looks, Selection, selection
from transforms.devices import uploaded
from transforms.draws import stream


@stored("best")
class Best(NamedTuple):
    """The perturbation that is kept so far (of each picture, or the one that all share), its loss (N,) on the views
    of the bank that it has been seen from, the step that it comes from (N,), and the loss (N,) at the latest look.

    Examples:
        >>> from attacks import EOT, Linf, PGD, Toward, solve
        >>> from attacks.solvers import Best
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "perturbation": Linf(0.25)}
        >>> images, black = torch.full((1, 1, 2, 2), 0.5), torch.zeros(1, 4)
        >>> best: Best = solve(images, black, **parts, optimiser=PGD(), eot=EOT(), steps=5)
        >>> best.delta.shape, round(best.loss.item(), 4)  # four values of 0.25 are 0.5 from black
        (torch.Size([1, 1, 2, 2]), 0.5)
    """

    delta: Tensor
    loss: Tensor
    step: Tensor
    latest: Tensor


@stored("solve_state")
class SolveState(NamedTuple):
    """All that the next step of `run_steps` depends on: the restart, the pictures (R,) in it, the state of the loop,
    the last step of the previous restart and the latest one, what the previous restarts have kept and what is kept
    now, the looks of this restart, which pictures have moved since the last look (N,), and which are solved (N,)."""

    restart: int
    rows: Tensor
    inner: LoopState
    previous: Step | None
    step: Step
    reference: Best | None
    best: Best | None
    looks: Looks | None
    movers: Tensor
    solved: Tensor


def attack(
    images: Tensor | PictureSource,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    optimiser: Optimiser | Proposer,
    eot: EOT,
    steps: int = STEPS,
    seed: int = 0,
    budget: int | Tensor | None = None,
    adaptive: Adaptive | None = None,
    penalty: Penalty | None = None,
    adversary: Adversarial | None = None,
    state: LoopState | None = None,
) -> Steps:
    """Optimise one perturbation per image, or one for all, over the expected views, by gradient or, where the
    optimiser needs none, by forward passes alone; yields after every step.

    An image leaves the batch when its budget is spent, or when the caller declares it solved: `send` a mask (N,) of
    solved images to the generator, which answers with the next step. Its delta then stays as it is.

    Args:
        images, anchor, encoder, objective, perturbation: see `attacks.eot.problem.Problem`; images that share a
            perturbation may be a `PictureSource`, such as a `Shelf`, of which a step reads `eot.pictures`.
        optimiser, eot, steps, seed, budget, adaptive, penalty, adversary: see `attacks.eot.problem.Options`.
        state: of an earlier step of this very attack, to resume from; images declared solved after that step belong
            in its `solved`.

    Raises:
        ValueError: wrong shapes or ranges, an encoder in training mode, a start where the gradient is zero, or a
            gradient that is zero in the first step. One that is zero in five later steps in a row is a warning, and
            its image leaves.
        NotFinite: (a FloatingPointError) a loss or gradient that is not finite, with the step and the view.

    Examples:
        >>> from attacks import Away, EOT, Linf, PGD, attack
        >>> from transforms import Brightness, Compose
        >>> images, encoder = torch.full((2, 3, 8, 8), 0.5), torch.nn.Flatten().eval()
        >>> parts = {"encoder": encoder, "objective": Away("l2"), "perturbation": Linf(8 / 255), "optimiser": PGD()}
        >>> run = attack(images, encoder(images), **parts, eot=EOT(Compose([Brightness(0.01)]), views=4), steps=8)
        >>> losses = [step.estimate.mean.mean() for step in run]
        >>> len(losses), bool(losses[-1] < losses[0])
        (8, True)
    """
    options = Options(optimiser, eot, steps, seed, budget, adaptive, penalty, adversary)
    problem = problem_for(images, anchor, encoder, objective, perturbation, options)
    return loop_of(options.optimiser)(problem, options, state)


def solve(
    images: Tensor | PictureSource,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    stop: float | None = None,
    restarts: int = 1,
    **options: Any,
) -> Best:
    """`attack` run to its end, with the best iterate chosen on held-out views. Arguments and errors as there
    (`options` are those of `attacks.eot.problem.Options`); `stop` and `restarts` as in `run_steps`.

    Examples:
        >>> from attacks import EOT, Linf, PGD, Toward, solve
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "perturbation": Linf(8 / 255)}
        >>> images, black = torch.full((2, 3, 8, 8), 0.5), torch.zeros(2, 192)
        >>> best = solve(images, black, **parts, optimiser=PGD(), eot=EOT(), steps=5)
        >>> torch.allclose(best.delta, torch.full_like(images, -8 / 255))  # the nearest that the ball allows
        True
    """
    how, best = Options(**options), None
    problem = problem_for(images, anchor, encoder, objective, perturbation, how)
    for _, latest in run_steps(problem, how, stop=stop, restarts=restarts):
        best = latest
    assert best is not None  # the last step is always compared
    return best


def run_steps(
    problem: Problem,
    options: Options,
    *,
    stop: float | None = None,
    restarts: int = 1,
    state: SolveState | None = None,
    select: Selection | None = None,
) -> Iterator[tuple[Step, Best | None]]:
    """The steps of `attack` (of `random_search`, if the optimiser is gradient-free), each with what is kept so far
    (None until the first look), as `select` says: by default on a bank of the attack's own views, weighed as the
    attack weighs them.

    A picture leaves where nothing comes any more (`attacks.solvers.selection`). The gradients that it does not take
    are saved, and not handed to others, so a picture's result does not depend on its neighbours. With `stop` one
    whose loss on the whole bank is `stop` or less is solved, and leaves as well. Where all share one delta, all leave
    together. With `restarts` above 1 the run is repeated with other seeds, each time with all `steps` and the whole
    `budget` for the pictures that are not solved yet; all runs are compared on one bank, and steps and encoder passes
    are counted on. From a step's `state` the same run resumes after that step, to the bit.

    Raises:
        ValueError: as `attack`, for `restarts` below 1, and for `restarts` of an early selection.
    """
    if type(restarts) is not int or restarts < 1:
        raise ValueError(f"`restarts` must be a whole number of runs, at least 1; got {restarts!r}")
    select = select or selection(problem, options)
    if select.early and restarts > 1:
        raise ValueError(f"`restarts` must be 1 for an early selection; got {restarts}")
    device, best, shared = problem.images.device, None, problem.shared
    chooser, solved = Chooser(problem, options, select, restarts), torch.zeros(len(problem), dtype=torch.bool)
    step: Step | None = None
    if state is not None:
        step, best, solved = state.step, state.best, state.solved
    for restart in range(0 if state is None else state.restart, restarts):
        indices, previous, reference, looks = (~solved).nonzero()[:, 0], step, best, None
        movers, inner = torch.zeros_like(solved), None
        if state is not None:
            indices, previous, looks = state.rows.cpu(), state.previous, state.looks
            reference, movers, inner, state = state.reference, state.movers, state.inner, None
        if restart and not len(indices):  # without any image at all the run itself says so
            return
        rows = uploaded(indices, device)
        running, answer = _run(problem, options, restart, rows, inner), None
        while True:
            try:
                turn = running.send(answer)
            except StopIteration:
                break
            inner = turn.state
            turn = turn._replace(state=None)
            step = turn if previous is None or reference is None else _join_runs(turn, indices, previous, reference)
            answer, movers = None, movers | step.active
            previous_share = torch.zeros_like(step.done) if looks is None else looks.history[-1][0]
            due = movers & (select.plan.due(previous_share, step.done) | turn.last)
            if turn.last or bool(due.any()):
                chooser = chooser.with_chunk(step.estimate.chunk)
                looks = chooser.look(step, due, looks)
                if stop is not None:
                    looks, solved = chooser.stop_at(looks, stop, solved)
                answer, left = (solved if turn.last else solved | chooser.idle(looks))[indices], inner.solved
                inner = inner._replace(solved=left | answer)
                if turn.last or bool(inner.solved.all()):
                    left = torch.zeros_like(solved).index_put((indices,), left if turn.last else inner.solved)
                    choice = chooser.final(looks, left)
                else:
                    choice = chooser.pick(looks)
                best = _better(reference, Best(choice.delta, choice.loss, choice.step, looks.latest), shared)
                movers = movers & ~due
            at = SolveState(restart, rows, inner, previous, step, reference, best, looks, movers, solved)
            yield step._replace(last=step.last and restart == restarts - 1, state=at), best


def _run(problem: Problem, options: Options, restart: int, rows: Tensor, state: LoopState | None) -> Steps:
    """One run on the `rows` that are left: the first one is that of the options themselves, on all pictures."""
    run = loop_of(options.optimiser)
    if not restart:
        return run(problem, options, state)
    budget = options.budget
    if isinstance(budget, Tensor) and budget.dim():
        budget = budget[rows.to(budget.device)]
    run_options = replace(options, seed=stream(options.seed, "restart", restart), budget=budget)
    # Drawn for all, so that a picture's start does not depend on which others are left.
    first = start(replace(problem, first=None), run_options.seed) if state is None else None
    return run(replace(problem, first=first).take(rows), run_options, state)


def _join_runs(turn: Step, rows: Tensor, previous: Step, best: Best) -> Step:
    shared, numbers = len(best.delta) < len(best.loss), uploaded(rows, best.loss.device)
    return Step(
        index=previous.index + 1 + turn.index,
        delta=turn.delta if shared else best.delta.index_copy(0, numbers, turn.delta),
        estimate=merge_estimates(previous.estimate, turn.estimate, rows, shared),
        evals=previous.evals + turn.evals,
        active=torch.zeros_like(previous.active).index_copy(0, rows, turn.active),
        done=torch.ones_like(previous.done).index_copy(0, rows, turn.done),
        last=turn.last,
    )


def _better(best: Best | None, latest: Best, shared: bool) -> Best:
    """Picture by picture, the one with the lower loss; of a shared perturbation, the one with the lower mean."""
    if best is None:
        return latest
    better = (latest.loss.mean() < best.loss.mean()).expand_as(latest.loss) if shared else latest.loss < best.loss
    delta = torch.where(better[: len(latest.delta), None, None, None], latest.delta, best.delta)
    loss, step = (torch.where(better, *pair) for pair in ((latest.loss, best.loss), (latest.step, best.step)))
    look = torch.where(latest.latest < torch.inf, latest.latest, best.latest)  # not since it left an earlier run
    return Best(delta, loss, step, look)


def better_of(best: Best | None, other: Best, problem: Problem, options: Options, select: Selection) -> Best:
    """The better of two, picture by picture, where `other` comes from an attack with another objective: its loss is
    computed anew, on the whole bank of the selection, as that of `best` has been."""
    _, loss = select.risk_of(problem, options, other.delta, select.bank)
    return _better(best, Best(other.delta, loss, other.step, loss), problem.shared)

"""The optimised arms of an experiment, step by step, and the sanity checks of the attack."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine import engine_reset, engine_restore, engine_state
from attacks.encoders.panel import ScoredEncoder
from attacks.encoders.tree import Encoder
from attacks.eot.estimator import EOT
from attacks.eot.problem import Options, Problem, problem_for
from attacks.eot.risk import Mean
from attacks.experiment.bench import Bench, Cost, Meter
from attacks.objectives.aim import Aim, Knowledge
from attacks.objectives.composite import Evasion
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.values import reading, stored
from attacks.solvers.loop import Step, Trace, start
from attacks.solvers.selection import FEWEST, Selection, overfitting, plan_for, selection
from attacks.solvers.solver import Best, better_of, run_steps
from attacks.solvers.suite import Member, members, suite
from attacks.study.objective import shown_sign
from attacks.study.printer import fixed
from attacks.study.study import BARE, Study
from transforms.draws import stream


@stored("arm_state")
class ArmState(NamedTuple):
    """What the remaining steps of an arm depend on: attack and engine, best iterate, trace, and cost so far."""

    attack: Any
    engine: dict[str, float | int | bool]
    best: Best | None
    trace: tuple[Trace, ...]
    cost: Cost

    def with_trace(self, trace: list[Trace], count: int) -> "ArmState":
        """The same with the first `count` steps of `trace`, which may have grown since."""
        return self._replace(trace=tuple(trace[:count]))


@dataclass(frozen=True)
class Attempt:
    """What the arms of one unit have in common: the `study` of its pictures, their data, what is aimed at, and the
    limits (N,) of a detector's score, if the attack knows one. An arm begins at `first`, if there is one (see
    `first_of`), and its result is no worse."""

    bench: Bench
    study: Study
    knowledge: Knowledge
    aim: Aim
    seed: int
    batch: int = 0
    first: Best | None = None
    limits: Tensor | None = None


def optimise(
    arm: str, attempt: Attempt, meter: Meter, checkpoint: Checkpoint = NOWHERE, gradients: int = 0
) -> tuple[Best, list[Trace], bool]:
    """Run one optimised arm from `checkpoint` on, and show its progress. The arms `no_eot` and `one_view` take at
    most `gradients` steps of one view, as many as `eot` has. Last, whether the engine fell back to float32."""
    sign, trace = shown_sign(attempt.study.objective), list[Trace]()
    best = state = look = held_out = None
    encoder, follow = attempt.bench.encoder, attempt.bench.follow
    attack, progress = attempt.study.attack, attempt.bench.progress
    total = gradients or attack.views.steps * attack.restarts * len(_members(attempt))
    progress.part(arm, len(attempt.study.queries) * attack.views.gradients, total)
    with checkpoint.task(arm) as task:
        engine_reset(encoder)  # an arm does not depend on the ones before it
        if task.state is not None:
            state, engine, best, resumed_rows, earlier_cost = task.state
            engine_restore(encoder, engine)
            trace += resumed_rows
            meter.begin(earlier_cost)
            progress.skip(len(trace))
        for name, step, best in _steps(arm, attempt, gradients, state, meter.choosing):
            if best is not None and best.latest is not look:
                look, held_out = best.latest, float(best.latest.mean())  # waits for the device, once a look
            # Over the pictures: the mean loss, the root mean square of its standard errors, and the mean
            # signal-to-noise ratio and number of views. After a step of `descend` these are on the host.
            estimate = step.estimate
            means = [estimate.mean.mean(), estimate.stderr.square().mean().sqrt(), estimate.snr.mean()]
            loss, stderr, snr = torch.stack(means).double().tolist()
            views = float(estimate.views.double().mean())
            look_loss, active = None if held_out is None else sign * held_out, int(step.active.sum())
            figures = (sign * loss, stderr / len(estimate.mean) ** 0.5, snr, look_loss, views, active, step.evals)
            line = Trace(attempt.batch, arm, name, len(trace), *figures)
            trace.append(line)
            if follow is not None:
                follow(line)
            progress.step(loss=sign * line.objective, held_out=line.held_out, snr=line.snr)
            arm_state = ArmState(step.state, engine_state(encoder), best, (), meter.peek())
            task.update(partial(arm_state.with_trace, trace, len(trace)))
    assert best is not None  # the last iterate is always evaluated
    return best, trace, bool(engine_state(encoder).get("fell_back", False))


def _steps(
    arm: str, attempt: Attempt, gradients: int, state: Any, timer: Callable[[], AbstractContextManager[None]]
) -> Iterator[tuple[str, Step, Best | None]]:
    """The steps of an arm from `state` on (None: from the start), each with the name of its attack."""
    attack, options = attempt.study.attack, _full_options(attempt)
    problem, stop, restarts, first = problem_of(arm, attempt), None, 1, attempt.first
    problem = problem if first is None else replace(problem, first=first.delta)
    select = replace(selection(problem, options), timer=timer)  # the bank and the risk of `eot`, for all arms
    size = len(select.bank.u)
    if arm == "no_eot":
        views = options.eot.views if attack.sampled else 1  # the losses of a step
        plain = replace(options.eot, transforms=fixed(options.eot.transforms), views=views, risk=Mean())
        options = replace(options_of(arm, attempt), eot=plain, steps=gradients // views)
        select = replace(select, early=True, plan=overfitting(options.steps, size))
    elif arm == "one_view":
        options = replace(options_of(arm, attempt), eot=replace(options.eot, views=1, risk=Mean()), steps=gradients)
        select = replace(select, plan=plan_for(2 * gradients, size))
    else:
        stop = None if attack.stop is None else shown_sign(attempt.study.objective) * attack.stop
        restarts = attack.restarts
    settings: dict[str, Any] = {"stop": stop, "restarts": restarts, "state": state, "select": select}
    if arm in ("eot", BARE) and len(attacks := _members(attempt)) > 1:
        steps = suite(problem, options, attacks, **settings)
    else:
        steps = ((attack.optimiser, *step) for step in run_steps(problem, options, **settings))
    for name, step, best in steps:
        if first is not None and best is not None and step.last:  # the first steps may lose ground
            best = better_of(first, best, problem, options, _on_few_views(select))
        yield name, step, best


def first_of(attempt: Attempt, meter: Meter, bare: Tensor | None) -> Best:
    """Where the arm `eot` begins, with its loss on views that compare iterates: at `attack.start_from`, or its seed's
    start, or, picture by picture, at the result of the arm `bare` where its loss through the defence is lower."""
    problem, options, origin = problem_of("eot", attempt), _full_options(attempt), attempt.study.start
    select, best = _on_few_views(replace(selection(problem, options), timer=meter.choosing)), None
    zero = torch.zeros_like(problem.images[:, 0, 0, 0])
    for delta in (start(problem, options.seed) if origin is None else origin.to(zero), bare):
        if delta is not None:
            delta = problem.constraint.project(delta, torch.zeros_like(delta))
            candidate = Best(delta, zero, torch.full_like(zero, -1, dtype=torch.long), zero)
            best = better_of(best, candidate, problem, options, select)
    assert best is not None
    return best


def _on_few_views(select: Selection) -> Selection:
    """As many as two finalists meet on: the whole bank would take more passes than a short attack."""
    return replace(select, bank=select.bank._replace(u=select.bank.u[: max(FEWEST, select.plan.full)]))


def problem_of(arm: str, attempt: Attempt, encoder: Encoder | None = None) -> Problem:
    """What is solved in an arm, at the highest price of a detector's score; `encoder`: None for that of the bench."""
    aim, perturbation, store = attempt.aim, attempt.study.perturbation.for_arm(arm), attempt.study.queries.store
    images = attempt.knowledge.images if store is None else store
    options = _full_options(attempt)  # those of all arms, which compare iterates on the same pictures
    encoder = encoder or attempt.bench.encoder
    if attempt.limits is not None:
        encoder, aim = ScoredEncoder(encoder), _priced(aim, max(attempt.study.attack.prices), attempt)
    return problem_for(images, aim.anchor, encoder, aim.objective, perturbation, options)


def _priced(aim: Aim, price: float, attempt: Attempt) -> Aim:
    return Aim(Evasion(aim.objective, price), {"features": aim.anchor, "limit": attempt.limits})


def options_of(arm: str, attempt: Attempt) -> Options:
    """How an arm is attacked at a fixed number of views, with a stream of its own."""
    study, bench = attempt.study, attempt.bench
    views, size = study.views.per_step, study.attack.pictures
    return Options(
        optimiser=study.optimiser,
        eot=EOT(study.transforms, study.draws, views, bench.chunk, study.risk, bench.world, size),
        steps=study.views.steps,
        seed=stream(attempt.seed, arm),
        penalty=study.penalty,
    )


def _full_options(attempt: Attempt) -> Options:
    """The options of the arm `eot`: with the adversary, or with views chosen by their noise."""
    attack, views, options = attempt.study.attack, attempt.study.views, options_of("eot", attempt)
    if attack.nearest is not None:
        return options
    options = replace(options, adversary=attack.adversary)
    return options if views.adaptive is None else replace(options, adaptive=views.adaptive, budget=views.gradients)


def _members(attempt: Attempt) -> list[Member]:
    """The attacks of the arm `eot`, at one price of a detector's score after another, each from the best before."""
    attack, aim, optimiser = attempt.study.attack, attempt.aim, attempt.study.optimiser
    attacks = [Member(attack.optimiser, *aim, optimiser)]
    if attack.nearest is not None:
        attacks = members(attempt.knowledge, attack.nearest, aim, optimiser)
    if attempt.limits is None:
        return attacks
    return [
        Member(f"{name} at price {price:g}", *_priced(Aim(*aim), price, attempt), optimiser, rank > 0)
        for rank, price in enumerate(attack.prices)
        for name, *aim, optimiser, _ in attacks
    ]


def csv(trace: list[Trace]) -> str:
    """The content of steps.csv."""

    def cell(value: object) -> str:
        return "" if value is None or value != value else f"{value:.6g}" if isinstance(value, float) else str(value)

    return "\n".join([",".join(Trace._fields), *(",".join(map(cell, line)) for line in trace)]) + "\n"


def trace_of(out: Path) -> list[Trace]:
    """The rows of steps.csv in a run directory, to its digits. Raises Damaged where `csv` writes another text."""
    types, trace = (
        {"batch": int, "arm": str, "attack": str, "step": int, "pictures": int, "evals": int},
        list[Trace](),
    )
    with reading("steps.csv"):
        text = (out / "steps.csv").read_text(encoding="utf-8")
        for line in text.splitlines()[1:]:
            row = dict(zip(Trace._fields, line.split(","), strict=True))
            values: Any = {name: types.get(name, float)(cell or "nan") for name, cell in row.items()}
            trace.append(Trace(**values | ({} if row["held_out"] else {"held_out": None})))
        if csv(trace) != text:
            raise ValueError("it must have the columns and the digits of a run")
    return trace

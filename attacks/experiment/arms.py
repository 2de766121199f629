"""The optimised arms of an experiment, step by step, and the sanity checks of the attack."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from attacks.encoders.engine import engine_reset, engine_restore, engine_state
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import EOT
from attacks.eot.problem import Options, Problem
from attacks.eot.risk import Mean
from attacks.evaluation.sanity.battery import examine
from attacks.evaluation.sanity.check import Sanity
from attacks.experiment.cost import Counted, Meter, Spent
from attacks.objectives.aim import Aim, Known
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.distributed import World
from attacks.runtime.progress import Progress
from attacks.runtime.stored import stored
from attacks.schema import groups
from attacks.schema.encoder import SAMPLING
from attacks.schema.validate import Run
from attacks.solvers.loop import Step
from attacks.solvers.selection import overfitting, planned, selection
from attacks.solvers.solver import Best, watch
from attacks.solvers.suite import Member, members, suite
from attacks.solvers.trace import Trace
from attacks.solvers.worst import Adversary
from attacks.study.objective import shown_sign
from attacks.study.printer import fixed
from attacks.study.study import Parts
from transforms.draws import stream


@stored("arm_state")
class ArmState(NamedTuple):
    """All that the remaining steps of an arm depend on: the state of its attack and of the engine, the best iterate,
    the trace, and the cost so far."""

    attack: Any
    engine: dict[str, float | int | bool]
    best: Best | None
    trace: tuple[Trace, ...]
    spent: Spent

    def with_trace(self, trace: list[Trace], count: int) -> "ArmState":
        """The same with the first `count` steps of `trace`, which may have grown since."""
        return self._replace(trace=tuple(trace[:count]))


@dataclass(frozen=True)
class Setting:
    """What the arms of one batch of pictures have in common."""

    run: Run
    parts: Parts
    world: World
    encoder: Counted  # as the engine runs it, for the gradients
    aim: Aim
    chunk: int
    seed: int
    batch: int = 0
    follow: Callable[[Trace], None] | None = None  # called after each step


def optimise(
    arm: str, setting: Setting, known: Known, meter: Meter, checkpoint: Checkpoint = NOWHERE, spent: int = 0
) -> tuple[Best, list[Trace]]:
    """Run one optimised arm, continuing from `checkpoint`, and show its progress. The arms `no_eot` and `one_view`
    take at most `spent` steps of one view: as many gradients as views lead the steps of the arm `eot`."""
    sign, best, state = shown_sign(setting.run.objective), None, None
    looked, held_out = None, None
    trace: list[Trace] = []
    expected = spent or _expected(setting, known)
    title = f"{arm}, batch {setting.batch}" if setting.batch else arm
    with checkpoint.task(arm) as task, Progress(title, expected, visible=setting.world.first) as progress:
        engine_reset(setting.encoder)  # an arm does not depend on the ones before it
        if task.state is not None:
            state, engine, best, earlier, earlier_cost = task.state
            engine_restore(setting.encoder, engine)
            trace += earlier
            meter.begin(earlier_cost)
            progress.skip(len(trace))
        for name, step, best in _steps(arm, setting, known, spent, state, meter.choosing):
            if best is not None and best.latest is not looked:
                looked, held_out = best.latest, float(best.latest.mean())  # waits for the device, once a look
            loss, stderr, snr, views = averaged(step.estimate)
            line = Trace(
                batch=setting.batch,
                arm=arm,
                attack=name,
                step=len(trace),
                objective=sign * loss,
                stderr=stderr / len(known.images) ** 0.5,
                snr=snr,
                held_out=None if held_out is None else sign * held_out,
                views=views,
                pictures=int(step.active.sum()),
                evals=step.evals,
            )
            trace.append(line)
            if setting.follow is not None:
                setting.follow(line)
            progress.step(loss=sign * line.objective, held_out=line.held_out, snr=line.snr)
            arm_state = ArmState(step.state, engine_state(setting.encoder), best, (), meter.peek())
            task.update(partial(arm_state.with_trace, trace, len(trace)))
    assert best is not None  # the last iterate is always evaluated
    return best, trace


def averaged(estimate: Estimate) -> tuple[float, float, float, float]:
    """Over the pictures of a step: the mean loss, the root mean square of its standard errors, and the mean
    signal-to-noise ratio and number of views. After a step of `descend` these are on the host."""
    values = [estimate.mean.mean(), estimate.stderr.square().mean().sqrt(), estimate.snr.mean()]
    loss, stderr, snr = torch.stack(values).double().tolist()
    return loss, stderr, snr, float(estimate.views.double().mean())


def question(purpose: str, setting: Setting, known: Known) -> tuple[Problem, Options]:
    """What an attack at a fixed number of views solves and how, with a stream of its own."""
    return _problem("eot", setting, known), _options(purpose, setting)


def check(setting: Setting, known: Known, trace: list[Trace], module: nn.Module) -> Sanity | None:
    """The configured sanity checks of the run's own attack, on its first pictures."""
    run, parts, sanity = setting.run, setting.parts, setting.run.sanity
    if not sanity.pictures:
        return None
    engine_reset(setting.encoder)
    rows = torch.arange(min(sanity.pictures, len(known.images)), device=known.images.device)
    sign = shown_sign(run.objective)
    held_out = [line.held_out for line in trace if line.attack == trace[0].attack][
        : parts.views.steps
    ]  # of the first restart
    problem, options = _problem("eot", setting, known), replace(_options("sanity", setting), steps=sanity.steps)
    if parts.views.adaptive is not None:  # short runs need views enough to show the noise
        options = replace(options, eot=replace(options.eot, views=sanity.views * parts.risk.multiple))
    return examine(
        replace(problem, encoder=setting.encoder.encoder).take(rows),
        options,
        views=max(sanity.views, options.eot.views) if run.optimiser.name in SAMPLING else sanity.views,
        planned=parts.views.steps,
        trace=[None if loss is None else sign * loss for loss in held_out],
        module=module,
    )


def _steps(
    arm: str,
    setting: Setting,
    known: Known,
    spent: int,
    state: Any,
    measured: Callable[[], AbstractContextManager[None]],
) -> Iterator[tuple[str, Step, Best | None]]:
    """The steps of an arm from `state` on (None: from the start), each with the name of its attack."""
    run, attack, options = setting.run, setting.run.attack, _full_options(setting)
    problem, stop, restarts = _problem(arm, setting, known), None, 1
    select = replace(selection(problem, options), measured=measured)  # the bank and the risk of `eot`, for all arms
    size, multiple = len(select.bank.u), select.risk.multiple
    if arm == "no_eot":
        each = options.eot.views if run.optimiser.name in SAMPLING else 1  # the losses of a step
        plain = EOT(fixed(options.eot.transforms), options.eot.draws, views=each, chunk=setting.chunk)
        options = replace(_options(arm, setting), eot=plain, steps=spent // each)
        select = replace(select, early=True, plan=overfitting(options.steps, size, multiple))
    elif arm == "one_view":
        options = replace(_options(arm, setting), eot=replace(options.eot, views=1, risk=Mean()), steps=spent)
        select = replace(select, plan=planned(2 * spent, size, multiple))
    elif isinstance(attack, groups.SuiteConfig):
        yield from suite(problem, options, _members(setting, known, attack), state=state, select=select)
        return
    else:
        stop = None if attack.stop is None else shown_sign(run.objective) * attack.stop
        restarts = attack.restarts
    for step, best in watch(problem, options, stop=stop, restarts=restarts, state=state, select=select):
        yield run.optimiser.name, step, best


def _problem(arm: str, setting: Setting, known: Known) -> Problem:
    aim, perturbation = setting.aim, setting.parts.perturbation.for_arm(arm)
    return Problem(known.images, aim.anchor, setting.encoder, aim.objective, perturbation)


def _options(arm: str, setting: Setting) -> Options:
    parts = setting.parts
    return Options(
        optimiser=parts.optimiser,
        eot=EOT(parts.transforms, parts.draws, views=parts.views.each, chunk=setting.chunk, risk=parts.risk),
        steps=parts.views.steps,
        seed=stream(setting.seed, arm),
        world=setting.world,
        penalty=parts.penalty,
    )


def _full_options(setting: Setting) -> Options:
    """The options of the arm `eot`: with the adversary, or with views chosen by their noise."""
    attack, views, options = setting.run.attack, setting.parts.views, _options("eot", setting)
    if isinstance(attack, groups.SuiteConfig):
        return options
    if attack.adversary is not None:
        options = replace(options, adversary=Adversary(attack.adversary, attack.refine))
    return options if views.adaptive is None else replace(options, adaptive=views.adaptive, budget=views.gradients)


def _expected(setting: Setting, known: Known) -> int:
    """The number of steps, if no attack ends early."""
    attack, steps = setting.run.attack, setting.parts.views.steps
    if isinstance(attack, groups.SuiteConfig):
        return steps * len(_members(setting, known, attack))
    return steps * int(attack.restarts)


def _members(setting: Setting, known: Known, attack: groups.SuiteConfig) -> list[Member]:
    return members(known, attack.nearest, setting.aim, setting.parts.optimiser)


def csv(trace: list[Trace]) -> str:
    def cell(value: object) -> str:
        return "" if value is None or value != value else f"{value:.6g}" if isinstance(value, float) else str(value)

    rows = [",".join(Trace._fields), *(",".join(map(cell, line)) for line in trace)]
    return "\n".join(rows) + "\n"


def read_steps(text: str) -> list[Trace]:
    """The inverse of `csv`, with the digits that it has. Raises ValueError where `csv` does not write the text."""
    types = {"batch": int, "arm": str, "attack": str, "step": int, "pictures": int, "evals": int}
    trace = []
    for line in text.splitlines()[1:]:
        row = dict(zip(Trace._fields, line.split(","), strict=True))
        values: Any = {name: types.get(name, float)(cell or "nan") for name, cell in row.items()}
        trace.append(Trace(**values | ({} if row["held_out"] else {"held_out": None})))
    if csv(trace) != text:
        raise ValueError("it must have the columns and the digits of a run")
    return trace

"""The smallest radius at which each picture is broken: one attack during which the radius follows the success.

It shrinks where the picture is broken and grows where it is not, by less and less (as in DDN, Rony et al. 2019, and
FMN, Pintor et al. 2021, here for the expected success over views).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.eot.problem import Options, Problem
from attacks.perturbations.ball import Ball
from attacks.perturbations.radii import Radii
from attacks.runtime.values import stored
from attacks.solvers.descent import descend
from attacks.solvers.loop import LoopState
from transforms.draws import stream

#: The first and the last factor by which a radius changes.
FACTORS = 2.0, 1.003
#: The first step, as a share of that of a run from a random start.
PACE = 0.5
#: The smallest radius that is tried, as a share of the largest.
MIN_SHARE = 1e-3
#: A picture is broken where this share of the views succeeds.
HALF = 0.5
#: The most and the fewest views of a trial, and at least how many trials' worth of passes a search has.
VIEWS, FEWEST, TRIALS = 32, 4, 24


@stored("radius_state")
class RadiusState(NamedTuple):
    """All that the next trial of a search depends on, and the result so far: how many radii of each picture have been
    tried, the state of the attack, the radii (N,) of the latest trial, the smallest radius (N,) at which each picture
    is broken (infinite: none yet), the delta (N,C,H,W) that does it, its share of success (N,), and the encoder
    passes, forward and backward, of each picture."""

    trials: int
    inner: LoopState | None
    radii: Tensor
    smallest: Tensor
    delta: Tensor
    share: Tensor
    passes: int

    @property
    def broken(self) -> Tensor:
        return self.smallest.isfinite()


class RadiusTrial(NamedTuple):
    """How a delta is tried: by the `success` of deltas (N,C,H,W), the share (N,) of `views` views in which each
    picture is no longer matched; and whether deltas are rounded to 8-bit `files` first."""

    success: Callable[[Tensor], Tensor]
    views: int
    files: bool = True


def smallest_radius(
    problem: Problem,
    options: Options,
    trial: RadiusTrial,
    first: Tensor,
    *,
    passes: int,
    state: RadiusState | None = None,
) -> Iterator[RadiusState]:
    """Look for the smallest radius at which half of the views succeed, for each picture; yields after every trial.

    The perturbation of the `problem`, a `Ball`, is the largest set, and `first` (N,C,H,W) the result of an attack in
    it. `options` are those of an attack at one radius; their `steps` follow from `passes`, the most encoder passes of
    each picture, forward and backward. From the `state` of a trial the search resumes after it, to the bit.
    """
    step_count, trials = trial_plan(options, trial, passes)
    options = replace(options, steps=max(1, trials * step_count), seed=stream(options.seed, "radius"), budget=None)
    if state is None:
        state = _after_trial(_initial_state(problem, first, trial), first, problem, trial)
        yield state
    for number in range(state.trials, trials + 1):
        state = _next_radii(state, problem, trial, (number - 1) / max(1, trials - 1))
        inner = _steps(state, first if state.inner is None else state.inner.delta, problem, options, step_count)
        state = state._replace(inner=inner, passes=state.passes + 2 * step_count * options.eot.views)
        state = _after_trial(state, inner.delta, problem, trial)
        yield state


def views_of(passes: int) -> int:
    """The number of views in each trial of a search with so many passes for each picture: as many as leave room for
    `TRIALS` trials, but at least `FEWEST` and at most `VIEWS`."""
    return max(FEWEST, min(VIEWS, passes // TRIALS))


def trial_plan(options: Options, trial: RadiusTrial, passes: int) -> tuple[int, int]:
    """The steps between two trials, which cost about as much as a trial, and the number of trials after those of the
    untouched pictures and of the first delta."""
    step = 2 * options.eot.views
    step_count = max(1, round(trial.views / step))
    return step_count, max(0, (passes - 2 * trial.views) // (step_count * step + trial.views))


def _initial_state(problem: Problem, first: Tensor, trial: RadiusTrial) -> RadiusState:
    """The state before the first trial. A picture that is broken as it is has the radius 0."""
    like = problem.images.new_zeros(len(problem), dtype=torch.float64)
    share = trial.success(torch.zeros_like(first)).to(like)
    mask = share >= HALF
    delta = torch.where(mask[:, None, None, None], 0, first)
    smallest = torch.where(mask, 0, like + math.inf)
    return RadiusState(0, None, like + problem.perturbation.eps, smallest, delta, share, trial.views)


def _after_trial(state: RadiusState, delta: Tensor, problem: Problem, trial: RadiusTrial) -> RadiusState:
    quantised = _sets(problem, state.radii, delta).quantise(delta, problem.images) if trial.files else delta
    share, norm = trial.success(quantised).to(state.share), problem.perturbation.norm(quantised).to(state.smallest)
    better = (share >= HALF) & (norm < state.smallest)
    return RadiusState(
        state.trials + 1,
        state.inner,
        torch.where(share >= HALF, norm, state.radii),
        torch.where(better, norm, state.smallest),
        torch.where(better[:, None, None, None], quantised, state.delta),
        torch.where(better | ~state.broken, share, state.share),
        state.passes + trial.views,
    )


def _next_radii(state: RadiusState, problem: Problem, trial: RadiusTrial, time: float) -> RadiusState:
    """The state with the radii of the next trial, at the share `time` of all trials."""
    low, high = (math.log(factor) for factor in FACTORS)
    factor = math.exp(low * (high / low) ** time)
    down = state.smallest / factor
    middle = (state.radii * state.smallest).sqrt()
    up = torch.minimum(state.radii * factor, middle).clamp(max=problem.perturbation.eps)
    radii = torch.where(state.broken & (state.radii >= state.smallest), down, up)
    radii = radii.clamp(min=MIN_SHARE * problem.perturbation.eps)
    assert isinstance(problem.perturbation, Ball)
    return state._replace(radii=problem.perturbation.in_files(radii) if trial.files else radii)


def _steps(state: RadiusState, delta: Tensor, problem: Problem, options: Options, count: int) -> LoopState:
    """The state of the attack after `count` more steps from `delta`, in the sets of the present radii."""
    norm = problem.perturbation.norm(delta)
    # The direction is kept, and the room used.
    share = (state.radii.to(norm) / torch.where(norm > 0, norm, 1.0))[:, None, None, None]
    sets = _sets(problem, state.radii, delta)
    sets = replace(sets, first=sets.project(delta * share, problem.images))
    inner = state.inner
    if inner is not None:
        inner = inner._replace(delta=sets.first)
        if getattr(inner.optimiser, "point", None) is not None:  # of an optimiser that looks ahead
            inner = inner._replace(optimiser=inner.optimiser._replace(point=sets.first))
    run = descend(replace(problem, perturbation=sets), options, inner)
    for step in islice(run, count):  # none where every picture has left
        inner = step.state
    run.close()
    assert inner is not None  # no picture leaves before the first step
    return inner


def _sets(problem: Problem, radii: Tensor, delta: Tensor) -> Radii:
    assert isinstance(problem.perturbation, Ball)
    return Radii(problem.perturbation, radii, delta, PACE)

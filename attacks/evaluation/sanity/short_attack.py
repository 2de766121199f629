"""Short runs of an attack, all scored on the same views."""

from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree
from attacks.eot.bank import Bank, bank, judged
from attacks.eot.problem import Options, Problem
from attacks.solvers.loop import start
from attacks.solvers.loops import loop_of
from transforms.compose import seen
from transforms.doors import unchecked

#: The number of views that score a run, and that select one of its iterates.
JUDGES, CHOOSERS = 32, 16
#: The iterates to select from, as shares of a run: not every optimiser ends at its best one.
CANDIDATES = (0.5, 0.75, 1.0)


class ShortRun(NamedTuple):
    """The result of a run: the `delta`, its `losses` on the judging views (N,V), the (delta, gradient) before the
    first and the last step, and the noise `c` of one view's gradient in every step (steps,deltas)."""

    delta: Tensor
    losses: Tensor
    start: tuple[Tensor, Tensor]
    end: tuple[Tensor, Tensor]
    c: Tensor


class PassCount:
    """The number of views in passes through encoders, `forward` and `backward`."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

    def count(self, encoder: Encoder) -> Encoder:
        @wraps(encoder, assigned=(), updated=())  # the engine looks for its encoder behind the wrapper
        def counter(images: Tensor, **draws: Any) -> Tree:
            self.forward += len(images)
            self.backward += len(images) * images.requires_grad
            return unchecked(encoder)(images, **draws)

        return counter


@dataclass(frozen=True)
class ShortAttack:
    """An attack of few pictures and steps: its problem and options, banks of views, a count of passes."""

    problem: Problem
    options: Options
    judges: Bank
    choosers: Bank
    passes: PassCount

    @property
    def images(self) -> Tensor:
        return self.problem.images

    def run(self, **changes: Any) -> ShortRun:
        """Run the attack with some fields of its problem or options changed. Raises as `attack` does."""
        problem, options = self._with_changes(changes)
        end = options.steps - 1
        places = [round(share * end) for share in CANDIDATES]
        at, candidates, ends, noise = start(problem, options.seed), [], [], []
        for step in loop_of(options.optimiser)(problem, options, None):
            if step.index == 0 or step.last:
                ends.append((at, step.estimate.grad))
            candidates += [step.delta] * (places.count(step.index) or step.last)  # it may end early
            noise.append(step.estimate.c)
            at = step.delta
        delta = self._best(candidates, problem, options)
        losses = self._losses(self.judges, delta, problem, options)
        return ShortRun(delta, losses, ends[0], ends[-1], torch.stack(noise).cpu())

    def start(self) -> Tensor:
        return start(self.problem, self.options.seed)

    def clean_losses(self) -> Tensor:
        """The losses (N,V) of the pictures without a perturbation."""
        problem, options = self.problem, self.options
        finished = judged(problem.images, problem.anchor, problem.encoder, problem.objective, problem.images)
        return self.judges.losses_of(finished, options.eot.chunk, options.eot.world)

    def judge(self, delta: Tensor, **changes: Any) -> Tensor:
        """The losses (N,V) of a perturbation on the judging views."""
        return self._losses(self.judges, delta, *self._with_changes(changes))

    def _with_changes(self, changes: dict[str, Any]) -> tuple[Problem, Options]:
        names = {field.name for field in fields(Problem)}
        problem = replace(self.problem, **{key: value for key, value in changes.items() if key in names})
        return problem, replace(self.options, **{key: value for key, value in changes.items() if key not in names})

    def _best(self, deltas: list[Tensor], problem: Problem, options: Options) -> Tensor:
        """The delta of each picture, or the shared one, with the lowest loss on the choosing views."""
        scores = [self._losses(self.choosers, delta, problem, options).mean(1) for delta in deltas]
        score = torch.stack(scores)
        score = score.mean(1, keepdim=True) if problem.shared else score
        first, stack = score.argmin(0), torch.stack(deltas)
        return stack[first, torch.arange(stack.shape[1], device=stack.device)]

    def _losses(self, views: Bank, delta: Tensor, problem: Problem, options: Options) -> Tensor:
        images, penalty = problem.images, options.penalty
        with torch.no_grad():
            scene = problem.perturbation.scene(images, delta)
        finished = judged(scene, problem.anchor, problem.encoder, problem.objective, images)
        losses = views.losses_of(finished, options.eot.chunk, options.eot.world)
        return losses if penalty is None else losses + penalty(delta, seen(scene), images)[:, None]


def short_attack(problem: Problem, options: Options, passes: PassCount) -> ShortAttack:
    """A short attack with banks of its own: views that neither the attack nor its evaluation uses."""
    transforms, images = options.eot.transforms, problem.images

    def views(count: int, purpose: str) -> Bank:
        points = bank(transforms, count if transforms.dims else 1, seed=options.seed, purpose=purpose)
        return points._replace(u=points.u.to(images))

    return ShortAttack(problem, options, views(JUDGES, "sanity"), views(CHOOSERS, "sanity-select"), passes)

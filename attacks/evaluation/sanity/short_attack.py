"""Short runs of an attack, all scored on the same views."""

import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.encoders.passes import PassCount
from attacks.eot.bank import Bank, bank, judged
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Perturbation
from attacks.solvers.loop import start
from attacks.solvers.loops import loop_of
from transforms.compose import seen

#: The number of views that score a run, and that select one of its iterates.
JUDGES, CHOOSERS = 32, 16
#: The iterates to select from, as shares of a run: not every optimiser ends at its best one.
CANDIDATES = (0.5, 0.75, 1.0)

#: The sum of all steps of a short run, in radii: twice across the set, of which a schedule takes one half.
CROSSING = 4.0


class ShortRun(NamedTuple):
    """The result of a run: the `delta`, its `losses` on the judging views (N,V), the (delta, gradient) before the
    first and the last step, and the noise `c` of one view's gradient in every step (steps,deltas)."""

    delta: Tensor
    losses: Tensor
    start: tuple[Tensor, Tensor]
    end: tuple[Tensor, Tensor]
    c: Tensor


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
        places = [round(share * (options.steps - 1)) for share in CANDIDATES]
        at, candidates, ends, noise = start(problem, options.seed), [], [], []
        for step in loop_of(options.optimiser)(problem, options, None):
            if step.index == 0 or step.last:
                ends.append((at, step.estimate.grad))
            candidates += [step.delta] * (places.count(step.index) or step.last)  # it may end early
            noise.append(step.estimate.c)
            at = step.delta
        # of each picture, or the shared one, that with the lowest loss on the choosing views
        score = torch.stack([self._losses(self.choosers, delta, problem, options).mean(1) for delta in candidates])
        first, deltas = (score.mean(1, keepdim=True) if problem.shared else score).argmin(0), torch.stack(candidates)
        delta = deltas[first, torch.arange(deltas.shape[1], device=deltas.device)]
        losses = self._losses(self.judges, delta, problem, options)
        return ShortRun(delta, losses, ends[0], ends[-1], torch.stack(noise).cpu())

    def clean_losses(self) -> Tensor:
        """The losses (N,V) of the pictures without a perturbation."""
        problem, eot = self.problem, self.options.eot
        clean = judged(self.images, problem.anchor, problem.encoder, problem.objective, self.images)
        return self.judges.losses_of(clean, eot.chunk, eot.world)

    def judge(self, delta: Tensor, **changes: Any) -> Tensor:
        """The losses (N,V) of a perturbation on the judging views."""
        return self._losses(self.judges, delta, *self._with_changes(changes))

    def _with_changes(self, changes: dict[str, Any]) -> tuple[Problem, Options]:
        names = {field.name for field in fields(Problem)}
        problem = replace(self.problem, **{key: value for key, value in changes.items() if key in names})
        return problem, replace(self.options, **{key: value for key, value in changes.items() if key not in names})

    def _losses(self, views: Bank, delta: Tensor, problem: Problem, options: Options) -> Tensor:
        images, penalty = problem.images, options.penalty
        with torch.no_grad():
            scene = problem.perturbation.scene(images, delta)
        finished = judged(scene, problem.anchor, problem.encoder, problem.objective, images)
        losses = views.losses_of(finished, options.eot.chunk, options.eot.world)
        return losses if penalty is None else losses + penalty(delta, seen(scene), images)[:, None]


def short_attack(problem: Problem, options: Options, passes: PassCount) -> ShortAttack:
    """A short attack with banks of its own: views that neither the attack nor its evaluation uses."""
    transforms = options.eot.transforms
    counts = {"sanity": JUDGES, "sanity-select": CHOOSERS} if transforms.dims else {"sanity": 1, "sanity-select": 1}
    banks = (bank(transforms, count, seed=options.seed, purpose=purpose) for purpose, count in counts.items())
    judges, choosers = (points._replace(u=points.u.to(problem.images)) for points in banks)
    return ShortAttack(problem, options, judges, choosers, passes)


def _fields(part: Any) -> set[str]:
    return {field.name for field in fields(part) if field.init} if is_dataclass(part) else set()


def resized(perturbation: Any, eps: float) -> Any:
    """The perturbation with the radius `eps`, in its own unit (an integer stays one, at least 1); of a wrapper, with
    that of its innermost part. None for a set without a radius."""
    names = _fields(perturbation)
    if "inner" in names:
        inner = resized(perturbation.inner, eps)
        return None if inner is None else replace(perturbation, inner=inner)
    is_integer = "eps" in names and isinstance(perturbation.eps, int)
    return replace(perturbation, eps=max(1, round(eps)) if is_integer else eps) if "eps" in names else None


def rescale(optimiser: Any, ratio: float) -> Any:
    """The optimiser for a radius `ratio` times as large: a learning rate (`lr`) grows; other steps are relative."""
    return replace(optimiser, lr=optimiser.lr * ratio) if "lr" in _fields(optimiser) else optimiser


def hasten(optimiser: Any, run_steps: int, steps: int) -> Any:
    """The optimiser for a run of `steps` instead of `run_steps`. A relative step size is raised until the steps cross
    the set, but they go no farther than the whole run: a step that is too short remains so."""
    if "rel_step_size" not in _fields(optimiser):
        return optimiser
    size = optimiser.rel_step_size
    return replace(optimiser, rel_step_size=max(size, min(size * run_steps / steps, CROSSING / steps)))


def largest(perturbation: Perturbation, images: Tensor) -> float:
    """The radius from which the set no longer binds: the norm of a change of all values by 1."""
    delta = torch.ones_like(perturbation.noise(images, torch.Generator().manual_seed(0)))
    return float(perturbation.norm(delta).max())


def cards(perturbation: Perturbation, images: Tensor, seed: int) -> dict[str, Tensor]:
    """Deltas that need no search: as much white, black or noise as the set allows."""
    noise = perturbation.noise(images, torch.Generator().manual_seed(seed))
    white, black = (perturbation.move(torch.zeros_like(noise), torch.full_like(noise, by), images) for by in (1, -1))
    return {"white": white, "black": black, "noise": noise}


def redrawn(module: nn.Module, seed: int) -> nn.Module | None:
    """A copy with each parameter's values in random order, which keeps their size; None if no parameter has two."""
    other, generator = copy.deepcopy(module).requires_grad_(False), torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in other.parameters() if parameter.numel() > 1]
    for parameter in parameters:
        order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
        parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
    return other if parameters else None

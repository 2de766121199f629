"""The rules of the sanity checks, most of which compare losses (N,V) on the same views; lower is stronger."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.eot.protocols import Perturbation
from attacks.evaluation.sanity.check import Check, ruled, skipped


def redrawn(module: nn.Module, seed: int) -> nn.Module | None:
    """A copy with each parameter's values in random order, so that every layer keeps the size of its weights. None
    where no parameter has two values."""
    other, generator = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in other.parameters() if parameter.numel() > 1]
    if not parameters:
        return None
    with torch.no_grad():
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
    return other.requires_grad_(False)


#: The names of two checks.
ROOM, NOISE = "room to move", "gradient noise"
#: The largest share of values without a gradient, and of a first step that the set may take back (a set that counts
#: pixels takes back most of any step).
DEAD, LOST = 0.5, 0.999
#: The step that measures what the set takes back, as a share of the perturbation's reach.
PROBE = 0.01
#: The lowest cosine of a step's gradient to the true one, and the recommended one.
POOR, WANTED = 0.2, 0.7


def room(
    perturbation: Perturbation, images: Tensor, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor]
) -> Check:
    """The share of values whose gradient is exactly zero, and the share of a short step along the gradient that the
    set takes back (the ball's edge, the picture's black and white), where the run begins and where it ends. A good
    attack has little room at its end; at its start it must have some."""
    figures = {}
    for name, (delta, grad) in (("start", start), ("end", end)):
        figures[f"zero gradients at the {name}"] = _zero(perturbation, grad, images)
        figures[f"step lost at the {name}"] = _lost(perturbation, delta, grad, images)
    dead, lost, last_dead, last_lost = figures.values()
    message = (
        f"{dead:.0%} of the values had no gradient at the start ({last_dead:.0%} at the end), and the set took back "
        f"{lost:.0%} of a short step ({last_lost:.0%} at the end)"
    )
    good = dead <= DEAD and lost <= LOST
    if dead > DEAD:
        message += "; the views or the encoder see few of the pixels: audit them (scripts/audit.py)"
    elif lost > LOST:
        message += "; the start leaves no room: begin inside the set (random_start)"
    return ruled(ROOM, good, message, **figures)


def noise(c: Tensor, views: int) -> Check:
    """From the noise of one view's gradient (steps,deltas), as a multiple of the signal: the cosine of a step's
    gradient to the true one, sqrt(n / (n + c)), and the views that the recommended one takes. Of the first half
    of the steps, because the signal may be small where the attack has converged."""
    c = c[: (len(c) + 1) // 2]
    if not c.numel() or bool(c.isnan().all()):
        return skipped(NOISE, "a single view a step does not show its noise: take attack.views=2 or more")
    middle = float(c[~c.isnan()].median())  # infinite where half of the steps show no signal at all
    cosine = math.sqrt(views / (views + middle))
    wanted = middle * WANTED**2 / (1 - WANTED**2)
    many = f"about {math.ceil(wanted)}" if math.isfinite(wanted) else "more than can be told"
    message = f"a gradient of {views} views has the cosine {cosine:.2f} to the true one; {WANTED} takes {many} views"
    good = cosine >= POOR
    if not good:
        message += ": raise attack.views, or the momentum"
    return ruled(NOISE, good, message, cosine=cosine, c=middle, views=wanted)


def _zero(perturbation: Perturbation, grad: Tensor, images: Tensor) -> float:
    """The share of zeros among the pixels that the set lets change."""
    free = perturbation.noise(images, torch.Generator().manual_seed(0)).abs().amax(1) > 0
    zero = grad.abs().amax(1) == 0
    return float(zero[free].double().mean()) if bool(free.any()) else 1.0


def _lost(perturbation: Perturbation, delta: Tensor, grad: Tensor, images: Tensor) -> float:
    by = perturbation.descend(grad, PROBE * perturbation.reach, delta, images)
    real = perturbation.move(delta, by, images) - delta
    length = float(by.square().sum())
    return 1 - float((real * by).sum()) / length if length > 0 else 1.0


#: The sum of all steps that crosses a set from edge to edge, in radii, twice: a schedule takes one half of it.
CROSSING = 4.0


def resized(perturbation: Any, eps: float) -> Any:
    """The perturbation with the radius `eps`, in its own unit (a whole number of pixels stays one, at least 1); that
    of its innermost part where it wraps another. None for a set without a radius to choose."""
    names = {field.name for field in dataclasses.fields(perturbation) if field.init} if _made(perturbation) else ()
    if "inner" in names:
        inner = resized(perturbation.inner, eps)
        return None if inner is None else dataclasses.replace(perturbation, inner=inner)
    if "eps" not in names:
        return None
    whole = isinstance(perturbation.eps, int)
    return dataclasses.replace(perturbation, eps=max(1, round(eps)) if whole else eps)


def rescaled(optimiser: Any, ratio: float) -> Any:
    """The optimiser for a radius that is `ratio` times as large. Most steps are shares of the radius and stay as
    they are; a learning rate (`lr`) grows with it, for it was chosen for the smaller set."""
    if _made(optimiser) and hasattr(optimiser, "lr"):
        return dataclasses.replace(optimiser, lr=optimiser.lr * ratio)
    return optimiser


def hastened(optimiser: Any, planned: int, steps: int) -> Any:
    """The optimiser for a run of `steps` instead of `planned`. A relative step size is raised until the steps
    cross the set, but no farther than all planned steps would have gone: a step that is too short stays so."""
    if not (_made(optimiser) and hasattr(optimiser, "rel_step_size")):
        return optimiser
    size = optimiser.rel_step_size
    return dataclasses.replace(optimiser, rel_step_size=max(size, min(size * planned / steps, CROSSING / steps)))


def largest(perturbation: Perturbation, images: Tensor) -> float:
    """The radius from which the set no longer binds: the norm of a delta that takes every value from 0 to 1."""
    return float(perturbation.norm(torch.ones_like(images[:1])).max())


def cards(perturbation: Perturbation, images: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Deltas that need no search: as much white, black or noise as the set admits."""
    noise = perturbation.noise(images, generator)
    origin, every = torch.zeros_like(noise), torch.ones_like(noise)
    return {
        "white": perturbation.move(origin, every, images),
        "black": perturbation.move(origin, -every, images),
        "noise": noise,
    }


def _made(part: Any) -> bool:
    return dataclasses.is_dataclass(part) and not isinstance(part, type)


#: Differences below this share of what the attack gains count as none.
NEGLIGIBLE = 0.02


class Gap(NamedTuple):
    """The mean of a - b, and the `noise` below which it is insignificant: two standard errors over the views, which
    are the same for both, plus a small share of the attack's gain."""

    mean: float
    noise: float

    @property
    def above(self) -> bool:
        """Whether a is larger, beyond chance."""
        return self.mean > self.noise

    @property
    def below(self) -> bool:
        """Whether a is smaller, beyond chance."""
        return self.mean < -self.noise


def gap(a: Tensor, b: Tensor, gain: float) -> Gap:
    """Of two tables of losses (N,V) on the same views; `gain` is how far the attack lowers the loss."""
    by_view = (a - b).double().mean(0)
    error = float(by_view.std()) / len(by_view) ** 0.5 if len(by_view) > 1 else 0.0
    size = 1e-6 * float(b.abs().mean())  # float32's own digits
    return Gap(float(by_view.mean()), 2 * error + NEGLIGIBLE * abs(gain) + size)


def mean(losses: Tensor) -> float:
    """Over pictures and views."""
    return float(losses.double().mean())


#: The name of the first check.
LOWERS = "lowers the loss"
#: The share of a run that counts as its end, and the largest share of the gain that may come there.
END = 0.2


def lowers(clean: Tensor, attacked: Tensor, steps: int, views: int) -> Check:
    """Whether the attack lowers the loss beyond chance."""
    fall = gap(attacked, clean, 0.0)
    message = f"{steps} steps of {views} views took the loss from {mean(clean):.3f} to {mean(attacked):.3f}"
    if not fall.below:
        message += "; that is no more than chance (it varies by " + f"{fall.noise:.3f}): the attack does nothing"
    return ruled(LOWERS, fall.below, message, clean=mean(clean), loss=mean(attacked), noise=fall.noise)


def beats_cards(losses: Tensor, main: Tensor, cards: Mapping[str, Tensor], gain: float) -> Check:
    """With the largest radius every picture is allowed. The loss must not be higher than that of pictures that need
    no search (white, black and noise), nor than the attack's with its own radius."""
    best = min(cards, key=lambda name: mean(cards[name]))
    card, own = gap(losses, cards[best], gain), gap(losses, main, gain)
    message = (
        f"with the largest radius the loss is {mean(losses):.3f}: {mean(main):.3f} with the attack's own, "
        f"{mean(cards[best]):.3f} for a picture of {best}"
    )
    good = not card.above and not own.above
    if not good:
        message += "; an attack that may change everything must find more: look at the gradient and at the step size"
    return ruled(
        "largest radius", good, message, loss=mean(losses), own=mean(main), card=mean(cards[best]), noise=card.noise
    )


def grows(clean: Tensor, radii: Sequence[float], losses: Sequence[Tensor], gain: float) -> Check:
    """A larger set contains the smaller ones, so a larger radius must not give a higher loss, and the largest must
    give a lower one than none."""
    steps = [gap(b, a, gain) for a, b in zip([clean, *losses[:-1]], losses, strict=True)]
    total = gap(losses[-1], clean, gain)
    good = total.below and not any(step.above for step in steps)
    path = ", ".join(f"{mean(loss):.3f} at {radius:.3g}" for radius, loss in zip(radii, losses, strict=True))
    message = f"loss by radius: {mean(clean):.3f} at 0, {path}"
    if not good:
        message += "; a larger radius must not be worse: the step is too long or too short for it, or too few steps"
    figures = {f"loss at {radius:.6g}": mean(loss) for radius, loss in zip(radii, losses, strict=True)}
    return ruled("grows with the radius", good, message, clean=mean(clean), **figures)


def not_worse(name: str, main: Tensor, other: Tensor, gain: float, what: str, remedy: str) -> Check:
    """The attack against a baseline that must not beat it."""
    margin = gap(main, other, gain)
    message = f"the attack's loss is {mean(main):.3f}, {what} {mean(other):.3f} (noise {margin.noise:.3f})"
    message += f"; {remedy}" if margin.above else ""
    return ruled(name, not margin.above, message, loss=mean(main), other=mean(other), noise=margin.noise)


def plateau(trace: Sequence[float | None]) -> Check:
    """From the held-out loss after each step of the run itself (None before the first comparison): the share
    of the gain that came in the last fifth of the steps."""
    losses = [value for value in trace if value is not None and math.isfinite(value)]
    steps = len(trace)
    if len(losses) < 5 or len(set(losses)) < 3:
        return skipped("plateau", "the run has too few looks at held-out views to show whether its loss has settled")
    gained = losses[0] - losses[-1]
    tail = [value for value in trace[: steps - round(END * steps)] if value is not None and math.isfinite(value)]
    late = (tail[-1] if tail else losses[0]) - losses[-1]
    share = late / gained if gained > 0 else 0.0
    message = (
        f"{share:.0%} of the gain ({late:.3f} of {gained:.3f}) came in the last {END:.0%} of the steps"
        if gained > 0
        else f"the held-out loss has not fallen: {losses[0]:.3f} at the first look, {losses[-1]:.3f} at the end"
    )
    good = gained > 0 and share <= END
    if not good:
        message += "; the attack was not done: raise attack.steps" if gained > 0 else "; look at the step size"
    return ruled("plateau", good, message, share=share, gained=gained)

"""The checks of a battery, and the rules that most of them follow."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.black_box.asked import AnswerError
from attacks.eot.protocols import Perturbation
from attacks.runtime.values import stored

Verdict = Literal["passed", "failed", "skipped"]


@stored("sanity.check")
@dataclass(frozen=True)
class Check:
    """The result of one check: its `name`, the same in every run; the `verdict`, skipped if the check does not apply;
    a `message` of one sentence, with a remedy if it failed; and the `figures` in it."""

    name: str
    verdict: Verdict
    message: str
    figures: dict[str, float] = field(default_factory=dict)


@stored("sanity")
@dataclass(frozen=True)
class Sanity:
    """All checks of a run, and their `cost`: encoder passes `forward` and `backward`, in views, and `seconds`."""

    checks: tuple[Check, ...]
    cost: dict[str, float]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for metrics.json without the seconds; figures that are not finite are null."""
        checks = []
        for check in self.checks:
            figures = {key: value if math.isfinite(value) else None for key, value in check.figures.items()}
            checks.append({"name": check.name, "verdict": check.verdict, "words": check.message, "figures": figures})
        cost = {key: value for key, value in self.cost.items() if key != "seconds"}
        return {"failed": [check.name for check in self.failed], "checks": checks, "cost": cost}


def rule(name: str, good: bool, message: str, remedy: str = "", **figures: float) -> Check:
    """A check that passed, or one that failed, with the `remedy` after its message."""
    return Check(name, "passed" if good else "failed", message if good else message + remedy, figures)


def skip(name: str, reason: str) -> Check:
    return Check(name, "skipped", reason)


def guard(name: str, ask: Callable[[], Check]) -> Check:
    """The check, failed if the attack raises an error: an encoder may raise any."""
    try:
        return ask()
    except AnswerError:  # the run stops, and its answers so far are kept
        raise
    except Exception as error:
        return rule(name, False, error_text(error))


def error_text(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError | FloatingPointError) else f"{type(error).__name__}: {error}"


def counts(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in words, such as "11 of 11 checks passed, 2 skipped"."""
    passes, skips = (sum(verdict == kind for verdict in verdicts) for kind in ("passed", "skipped"))
    text = f"{passes} of {len(verdicts) - skips} checks passed"
    return f"{text}, {skips} skipped" if skips else text


def table(sanity: Sanity) -> str:
    """How many checks passed, and a line for each of the others, for the terminal."""
    marks = {"failed": "FAILED", "skipped": "skipped"}
    others = (check for check in sanity.checks if check.verdict in marks)
    rows = [f"{check.name}: {marks[check.verdict]}, {check.message}" for check in others]
    count = counts([check.verdict for check in sanity.checks])
    cost = f"{sanity.cost['forward']:.0f} encoder passes, {sanity.cost['seconds']:.1f} s"
    return "\n".join([f"{count} ({cost})", *rows])


#: The names of some checks.
LOWERS, GROWS, PLATEAU = "lowers the loss", "grows with the radius", "plateau"
ROOM, NOISE = "room to move", "gradient noise"
#: The largest share of values without a gradient, and of a first step that the set may take back (an L0 set takes
#: back most of any step).
DEAD, MAX_LOSS = 0.5, 0.999
#: The length of that step, as a share of the perturbation's reach.
PROBE = 0.01
#: The lowest allowed and the recommended cosine of a step's gradient to the true one.
POOR, GOOD = 0.2, 0.7


def room(
    perturbation: Perturbation, images: Tensor, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor]
) -> Check:
    """The share of values whose gradient is exactly zero, and the share of a short step along the gradient that the
    set takes back (at the ball's edge, at black and white), at the start and at the end of the run. A good attack has
    little room at its end, but must have some at its start."""
    dead, last_dead = (_zero(perturbation, grad, images) for _, grad in (start, end))
    loss_share, last_loss_share = (_lost_share(perturbation, delta, grad, images) for delta, grad in (start, end))
    figures = {"zero gradients at the start": dead, "step lost at the start": loss_share}
    figures |= {"zero gradients at the end": last_dead, "step lost at the end": last_loss_share}
    message = (
        f"{dead:.0%} of the values had no gradient at the start ({last_dead:.0%} at the end), and the set took back "
        f"{loss_share:.0%} of a short step ({last_loss_share:.0%} at the end)"
    )
    remedy = "; the start leaves no room: start inside the set (random_start)"
    if dead > DEAD:
        remedy = "; few pixels reach the encoder: audit the views and the encoder (viewproof audit)"
    return rule(ROOM, dead <= DEAD and loss_share <= MAX_LOSS, message, remedy, **figures)


def noise(c: Tensor, views: int) -> Check:
    """The cosine of a step's gradient to the true one, sqrt(n / (n + c)), and the views for the recommended cosine,
    from the noise `c` of one view's gradient (steps,deltas) as a multiple of the signal. Only the first half of the
    steps counts: where the attack has converged the signal is small."""
    c = c[: (len(c) + 1) // 2]
    if not c.numel() or bool(c.isnan().all()):
        return skip(NOISE, "a single view a step does not show its noise: take attack.views=2 or more")
    middle = float(c[~c.isnan()].median())  # infinite if half of the steps have no signal
    cosine = math.sqrt(views / (views + middle))
    good_views = middle * GOOD**2 / (1 - GOOD**2)
    amount = f"about {math.ceil(good_views)}" if math.isfinite(good_views) else "more than the noise lets estimate"
    message = f"a gradient of {views} views has the cosine {cosine:.2f} to the true one; {GOOD} takes {amount} views"
    remedy = ": raise attack.views, or the momentum"
    return rule(NOISE, cosine >= POOR, message, remedy, cosine=cosine, c=middle, views=good_views)


def _zero(perturbation: Perturbation, grad: Tensor, images: Tensor) -> float:
    """The share of zeros among the pixels that the set lets change."""
    free = perturbation.noise(images, torch.Generator().manual_seed(0)).abs().amax(1) > 0
    zero = grad.abs().amax(1) == 0
    return float(zero[free].double().mean()) if bool(free.any()) else 1.0


def _lost_share(perturbation: Perturbation, delta: Tensor, grad: Tensor, images: Tensor) -> float:
    by = perturbation.descend(grad, PROBE * perturbation.reach, delta, images)
    real = perturbation.move(delta, by, images) - delta
    length = float(by.square().sum())
    return 1 - float((real * by).sum()) / length if length > 0 else 1.0


#: Differences below this share of the attack's gain are ignored.
NEGLIGIBLE = 0.02


class Gap(NamedTuple):
    """The mean of a - b, and the `noise` below which it is insignificant: two standard errors over the common views,
    plus a small share of the attack's gain."""

    mean: float
    noise: float

    @property
    def above(self) -> bool:
        return self.mean > self.noise

    @property
    def below(self) -> bool:
        return self.mean < -self.noise


def gap(a: Tensor, b: Tensor, gain: float) -> Gap:
    """Of two tables of losses (N,V) on the same views; `gain` is the decrease of the loss by the attack."""
    by_view = (a - b).double().mean(0)
    error = float(by_view.std()) / len(by_view) ** 0.5 if len(by_view) > 1 else 0.0
    size = 1e-6 * float(b.abs().mean())  # the precision of float32
    return Gap(float(by_view.mean()), 2 * error + NEGLIGIBLE * abs(gain) + size)


def mean(losses: Tensor) -> float:
    """Over pictures and views."""
    return float(losses.double().mean())


#: The last part of a run, as a share: after the last look before its end; and the largest share of the gain in it.
END = 0.25


def lowers(clean: Tensor, attack_losses: Tensor, steps: int, views: int) -> Check:
    """Whether the attack lowers the loss beyond chance."""
    fall = gap(attack_losses, clean, 0.0)
    message = f"{steps} steps of {views} views took the loss from {mean(clean):.3f} to {mean(attack_losses):.3f}"
    remedy = f"; that is within the noise ({fall.noise:.3f}): the attack has no effect"
    return rule(LOWERS, fall.below, message, remedy, clean=mean(clean), loss=mean(attack_losses), noise=fall.noise)


def beyond_the_radius(checks: Sequence[Check]) -> list[Check]:
    """The checks of an attack that walks outside of its radius until an answer changes, on an encoder that says same
    or not. Where no answer changes within the radius but some do in a larger one, the loss cannot fall by steps."""
    if not any(check.name == GROWS and check.verdict == "passed" for check in checks):
        return list(checks)
    reason = f"not applicable: the answers stay the same at this radius; at a larger one they change ({GROWS})"
    return [skip(LOWERS, reason) if check.name == LOWERS and check.verdict == "failed" else check for check in checks]


def beats_cards(losses: Tensor, main: Tensor, cards: Mapping[str, Tensor], gain: float) -> Check:
    """With the largest radius, which allows every picture, the loss must not be higher than that of white, black or
    noise, nor than with the attack's own radius."""
    best = min(cards, key=lambda name: mean(cards[name]))
    card, radius_gap = gap(losses, cards[best], gain), gap(losses, main, gain)
    message = (
        f"with the largest radius the loss is {mean(losses):.3f}: {mean(main):.3f} with the attack's own, "
        f"{mean(cards[best]):.3f} for a picture of {best}"
    )
    good = not card.above and not radius_gap.above
    remedy = "; an attack without a bound must be stronger: check the gradient and the step size"
    figures = {"loss": mean(losses), "own": mean(main), "card": mean(cards[best]), "noise": card.noise}
    return rule("largest radius", good, message, remedy, **figures)


def grows(clean: Tensor, losses: Mapping[float, Tensor], gain: float) -> Check:
    """A larger set contains the smaller ones: of the losses by growing radius none must be higher than that before,
    and the last must be lower than without an attack."""
    path = [clean, *losses.values()]
    good = gap(path[-1], clean, gain).below and not any(gap(b, a, gain).above for a, b in pairwise(path))
    words = ", ".join(f"{mean(loss):.3f} at {radius:.3g}" for radius, loss in losses.items())
    message = f"loss by radius: {mean(clean):.3f} at 0, {words}"
    remedy = "; a larger radius must not be worse: the step is too long or too short, or the steps too few"
    figures = {f"loss at {radius:.6g}": mean(loss) for radius, loss in losses.items()}
    return rule(GROWS, good, message, remedy, clean=mean(clean), **figures)


def not_worse(
    name: str, main: Tensor, other: Tensor, gain: float, baseline: str, remedy: str, share: float = 0.0
) -> Check:
    """The attack must not be weaker than a baseline, by the `share` of its gain or more."""
    margin = gap(main, other, gain)
    good = not margin.above or margin.mean < share * abs(gain)
    message = f"the attack's loss is {mean(main):.3f}, {baseline} {mean(other):.3f} (noise {margin.noise:.3f})"
    return rule(name, good, message, f"; {remedy}", loss=mean(main), other=mean(other), noise=margin.noise)


def plateau(trace: Sequence[float | None]) -> Check:
    """The share of the gain in the last quarter of the steps, from the held-out loss after each step of the run
    itself (None before the first comparison)."""
    losses, steps = _finite(trace), len(trace)
    if len(losses) < 5 or len(set(losses)) < 3:
        return skip(PLATEAU, "the run has too few looks at held-out views to show whether its loss has settled")
    gain = losses[0] - losses[-1]
    late = [losses[0], *_finite(trace[: steps - round(END * steps)])][-1] - losses[-1]
    share = late / gain if gain > 0 else 0.0
    message = f"{share:.0%} of the gain ({late:.3f} of {gain:.3f}) came in the last {END:.0%} of the steps"
    remedy = "; the attack was not done: raise attack.gradients"
    if gain <= 0:
        message = f"the held-out loss has not fallen: {losses[0]:.3f} at the first look, {losses[-1]:.3f} at the end"
        remedy = "; check the step size"
    return rule(PLATEAU, gain > 0 and share <= END, message, remedy, share=share, gained=gain)


def _finite(trace: Sequence[float | None]) -> list[float]:
    return [value for value in trace if value is not None and math.isfinite(value)]

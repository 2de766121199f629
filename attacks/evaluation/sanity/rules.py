"""Is the attack as strong as it must be? Each answer compares losses (N,V) on the same views; lower is stronger."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from attacks.evaluation.sanity.check import Check, ruled, skipped
from attacks.sanity.gap import gap, mean

#: The name of the first check, which has no losses to compare where the attack cannot run at all.
LOWERS = "lowers the loss"
#: The share of a run that counts as its end, and the share of the gain that may fall there: a loss that gains as much
#: there as elsewhere is nowhere near its floor.
END = 0.2


def lowers(clean: Tensor, found: Tensor, steps: int, views: int) -> Check:
    """The least that is asked."""
    fall = gap(found, clean, 0.0)
    words = f"{steps} steps of {views} views took the loss from {mean(clean):.3f} to {mean(found):.3f}"
    if not fall.below:
        words += "; that is no more than chance (it varies by " + f"{fall.noise:.3f}): the attack does nothing"
    return ruled(LOWERS, fall.below, words, clean=mean(clean), loss=mean(found), noise=fall.noise)


def beats_cards(found: Tensor, main: Tensor, cards: Mapping[str, Tensor], gain: float) -> Check:
    """With the largest radius every picture is allowed, so any loss is within reach. Asked for is what holds for any
    objective and encoder: no higher a loss than that of pictures that need no search (white, black and noise), nor
    than the attack's with its own radius."""
    best = min(cards, key=lambda name: mean(cards[name]))
    card, own = gap(found, cards[best], gain), gap(found, main, gain)
    words = (
        f"with the largest radius the loss is {mean(found):.3f}: {mean(main):.3f} with the attack's own, "
        f"{mean(cards[best]):.3f} for a picture of {best}"
    )
    good = not card.above and not own.above
    if not good:
        words += "; an attack that may change everything must find more: look at the gradient and at the step size"
    return ruled(
        "largest radius", good, words, loss=mean(found), own=mean(main), card=mean(cards[best]), noise=card.noise
    )


def grows(clean: Tensor, radii: Sequence[float], losses: Sequence[Tensor], gain: float) -> Check:
    """A larger set holds the smaller ones, so a larger radius never gives a higher loss, and any gives a lower one
    than none."""
    steps = [gap(b, a, gain) for a, b in zip([clean, *losses[:-1]], losses, strict=True)]
    total = gap(losses[-1], clean, gain)
    good = total.below and not any(step.above for step in steps)
    path = ", ".join(f"{mean(loss):.3f} at {radius:.3g}" for radius, loss in zip(radii, losses, strict=True))
    words = f"loss by radius: {mean(clean):.3f} at 0, {path}"
    if not good:
        words += "; a larger radius must not be worse: the step is too long or too short for it, or too few steps"
    figures = {f"loss at {radius:.6g}": mean(loss) for radius, loss in zip(radii, losses, strict=True)}
    return ruled("grows with the radius", good, words, clean=mean(clean), **figures)


def not_worse(name: str, main: Tensor, other: Tensor, gain: float, what: str, remedy: str) -> Check:
    """The attack against something that must not beat it."""
    found = gap(main, other, gain)
    words = f"the attack's loss is {mean(main):.3f}, {what} {mean(other):.3f} (noise {found.noise:.3f})"
    words += f"; {remedy}" if found.above else ""
    return ruled(name, not found.above, words, loss=mean(main), other=mean(other), noise=found.noise)


def plateau(trace: Sequence[float | None]) -> Check:
    """From the held-out loss after each step of the run itself (None before the first look): how much of what was
    gained was gained in the last fifth of the steps."""
    known = [value for value in trace if value is not None and math.isfinite(value)]
    steps = len(trace)
    if len(known) < 5 or len(set(known)) < 3:
        return skipped("plateau", "the run has too few looks at held-out views to show whether its loss has settled")
    gained = known[0] - known[-1]
    tail = [value for value in trace[: steps - round(END * steps)] if value is not None and math.isfinite(value)]
    late = (tail[-1] if tail else known[0]) - known[-1]
    share = late / gained if gained > 0 else 0.0
    words = (
        f"{share:.0%} of the gain ({late:.3f} of {gained:.3f}) came in the last {END:.0%} of the steps"
        if gained > 0
        else f"the held-out loss has not fallen: {known[0]:.3f} at the first look, {known[-1]:.3f} at the end"
    )
    good = gained > 0 and share <= END
    if not good:
        words += "; the attack was not done: raise attack.steps" if gained > 0 else "; look at the step size"
    return ruled("plateau", good, words, share=share, gained=gained)

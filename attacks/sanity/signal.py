"""Is there a gradient to follow, and room to follow it?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attacks.eot.protocols import Perturbation
from attacks.evaluation.sanity.check import Check, ruled, skipped

#: What the two checks are called.
ROOM, NOISE = "room to move", "gradient noise"
#: More than so many values without any gradient, or a first step of which the set takes back all but nothing (where
#: it counts pixels it takes back most of any step).
DEAD, LOST = 0.5, 0.999
#: The step that measures what the set takes back, as a share of the perturbation's reach.
PROBE = 0.01
#: The poorest cosine of a step's gradient to the true one, and the one to ask for.
POOR, WANTED = 0.2, 0.7


def room(
    perturbation: Perturbation, images: Tensor, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor]
) -> Check:
    """The share of values whose gradient is exactly zero, and the share of a short step along the gradient that the
    set takes back (the ball's edge, the picture's black and white), where the run begins and where it ends. At the
    end a good attack has little room left; at the start it must have some."""
    figures = {}
    for name, (delta, grad) in (("start", start), ("end", end)):
        figures[f"zero gradients at the {name}"] = _zero(perturbation, grad, images)
        figures[f"step lost at the {name}"] = _lost(perturbation, delta, grad, images)
    dead, lost, last_dead, last_lost = figures.values()
    words = (
        f"{dead:.0%} of the values had no gradient at the start ({last_dead:.0%} at the end), and the set took back "
        f"{lost:.0%} of a short step ({last_lost:.0%} at the end)"
    )
    good = dead <= DEAD and lost <= LOST
    if dead > DEAD:
        words += "; the views or the encoder see few of the pixels: audit them (scripts/audit.py)"
    elif lost > LOST:
        words += "; the start leaves no room: begin inside the set (random_start)"
    return ruled(ROOM, good, words, **figures)


def noise(c: Tensor, views: int) -> Check:
    """From the noise of one view's gradient (steps,deltas), as a multiple of the signal: the cosine of a step's
    gradient to the true one, sqrt(n / (n + c)), and the views that it would take for a good one. Of the first half of
    the steps, because a signal that is small where the attack has arrived is no fault."""
    c = c[: (len(c) + 1) // 2]
    if not c.numel() or bool(c.isnan().all()):
        return skipped(NOISE, "a single view a step does not show its noise: take attack.views=2 or more")
    middle = float(c[~c.isnan()].median())  # infinite where half of the steps show no signal at all
    cosine = math.sqrt(views / (views + middle))
    wanted = middle * WANTED**2 / (1 - WANTED**2)
    many = f"about {math.ceil(wanted)}" if math.isfinite(wanted) else "more than can be told"
    words = f"a gradient of {views} views has the cosine {cosine:.2f} to the true one; {WANTED} takes {many} views"
    good = cosine >= POOR
    if not good:
        words += ": raise attack.views, or the momentum"
    return ruled(NOISE, good, words, cosine=cosine, c=middle, views=wanted)


def _zero(perturbation: Perturbation, grad: Tensor, images: Tensor) -> float:
    """Of the pixels that the set lets change."""
    free = perturbation.noise(images, torch.Generator().manual_seed(0)).abs().amax(1) > 0
    zero = grad.abs().amax(1) == 0
    return float(zero[free].double().mean()) if bool(free.any()) else 1.0


def _lost(perturbation: Perturbation, delta: Tensor, grad: Tensor, images: Tensor) -> float:
    by = perturbation.descend(grad, PROBE * perturbation.reach, delta, images)
    real = perturbation.move(delta, by, images) - delta
    asked = float(by.square().sum())
    return 1 - float((real * by).sum()) / asked if asked > 0 else 1.0

"""The active test: an encoder in which an adversarial point is certain to exist (Zimmermann et al. 2022, "Increasing
confidence in adversarial robustness evaluations").

The encoder also returns a colour balance of the view, and the objective rewards a higher one. The balance is a mean
over the view, so it hardly depends on the camera, and it is linear in the picture, so that the best delta is known in
closed form. An attack that misses it is broken.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.tree import Encoder, Tree, length
from attacks.eot.protocols import Objective, Perturbation
from attacks.evaluation.sanity.check import Check, rule, skip
from attacks.evaluation.sanity.rules import mean
from attacks.evaluation.sanity.short_attack import ShortAttack
from transforms.compose import seen
from transforms.doors import unchecked

#: Weights of red, green and blue. They differ and do not cancel, so that no set of grey or of colour hides them.
COLOURS = (1.0, -0.5, 0.25)
#: The gain of the planted point, as a multiple of the attack's gain without it.
WORTH = 10.0
#: The fewest queries with which a gradient-free search is tested, and the fewest steps of any other attack.
QUERIES, STEPS = 600, 20
#: The share of the promised gain that the attack must reach.
SHARE = 0.8


@dataclass(frozen=True)
class PlantedEncoder:
    """An encoder that returns its features (N,D) and the colour balance of its input: (features, (N,1))."""

    encoder: Encoder

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        return unchecked(self.encoder)(images, **draws), balance(images)


@dataclass(frozen=True)
class PlantedObjective(Objective):
    """The objective minus `weight` times the balance, from (features, balance) and (anchor, balance of the
    anchor)."""

    objective: Objective
    weight: float

    @property
    def stationary_at_anchor(self) -> bool:
        return self.objective.stationary_at_anchor

    @property
    def paired(self) -> bool:
        return self.objective.paired

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        loss, gain = self.objective(features[0], anchor[0]), features[1] - anchor[1]
        total: Tensor = loss - self.weight * gain[:, 0].to(loss)
        return total


def balance(images: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,1): the weighted mean of the colours."""
    return (images.mean((2, 3)) * _weights(images)).sum(1, keepdim=True)


def promise(perturbation: Perturbation, images: Tensor) -> Tensor:
    """The delta with the highest balance: the projection of a point far along the balance's gradient, which for a
    ball and a box is the optimum of a linear loss."""
    like = torch.zeros_like(perturbation.noise(images, torch.Generator().manual_seed(0)))
    far = 4 * max(1.0, perturbation.reach)
    return perturbation.move(like, far * _weights(like)[:, None, None].expand_as(like), images)


def finds_promise(start: Tensor, optimum: Tensor, attack_losses: Tensor) -> Check:
    """From the losses (N,V) of the planted encoder at the start of the attack, at the promised point, and at its
    end."""
    available, gain = mean(start) - mean(optimum), mean(start) - mean(attack_losses)
    share = gain / available if available > 0 else 0.0
    good = available > 0 and share >= SHARE
    message = f"the attack finds {share:.0%} of a gain that is known to be there"
    if available <= 0:
        message = "the perturbation's projection admits no gain at all: check the perturbation"
    elif not good:
        message += f", less than {SHARE:.0%}: the optimiser or the perturbation is broken, or far too slow"
    return rule("active test", good, message, share=share, promised=available, found=gain)


def active(test: ShortAttack, clean: float, gain: float) -> Check:
    """Whether the attack reaches the planted point, from the clean loss and the attack's gain without it."""
    if test.options.optimiser.gradient_free and test.options.steps < QUERIES:
        return skip("active test", f"a search needs {QUERIES} queries to find anything (sanity.steps)")
    perturbation, objective = test.problem.perturbation, test.problem.objective
    origin, best = test.start(), promise(perturbation, test.images)
    with torch.no_grad():
        low, high = (balance(seen(perturbation.scene(test.images, delta))) for delta in (origin, best))
    rise = float((high - low).mean())
    worth = WORTH * max(abs(gain), 0.1 * abs(clean), 1e-3)
    parts: dict[str, Any] = {
        "encoder": PlantedEncoder(test.problem.encoder),
        "objective": PlantedObjective(objective, worth / max(rise, 1e-6)),
        "anchor": (test.problem.anchor, test.images.new_zeros(length(test.problem.anchor), 1)),
    }
    steps = max(test.options.steps, STEPS)
    start, optimum = (test.judge(delta, **parts) for delta in (origin, best))
    return finds_promise(start, optimum, test.run(**parts, steps=steps).losses)


def _weights(like: Tensor) -> Tensor:
    return like.new_tensor([COLOURS[i % len(COLOURS)] for i in range(like.shape[1])])

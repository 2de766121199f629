"""What an encoder answers to the untouched pictures: whether two answers agree, and whether its embedding can be
compared at all."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.request import seeded
from attacks.encoders.tree import Encoder, Tree, leaves
from attacks.eot.problem import Problem
from attacks.evaluation.sanity.check import Check, ruled

#: The names of two checks.
SAME, ITSELF = "same answer twice", "untouched picture"
#: The largest relative difference of two answers (half precision rounds to less).
REPEATED = 1e-2
#: The lowest cosine of a picture to itself, and to its anchor, which may be a mean over views.
CLOSE, NEAR = 0.99, 0.5


def repeats(encoder: Encoder, images: Tensor, which: dict[str, Any]) -> tuple[Check, Encoder | None]:
    """Whether two calls with the same input agree, and the encoder with which others can be compared: itself, or one
    that always draws the same numbers from torch's generator; None where that does not help."""
    moved = _difference(lambda: encoder(images, **which))
    if moved <= REPEATED:
        return ruled(SAME, True, f"two calls differ by {moved:.2g} of the embedding", difference=moved), encoder
    message = (
        f"two calls with the same input differ by {moved:.2g} of the embedding: the encoder draws new random "
        "numbers, so no view can be seen again; declare them (encoder.stochastic=true, or `draws` and `randomness`), "
        "or take more views (attack.views)"
    )
    fixed = _still(encoder)
    again = _difference(lambda: fixed(images, **which))
    return ruled(SAME, False, message, difference=moved), fixed if again <= REPEATED else None


def itself(problem: Problem) -> Check:
    """The cosine of the untouched pictures, seen directly, to themselves and, where that is their embedding, to their
    anchor. It is not 1 where an embedding is so short that its length is clamped, or so long that it overflows."""
    objective = problem.objective
    with torch.no_grad():
        own = leaves(problem.encoder(problem.images))
    theirs = leaves(problem.anchor) if objective.stationary_at_anchor and not objective.paired else own
    theirs = theirs if [a.shape for a in own] == [b.shape for b in theirs] else own
    cosine, anchored = _cosine(own, own), _cosine(own, theirs)
    length = min(float(a.flatten(1).norm(dim=1).min()) for a in own)
    message = (
        f"an untouched picture has the cosine {cosine:.3f} to itself and {anchored:.3f} to its anchor; its "
        f"embedding's length is {length:.3g}"
    )
    if not cosine >= CLOSE:
        message += ": the losses mean nothing; scale the embedding to a length near 1"
    elif not anchored >= NEAR:
        message += ": take the anchor from the same encoder, with the same preprocessing"
    good = cosine >= CLOSE and anchored >= NEAR
    return ruled(ITSELF, good, message, cosine=cosine, anchor=anchored, length=length)


def _cosine(own: list[Tensor], others: list[Tensor]) -> float:
    """The lowest of all pictures; NaN counts as -1."""
    pairs = zip(own, others, strict=True)
    lowest = [F.cosine_similarity(a.flatten(1).float(), b.flatten(1).float()).min() for a, b in pairs]
    return float(torch.stack(lowest).nan_to_num(-1.0).min())


def _still(encoder: Encoder) -> Encoder:
    @wraps(encoder, assigned=(), updated=())
    def fixed(images: Tensor, **which: Any) -> Tree:
        return seeded(lambda: encoder(images, **which))

    return fixed


@torch.no_grad()
def _difference(answer: Callable[[], Tree]) -> float:
    """Of two answers, relative to their length."""
    pairs = list(zip(leaves(answer()), leaves(answer()), strict=True))
    return max(float((a - b).double().norm() / a.double().norm().clamp(min=1e-300)) for a, b in pairs)

"""Checks of the arguments of attack loops, and of every step."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from attacks.encoders.contract import check_encoder
from attacks.encoders.tree import check_mode, length
from attacks.eot.problem import Options, Problem
from transforms import Compose
from transforms.doors import HALF_LEVEL, pixels_of
from transforms.doors import checked as pictures
from transforms.scene import Shown

#: After so many steps with a gradient of zero a picture leaves. Its loss may be at its minimum (the cross-entropy of
#: a label that is reached), so this is no error.
DEAD = 5


class DeadGradient(ValueError):
    """The loss of a picture does not depend on it, from the first step on."""


class Silent(UserWarning):
    """A picture's gradient has become zero during the run, and it leaves; or all its estimates are zero so far."""


def pass_budget(problem: Problem, options: Options, n: int) -> Tensor:
    """The encoder passes that each image may have (N,), on the CPU; a step takes `n`. Raises ValueError."""
    budget, images = options.budget, len(problem)
    if budget is None:
        if options.adaptive is not None:
            raise ValueError("`adaptive` needs a `budget`: how many encoder passes each image may have at most")
        budget = options.steps * n
    left = torch.as_tensor(budget, device="cpu")
    if left.is_floating_point() or left.shape not in ((), (images,)) or bool((left < n).any()):
        raise ValueError(
            f"`budget` must be a whole number of passes, at least {n}, or one for each of {images} images; "
            f"got {budget}"
        )
    if options.adaptive is not None and problem.shared and bool((left != left.max()).any()):
        raise ValueError(
            "`budget` must be one number for all images where `adaptive` chooses the views of a perturbation that "
            f"they share; got {int(left.min())} to {int(left.max())}: give all the least, or leave `adaptive` out"
        )
    return left.expand(images).clone()


def check_images(scene: Shown, slack: float = HALF_LEVEL) -> None:
    """Refuse what are no pictures (N,C,H,W) in [0,1], or a scene of such. Raises ValueError. The host waits."""
    for pixels in pixels_of(scene):
        if not len(pictures(pixels, slack=slack)):
            raise ValueError("`images` must hold at least one image; got none: was every picture filtered out?")


def check_problem(problem: Problem, transforms: Compose) -> None:
    images, anchor, objective = problem.images, problem.anchor, problem.objective
    check_images(images, slack=0)
    if length(anchor) != len(images):
        raise ValueError(f"`anchor` must hold one row per image; got {length(anchor)} for {len(images)} images")
    check_mode(problem.encoder)
    check_encoder(problem.encoder, images, transforms)
    if objective.stationary_at_anchor and not problem.perturbation.random_start:
        raise ValueError(
            f"{type(objective).__name__} has no gradient at delta = 0, so nothing moves; `random_start` must be true"
        )


def watched_over(zero: Tensor, index: int, active: Tensor, silent: Tensor, reason: Callable[[int], str]) -> Tensor:
    """For how many steps in a row the gradient of each delta has been zero, with those of this step, `zero` (D,): an
    error in the first, later a warning, for the `reason` of a delta. All on the host."""
    mask = active if len(active) == len(zero) else active.any()
    silent = torch.where(mask, torch.where(zero, silent + 1, 0), silent)
    if index == 0 and bool(silent.any()):
        rows = silent.nonzero()[:, 0].tolist()
        raise DeadGradient(
            f"the gradient is exactly zero for image(s) {rows}: a stage or the encoder cuts the graph "
            f"(uint8, .numpy(), no_grad), or no view shows the picture. Looked at: {reason(rows[0])}"
        )
    dead = mask & (silent == DEAD)
    if bool(dead.any()):
        rows = dead.nonzero()[:, 0].tolist()
        warnings.warn(
            f"the gradient of image(s) {rows} has been exactly zero for {DEAD} steps (step {index}); they leave as "
            f"they are. Looked at: {reason(rows[0])}",
            Silent,
            stacklevel=4,
        )
    return silent


def warn_unmoved(equal: Tensor, steps: int, probe: float) -> None:
    """Warn of the deltas that the first steps along estimated gradients have left as they were: all values (D,...)
    are still, and have had no gradient. (At the edge of its set a delta may stay where it is with one.)"""
    rows = equal.flatten(1).all(1).nonzero()[:, 0].tolist()
    if rows:
        warnings.warn(
            f"in {steps} step(s) no probe has changed the loss of image(s) {rows}, so the estimated gradient is zero "
            f"and the perturbation has not moved: the answers are too coarse for probes of {probe:g} radii. "
            "Raise `optimiser.probe` or the budget; of answers that only say same or not use `optimiser=label_only`",
            Silent,
            stacklevel=5,
        )

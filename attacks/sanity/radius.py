"""The same attack with another radius, or in fewer steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from attacks.eot.protocols import Perturbation

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
    """The optimiser for a radius that is `ratio` times as large. Most take steps that are shares of it and stay as
    they are; a learning rate (`lr`) grows with it, or a wide set would only show that the rate was chosen for a small
    one."""
    if _made(optimiser) and hasattr(optimiser, "lr"):
        return dataclasses.replace(optimiser, lr=optimiser.lr * ratio)
    return optimiser


def hastened(optimiser: Any, planned: int, steps: int) -> Any:
    """The optimiser for a run of `steps` instead of `planned`. A relative step size is raised as far as it takes to
    cross the set, but no farther than all planned steps together would have gone: what is too slow stays too slow."""
    if not (_made(optimiser) and hasattr(optimiser, "rel_step_size")):
        return optimiser
    size = optimiser.rel_step_size
    return dataclasses.replace(optimiser, rel_step_size=max(size, min(size * planned / steps, CROSSING / steps)))


def largest(perturbation: Perturbation, images: Tensor) -> float:
    """The radius at which the set stops to bind: the norm of a delta that takes every value from 0 to 1."""
    return float(perturbation.norm(torch.ones_like(images[:1])).max())


def cards(perturbation: Perturbation, images: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """What needs no search: as much white, black or noise as the set admits, as deltas."""
    noise = perturbation.noise(images, generator)
    origin, every = torch.zeros_like(noise), torch.ones_like(noise)
    return {
        "white": perturbation.move(origin, every, images),
        "black": perturbation.move(origin, -every, images),
        "noise": noise,
    }


def _made(part: Any) -> bool:
    return dataclasses.is_dataclass(part) and not isinstance(part, type)

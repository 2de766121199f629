"""Which pixels of the picture receive a gradient: all of them, or the few that a nearest read picks?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: Random cotangents a view; several, because the taps of one could cancel.
COTANGENTS = 2


def sensitivity(image: Tensor, view: Any, seed: int) -> Tensor:
    """(H,W): the root mean square gradient of each pixel of `image` (1,C,H,W) over random cotangents of `view`, which
    carries the graph. For a linear pipeline it estimates the norm of the pixel's columns of the matrix. Zeros without
    a graph, and for what is no tensor.

    The cotangents are signs, so that all values of the view weigh nearly the same. A jitter of 5 % on them keeps the
    contributions of a pixel from cancelling exactly.
    """
    total = torch.zeros(image.shape[2:], dtype=torch.float64)
    if not (isinstance(view, Tensor) and view.requires_grad):
        return total
    generator = torch.Generator().manual_seed(seed)
    for _ in range(COTANGENTS):
        signs = 2.0 * torch.randint(2, view.shape, generator=generator) - 1
        cotangent = (signs * (1 + 0.05 * torch.rand(view.shape, generator=generator))).to(view)
        (gradient,) = gradients_of(view, [image], cotangent)
        if gradient is not None:
            total += gradient[0].detach().cpu().double().nan_to_num(0, 0, 0).square().sum(0)
    return (total / COTANGENTS).sqrt()


def root_mean_square(maps: Sequence[Tensor]) -> Tensor:
    """The root mean square of sensitivities (H,W)."""
    return torch.stack(list(maps)).square().mean(0).sqrt()


def coverage(weights: Tensor) -> float:
    """Share of pixels that receive any gradient."""
    return float((weights > 0).double().mean())


def effective(weights: Tensor) -> float:
    """The participation ratio (sum w)^2 / (N sum w^2) of pixels: 1 if all weigh the same, k/N if k alone count."""
    squares = weights.square().sum()
    return float(weights.sum().square() / (weights.numel() * squares)) if squares > 0 else 0.0


def gradients_of(
    value: Tensor, leaves: Sequence[Tensor], cotangent: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradients of `value` to `leaves`; None for each that it does not reach."""
    try:
        return torch.autograd.grad(value, leaves, cotangent, retain_graph=True, allow_unused=True)
    except Exception:  # a foreign backward may raise anything; the probe of its step names it
        return (None,) * len(leaves)


def gradient_norm(gradient: Tensor | None) -> float:
    """The Euclidean norm; 0 for None."""
    return 0.0 if gradient is None else float(gradient.cpu().double().norm())


def unit_cotangent(like: Tensor, seed: int) -> Tensor:
    """A random cotangent of norm 1 of the shape, dtype and device of `like`."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    cotangent: Tensor = normal / normal.norm()
    return cotangent.to(like)

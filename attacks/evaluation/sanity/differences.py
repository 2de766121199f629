"""The gradient of the encoder and the objective, on fixed views, against finite differences.

An encoder that rounds on purpose (one that reads 8 bits) is a step function with a surrogate gradient; it is compared
with visible changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.tree import Encoder, Tree, leaves
from attacks.eot.protocols import Objective
from attacks.evaluation.sanity.check import Check, ruled

#: Random directions for small steps; smooth random directions for visible changes, of SIDE x SIDE random values each.
#: These have no mean, or the brightness of the view would outweigh all else.
DIRECTIONS, PATTERNS, SIDE = 12, 24, 16
#: Half the distance of the two points of a difference, by dtype, and that of a visible change. In float64 it is so
#: short that no value of a picture crosses a step of a step function by chance.
SMALL = {torch.float64: 1e-10, torch.float32: 1e-3}
VISIBLE = 4 / 255
#: A smooth function has the same slope at a quarter of the distance. One whose slopes differ by more than this, or
#: are below this share of the gradient's, is a step function.
UNSTEADY, FLAT = 0.5, 1e-3
#: The largest relative error of small steps, and the lowest cosine of slopes and visible changes.
ERROR, AGREE = 0.2, 0.8

Loss = Callable[[Tensor], Tensor]


def slopes(
    views: Tensor,
    anchor: Tree,
    encoder: Encoder,
    objective: Objective,
    *,
    module: nn.Module | None,
    count: Callable[[Encoder], Encoder],
    untouched: Tensor,
    seed: int,
    **which: Any,
) -> Check:
    """Compare directional derivatives with differences.

    Args:
        views: (R,3,h,w) in [0,1], the encoder's input.
        anchor: a row for each view.
        encoder: the encoder as the attack calls it, in the dtype of the views; its gradient is checked.
        module: the encoder as a module, if it is one: the differences are those of a copy of it in float64, so that
            precision, folding and wrappers between it and the attack are checked too.
        count: makes an encoder count its passes.
        untouched: (R,3,h,w), the same views of the untouched pictures, for a paired objective.
        seed: of the directions.
        which: further arguments of the encoder, such as its draws.
    """
    double = None if module is None else _wide(module, views)
    run, dtype = (encoder, torch.float32) if double is None else (count(double), torch.float64)
    own = views.dtype
    views, untouched = (0.98 * part.to(dtype) + 0.01 for part in (views, untouched))  # off the bounds

    def losses(ask: Encoder, dtype: torch.dtype) -> Loss:
        with torch.no_grad():
            beside = ask(untouched.to(dtype), **which) if objective.paired else _cast(anchor, dtype)
        return lambda pixels: objective(ask(pixels, **which), beside).mean()

    loss = losses(run, dtype)
    grad = _gradient(losses(encoder, own), views.to(own)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(DIRECTIONS, *views.shape, generator=generator, dtype=torch.float64).to(views)
    slope, change = _slopes_along(grad, white), _changes(loss, views, white, SMALL[dtype])
    nearer = _changes(loss, views, white, SMALL[dtype] / 4)
    flat = float(change.abs().median()) <= FLAT * float(slope.abs().median())
    if float(slope.norm()) > 0 and (flat or _apart(change, nearer) > UNSTEADY):
        soft = _patterns(views, generator)
        slope, change = _slopes_along(grad, soft), _changes(loss, views, soft, VISIBLE)
        cosine = float(F.cosine_similarity(slope, change, dim=0))
        message = (
            f"the encoder is no smooth function; its gradient agrees with visible changes to a cosine {cosine:.2f}"
        )
        if cosine < AGREE:
            message += f" (below {AGREE}): it points elsewhere, so following it proves nothing"
        return ruled("finite differences", cosine >= AGREE, message, cosine=cosine)
    if float(slope.norm()) == 0 and float(change.norm()) == 0:
        message = "a small change changes nothing, and there is no gradient: use an attack that needs none (Square)"
        return ruled("finite differences", False, message, error=1.0)
    error = _apart(slope, change)
    message = f"the gradient differs from the encoder's real slope by {error:.1%}"
    if error > ERROR:
        message += (
            "; a branch is detached, rounded or noisy: attack it without gradients, or through a smooth stand-in"
        )
    return ruled("finite differences", error <= ERROR, message, error=error)


def _gradient(loss: Loss, at: Tensor) -> Tensor:
    leaf = at.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf)
        if not value.requires_grad:
            return torch.zeros_like(at)
        (grad,) = torch.autograd.grad(value, leaf, allow_unused=True)
    return torch.zeros_like(at) if grad is None else grad


def _slopes_along(grad: Tensor, directions: Tensor) -> Tensor:
    """The directional derivatives by the gradient."""
    return torch.stack([(grad * way).sum() for way in directions]).double()


@torch.no_grad()
def _changes(loss: Loss, at: Tensor, directions: Tensor, h: float) -> Tensor:
    """The directional derivatives by central differences."""
    return torch.stack([(loss(at + h * way) - loss(at - h * way)) / (2 * h) for way in directions]).double()


def _apart(a: Tensor, b: Tensor) -> float:
    """The relative distance of two lists of slopes; 0 where both are zero."""
    scale = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0


def _patterns(views: Tensor, generator: torch.Generator) -> Tensor:
    """Smooth random directions (PATTERNS,R,C,h,w) without a mean."""
    rough = torch.randn(PATTERNS * len(views), views.shape[1], SIDE, SIDE, generator=generator, dtype=torch.float64)
    soft = F.interpolate(rough.to(views), views.shape[2:], mode="bicubic")
    return (soft - soft.mean((2, 3), keepdim=True)).reshape(PATTERNS, *views.shape)


def _wide(module: nn.Module, views: Tensor) -> nn.Module | None:
    """A copy in float64; None where it, or the device, cannot."""
    try:
        wide = copy.deepcopy(module).double()
        with torch.no_grad():
            leaves(wide(views[:1].double()))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return wide


def _cast(tree: Tree, dtype: torch.dtype) -> Tree:
    """The same tree with its floating tensors in `dtype`; labels stay whole."""
    if isinstance(tree, Tensor):
        return tree.to(dtype) if tree.is_floating_point() else tree
    if isinstance(tree, Mapping):
        return {name: _cast(part, dtype) for name, part in tree.items()}
    return tuple(_cast(part, dtype) for part in tree)

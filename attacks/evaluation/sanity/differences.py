"""The gradient of encoder and objective on fixed views, against finite differences.

An encoder that rounds on purpose, such as one that reads 8 bits, is a step function with a surrogate gradient, which
is compared with visible changes.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.tree import Encoder, Tree, leaves, mapped
from attacks.eot.protocols import Objective
from attacks.evaluation.sanity.check import Check, ruled

#: The number of random directions for small steps, and of smooth ones for visible changes, from SIDE x SIDE random
#: values. These have no mean, because the brightness of the view would outweigh all else.
DIRECTIONS, PATTERNS, SIDE = 12, 24, 16
#: Half the distance of the two points of a difference, by dtype, and that of a visible change. In float64 hardly any
#: value crosses a step of a step function by chance.
SMALL = {torch.float64: 1e-10, torch.float32: 1e-3}
VISIBLE = 4 / 255
#: A step function has slopes that differ by more than UNSTEADY at a quarter of the distance, or that are below FLAT
#: times the gradient's.
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
        views: (R,3,h,w) in [0,1], the encoder's input. anchor: a row for each view. encoder: as the attack calls it,
        in the dtype of the views; its gradient is checked. module: the encoder as a module, or None. The differences
        are those of a float64 copy, so that the precision and
            the wrappers of `encoder` are checked too.
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
        message = "the encoder is no smooth function; its gradient agrees with visible changes to a cosine "
        message += f"{cosine:.2f}"
        if cosine < AGREE:
            message += f" (below {AGREE}): the gradient is wrong, so an attack along it proves nothing"
        return ruled("finite differences", cosine >= AGREE, message, cosine=cosine)
    if float(slope.norm()) == 0 and float(change.norm()) == 0:
        message = "small changes have no effect, and there is no gradient: use a gradient-free attack (Square)"
        return ruled("finite differences", False, message, error=1.0)
    error = _apart(slope, change)
    message = f"the gradient differs from the encoder's real slope by {error:.1%}"
    if error > ERROR:
        message += "; a branch is detached, rounded or noisy: attack without gradients, or through a surrogate"
    return ruled("finite differences", error <= ERROR, message, error=error)


def _gradient(loss: Loss, at: Tensor) -> Tensor:
    """The gradient; zeros where there is none."""
    leaf = at.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf) + 0 * leaf.sum()
    (grad,) = torch.autograd.grad(value, leaf)
    return grad


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
    """A copy in float64; None if the module or the device has no float64."""
    try:
        wide = copy.deepcopy(module).double()
        with torch.no_grad():
            leaves(wide(views[:1].double()))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return wide


def _cast(tree: Tree, dtype: torch.dtype) -> Tree:
    """The tree with its floating-point tensors in `dtype`."""
    return mapped(tree, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)

"""Prices on how a perturbation looks, paid once a step: they know no views."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attacks.estimate import Estimate
from transforms import Compose, Scene

#: (delta, attacked pictures (N,C,H,W), untouched pictures (N,C,H,W)) -> (N,).
Price = Callable[[Tensor, Tensor, Tensor], Tensor]


def penalised(
    found: Estimate, price: Price, scene: Callable[[Tensor, Tensor], Scene], delta: Tensor, images: Tensor
) -> Estimate:
    """The estimate with the price of each picture, and its gradient, added to its value and gradient. Of a delta that
    all pictures share, the gradient is that of the mean price."""
    with torch.enable_grad():
        leaf = delta.detach().requires_grad_()
        prices = price(leaf, seen(scene(images, leaf)), images)
        total = prices.mean() if len(delta) < len(images) else prices.sum()
        (grad,) = torch.autograd.grad(total, leaf)
    return found._replace(value=found.value + prices.detach(), grad=found.grad + grad)


def seen(scene: Scene) -> Tensor:
    """The pictures of a scene, seen directly: (N,C,H,W)."""
    pixels = scene.layers[0].pixels
    return Compose()(scene, pixels.new_zeros(len(pixels), 0))

"""Expectation over transformation: the mean loss over views, and its gradient, in constant memory.

Athalye et al. 2018: minimise E_t[loss(encoder(t(x)))]. The *loss* is averaged, never the features; the gradient is
accumulated pass by pass, so memory does not grow with the number of views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from transforms import Compose, Draws, Scene, Sobol

#: A gradient's noise is estimated from this many partial means, where there are enough views.
PASSES = 4


class Estimate(NamedTuple):
    """Per image: `mean` loss (N,), its standard error (N,), `snr` of the gradient (N,), and the gradient of the
    mean, shaped like delta.

    `snr` is ||E g||^2 / E||g - E g||^2 of the n-view mean g, both estimated from partial means and bias-corrected,
    at least 0; NaN when there is a single view. The standard errors are those of independent draws, an upper bound
    for Sobol points.
    """

    mean: Tensor
    stderr: Tensor
    snr: Tensor
    grad: Tensor


@dataclass(frozen=True)
class EOT:
    """The estimator of the expected loss.

    Args:
        transforms: the views; an empty `Compose` is the identity view, an attack without EOT.
        draws: where the views' coordinates come from.
        n: views per image and step. Every image of a batch is seen from the same n views (common random numbers),
            so an image's gradient does not depend on its neighbours in the batch.
        chunk: most views held in memory at once, over all images.
    """

    transforms: Compose = field(default_factory=Compose)
    draws: Draws = field(default_factory=Sobol)
    n: int = 8
    chunk: int = 32

    def __post_init__(self) -> None:
        for name in ("n", "chunk"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be a whole number of views, at least 1; got {value!r}")

    def points(self, seed: int, step: int, like: Tensor) -> Tensor:
        """The coordinates (n, dims) of one step's views."""
        return self.draws(self.n, self.transforms.dims, seed=seed, step=step).to(like)

    def estimate(
        self,
        delta: Tensor,
        scene: Callable[[Tensor, slice], Scene],
        loss: Callable[[Tensor, Tensor], Tensor],
        u: Tensor,
    ) -> Estimate:
        """The mean loss over the views `u` (n,dims) of each image, and its gradient with respect to `delta`.

        Args:
            delta: (N,...), one perturbation per image.
            scene: (delta of some images, which images) -> their scene.
            loss: (views (R,C,h,w), image index of each view (R,)) -> losses (R,).
            u: the views' coordinates.
        """
        count, n = len(delta), len(u)
        grad = torch.zeros_like(delta)
        total, squares, passes_energy = (delta.new_zeros(count, dtype=torch.float64) for _ in range(3))
        groups = 0
        for images, views in self._passes(count, n):
            leaf = delta[images].detach().requires_grad_()
            index = torch.arange(images.start, images.stop, device=delta.device)
            pixels = view(self.transforms, scene(leaf, images), u[views])
            losses = loss(pixels, index.repeat_interleave(views.stop - views.start)).reshape(len(leaf), -1)
            part = _gradient(losses.sum(), leaf)
            grad[images] += part / n
            total[images] += losses.detach().sum(1).double()
            squares[images] += losses.detach().double().square().sum(1)
            passes_energy[images] += part.flatten(1).double().square().sum(1) / losses.shape[1]
            groups += images.start == 0
        mean = total / n
        stderr = ((squares / n - mean.square()).clamp(min=0) / max(n - 1, 1)).sqrt()
        snr = _snr(grad, passes_energy, n, groups)
        return Estimate(mean.to(delta.dtype), stderr.to(delta.dtype), snr.to(delta.dtype), grad)

    def _passes(self, count: int, n: int) -> Iterator[tuple[slice, slice]]:
        """(images, views) of each forward pass: at most `chunk` rows, and the views in several groups, so that the
        gradient's noise can be estimated for free."""
        images = min(count, self.chunk)
        views = max(1, min(self.chunk // images, -(-n // PASSES)))
        for i in range(0, count, images):
            for j in range(0, n, views):
                yield slice(i, min(i + images, count)), slice(j, min(j + views, n))


def view(transforms: Compose, scene: Scene, u: Tensor) -> Tensor:
    """Each picture of a scene from each of the views u (V,dims), picture by picture: (N*V,C,h,w)."""
    return transforms(scene, u.repeat(len(scene.layers[0].pixels), 1))


def _gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    """d loss / d leaf; zero where the graph is cut, which is for the loop to judge."""
    if not loss.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


def _snr(grad: Tensor, energy: Tensor, n: int, groups: int) -> Tensor:
    """From sum_k m_k ||g_k||^2 over the partial means g_k of m_k views, whose weighted mean is `grad`."""
    if groups < 2:
        return torch.full_like(energy, torch.nan)
    size = grad.flatten(1).double().square().sum(1)
    noise = ((energy - n * size) / (groups - 1) / n).clamp(min=torch.finfo(torch.float64).tiny)
    return ((size - noise) / noise).clamp(min=0)

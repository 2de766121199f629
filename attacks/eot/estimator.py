"""Expectation over transformation: the mean loss over views, and its gradient, in constant memory.

Athalye et al. 2018: minimise E_t[loss(encoder(t(x)))]. The *loss* is averaged, never the features. How the views are
cut into passes, how many pictures there are, and how many processes share the work shows in the last digits only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.encoders.engine.precision import Overflow
from attacks.eot.batching import Pass, group_size, passes, split_evenly, within_memory
from attacks.eot.estimate import Estimate, signal_to_noise
from attacks.eot.risk import Mean, Risk
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Sobol, Stage
from transforms.devices import constants, uploaded, wide_dtype
from transforms.doors import made
from transforms.draws import Draws


def check_pipeline(transforms: object) -> None:
    made("transforms", transforms, f"Compose([{getattr(transforms, '__name__', '')}(...)])")
    if not isinstance(transforms, Compose):
        fix = f": write Compose([{transforms!r}])" if isinstance(transforms, Stage) else ""
        raise ValueError(f"`transforms` must be a Compose, as Compose([Affine(degrees=9)]); got {transforms!r}{fix}")


def check_count(name: str, value: Any, unit: str = "views") -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"`{name}` must be a whole number of {unit}, at least 1; got {value!r}")


class Question(Protocol):
    """What the estimator asks: an `attacks.eot.problem.Problem`, or whatever else has losses."""

    def __len__(self) -> int:
        """The number of images."""

    def losses(self, transforms: Compose, delta: Tensor, numbers: Tensor, u: Tensor) -> Tensor:
        """The losses (B*V,) of images `numbers` (B,), with a delta of each (B,...), or one (1,...) that all share,
        from the views `u` (B*V,dims)."""


@dataclass(frozen=True)
class EOT:
    r"""The estimator of the expected loss.

    Formula: \frac{1}{n} \sum_{i=1}^{n} \nabla_\delta \, \ell(f(T_{u_i}(x + \delta)), a)

    Args:
        transforms: the views; an empty `Compose` is the identity view, an attack without EOT.
        draws: where the views' coordinates come from.
        views: per image and step; None: as `attack.views=auto` chooses (see `attacks.eot.problem.Options`). All
            images of a batch are seen from the same views, except those that share a perturbation.
        chunk: most views held in memory at once, over all images; halved where memory runs out.
        risk: how the losses of an image's views become the one number to minimise: their mean, or their tail
            (`CVaR`), which costs a second forward pass, of the views that count.
        world: the processes that share the work: each must call with the same arguments.
        pictures: of a step, where images share a perturbation: as many of them, other ones in each step (see
            `Minibatches`); `views`, `steps` and budgets then count those of each of so many. None: all.

    Examples:
        >>> from attacks import EOT, Linf, Problem, Toward
        >>> from transforms import Brightness, Compose
        >>> grey, black = torch.full((1, 1, 1, 1), 0.5), torch.zeros(1, 1)
        >>> problem = Problem(grey, black, torch.nn.Flatten().eval(), Toward("l2"), Linf())
        >>> eot = EOT(Compose([Brightness(0.25)]), views=64)
        >>> estimate = eot.estimate(problem, torch.zeros_like(grey), eot.points(0, 0, grey))
        >>> round(float(estimate.mean), 2), round(float(estimate.grad), 4)  # of the distance 0.5 + brightness
        (0.5, 1.0)
    """

    transforms: Compose = field(default_factory=Compose)
    draws: Draws = field(default_factory=Sobol)
    views: int = None  # type: ignore[assignment]
    chunk: int = 32
    risk: Risk = field(default_factory=Mean)
    world: World = ALONE
    pictures: int | None = None

    def __post_init__(self) -> None:
        check_pipeline(self.transforms)
        for name in ("draws", "risk"):
            made(name, getattr(self, name))
        for name in ("views", "chunk") if self.views is not None else ("chunk",):
            check_count(name, getattr(self, name))
        if self.pictures is not None:
            check_count("pictures", self.pictures, "pictures")

    def points(self, seed: int, step: int, like: Tensor, *, times: int = 1, pictures: int | None = None) -> Tensor:
        """The coordinates (times * views, dims) of a step's views: blocks step, step + 1, ... of `views` points each;
        or for each of `pictures` blocks of its own, (pictures, times * views, dims). On the host, in the type of
        `like`."""
        dims, copies = self.transforms.dims, pictures or 1
        # One sequence: the blocks of all pictures are one draw, of the same points.
        merged_draws = copies if isinstance(self.draws, Sobol) else 1
        first, count = step * copies // merged_draws, times * copies // merged_draws
        parts = [self.draws(self.views * merged_draws, dims, seed=seed, step=first + i) for i in range(count)]
        if pictures is None:
            return torch.cat(parts).to(like.dtype)
        blocks = torch.cat(parts).view(times, copies, self.views, dims).transpose(0, 1)
        return blocks.reshape(copies, times * self.views, dims).to(like.dtype)

    def estimate(self, problem: Question, delta: Tensor, u: Tensor) -> Estimate:
        """The mean loss over the views `u` of each image, and the gradient of the risk with respect to `delta`, the
        same on every process of `world`.

        Args:
            problem: N images and their losses.
            delta: (N,...), one perturbation per image; or (1,...), shared by all: its gradient is that of the mean
                over the images.
            u: the views' coordinates: (n,dims), common to all images, or (N,n,dims), those of each image.
        """
        if u.dim() == 3 and len(u) != len(problem):
            raise ValueError(f"`u` must hold the views of each of {len(problem)} images; got those of {len(u)}")
        return _Estimation(self, problem, delta, u).run()


class _Estimation:
    """The work of one estimate. Losses (N,n) are kept in full; gradients group by group of views."""

    def __init__(self, eot: EOT, problem: Question, delta: Tensor, u: Tensor) -> None:
        self.eot, self.problem, self.u, self.world = eot, problem, u, eot.world
        self.delta, self.count, self.n = delta.detach(), len(problem), u.shape[-2]
        self.shared, self.wide, self.chunk = len(delta) < self.count, wide_dtype(delta), eot.chunk
        self.by_views = self.n >= self.world.size  # each process takes some of the views, or some of the images
        self.views = list(self.world.share(self.n)) if self.by_views else list(range(self.n))
        self.size = group_size(self.n)
        self.losses = delta.new_zeros(self.count, self.n, dtype=self.wide)
        self.weights: Tensor | None = None  # of the views of each image (N,n), where the risk is not their mean

    def run(self) -> Estimate:
        if not self.eot.risk.uniform:  # the weights follow from all losses
            with torch.no_grad():
                for images in self._blocks():
                    for result in within_memory(self._pass, passes(images, self.views, self.n, self.chunk)):
                        self._record(*result)
            self.world.sum(self.losses)
            self.weights = self.eot.risk.weights(self.losses) * self.n
        if self.n == self.world.size == 1 and not self.shared:
            return self._of_one_view()
        grad = torch.zeros_like(self.delta, dtype=self.wide)
        energy = grad.new_zeros(len(grad))
        total = self._zeros(1) if self.shared else None
        for images in self._blocks():
            rows = slice(images.start, images.stop)
            partial = self._zeros(len(images)) if total is None else total
            for part, views in self._counting(images):
                for result in within_memory(self._pass, passes(part, views, self.n, self.chunk)):
                    block, slope = result[0], self._record(*result)
                    first = 0 if self.shared else block.images.start - images.start
                    target = slice(first, first + (1 if self.shared else len(block.images)))
                    for k, group in enumerate(block.groups):
                        partial[target, group[0] // self.size] += slope[:, k].to(partial)
            if total is None:
                if self.by_views:
                    self.world.sum(partial)
                grad[rows], energy[rows] = self._totals(partial)
        if total is not None:
            self.world.sum(total)
            grad[:], energy[:] = self._totals(total)
        elif not self.by_views:
            self.world.sum(grad, energy)
        if self.weights is None:
            self.world.sum(self.losses)
        return self._summary(grad, energy)

    def _of_one_view(self) -> Estimate:
        """The case of one view an image: nothing is summed, so nothing is copied and no float64 is needed."""
        slopes = [
            self._record(*result)[:, 0]
            for images in self._blocks()
            for result in within_memory(self._pass, passes(images, self.views, 1, self.chunk))
        ]
        grad = slopes[0] if len(slopes) == 1 else torch.cat(slopes)
        return self._summary(grad, self.losses.new_zeros(len(grad)))

    def _record(self, block: Pass, result: tuple[Tensor, Tensor], fits: int | None) -> Tensor:
        """The gradient of a pass, whose losses are stored, and `chunk` is lowered where memory ran out."""
        losses, slope = result
        if fits is not None:
            self.chunk = min(self.chunk, fits)
        if self.weights is None:
            self.losses[block.images.start : block.images.stop, self._columns(block)] = losses.to(self.losses)
        return slope

    def _summary(self, grad: Tensor, energy: Tensor) -> Estimate:
        mean, n, dtype = self.losses.mean(1), self.n, self.delta.dtype
        stderr = (self.losses.var(1, correction=1) / n).sqrt() if n > 1 else torch.zeros_like(mean)
        snr = signal_to_noise(grad, energy, n * (self.count if self.shared else 1), -(-n // self.size))
        value = self.eot.risk.value(self.losses).to(dtype)
        views = torch.full_like(snr, n, dtype=torch.long)
        return Estimate(mean.to(dtype), stderr.to(dtype), snr.to(dtype), grad.to(dtype), views, self.chunk, value)

    def _zeros(self, rows: int) -> Tensor:
        """Sums of gradients by row of delta and group of views, before the first pass."""
        return self.delta.new_zeros(rows, -(-self.n // self.size), *self.delta.shape[1:], dtype=self.wide)

    def _blocks(self) -> list[range]:
        """The images, some at a time: as many as leave each pass all their views."""
        width = -(-self.n // self.world.size) if self.by_views else self.n
        limit = max(1, self.eot.chunk // width)
        if self.by_views:
            return split_evenly(range(self.count), limit)
        # At least two at a time where possible: a single row takes other kernels, and rounds differently.
        parts = split_evenly(range(self.count), min(limit, max(2, -(-self.count // self.world.size))))
        return [parts[i] for i in self.world.share(len(parts))]

    def _counting(self, images: range) -> list[tuple[range, Sequence[int]]]:
        weights = None if self.weights is None else self.weights[images.start : images.stop]
        if weights is None or bool((weights > 0).all()):
            return [(images, self.views)]
        rows = zip(images, weights.tolist(), strict=True)
        return [(range(i, i + 1), [j for j in self.views if row[j] > 0]) for i, row in rows]

    def _pass(self, part: Pass) -> tuple[Tensor, Tensor]:
        """The losses (images,groups,views) of a pass, and the gradient (rows of delta,groups,...) of their sum: zero
        where the graph is cut, which the loop refuses, and within `torch.no_grad`."""
        images, groups = part.images, len(part.groups)
        rows = slice(None) if self.shared else slice(images.start, images.stop)
        leaf = self.delta[rows, None].expand(-1, groups, *self.delta.shape[1:]).detach().requires_grad_()
        numbers = torch.arange(images.start, images.stop).repeat_interleave(groups)
        views = torch.tensor(part.groups).flatten()
        if self.u.dim() == 3:
            u = self.u[images.start : images.stop, views].flatten(0, 1)
        else:
            u = self.u[views].repeat(len(images), 1)
        while True:
            delta = leaf[:, 0]
            if not self.shared or groups > 1:  # a single shared one is not copied, nor read in copies
                delta = leaf.expand(len(images), *leaf.shape[1:]).flatten(0, 1)
            losses = self.problem.losses(self.eot.transforms, delta, numbers, u).reshape(len(images), groups, -1)
            weighted = losses
            if self.weights is not None:
                weighted = losses * self.weights[images.start : images.stop, self._columns(part)].to(losses)
            total, slope = weighted.sum(), None
            if total.requires_grad:
                try:
                    (slope,) = torch.autograd.grad(total, leaf, allow_unused=True)
                except Overflow:  # the scale is smaller now: try again
                    continue
            return losses.detach(), torch.zeros_like(leaf) if slope is None else slope

    def _columns(self, part: Pass) -> Tensor:
        """The numbers (groups,views) of the views of a pass, on the device."""
        return uploaded(torch.tensor(part.groups), self.losses.device)

    def _totals(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        """From the groups' sums to the mean gradient, and sum_k m_k ||g_k||^2 over the groups' means g_k."""
        images = self.count if self.shared else 1
        sizes = [min(self.size, self.n - k * self.size) * images for k in range(partial.shape[1])]
        energy = partial.flatten(2).square().sum(2) / constants(tuple(sizes), partial.dtype, partial.device)
        return partial.sum(1) / (self.n * images), energy.sum(1)

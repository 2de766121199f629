"""Expectation over transformation: the mean loss over views, and its gradient, in constant memory.

Athalye et al. 2018: minimise E_t[loss(encoder(t(x)))]. The *loss* is averaged, never the features; the gradient is
accumulated pass by pass, so memory does not grow with the number of views. How the views are cut into passes, how
many pictures there are, and how many processes share the work shows in the last digits only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import drawn
from attacks.eot.batching import Pass, blocks, group_size, passes, within_memory
from attacks.eot.estimate import Estimate, signal_to_noise
from attacks.eot.risk import Mean, Risk
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Draws, Scene, Sobol
from transforms.sampling.homography import wide_dtype

#: (delta rows (R,...), picture of each row (R,)) -> the scene of those R attacked pictures.
MakeScene = Callable[[Tensor, Tensor], Scene]
#: (views (R,C,h,w), picture of each view (R,)) -> losses (R,); with a twin, its views (R,C,h,w) come third. Where the
#: pipeline holds draws of the encoder, those of the views (R,k) come as `draws`.
Loss = Callable[..., Tensor]
#: Which image each row shows (R,) -> the scene of those R images, as they are without a perturbation.
MakeTwin = Callable[[Tensor], Scene]


@dataclass(frozen=True)
class EOT:
    """The estimator of the expected loss.

    Args:
        transforms: the views; an empty `Compose` is the identity view, an attack without EOT.
        draws: where the views' coordinates come from.
        n: views per image and step. Every image of a batch is seen from the same n views (common random numbers),
            so an image's gradient does not depend on its neighbours in the batch; images that share a perturbation
            have views of their own, for their gradients are added up, and more views tell more.
        chunk: most views held in memory at once, over all images; halved where memory runs out.
        risk: how the losses of an image's views become the one number to minimise: their mean, or their tail
            (`CVaR`, `WorstOf`, `SoftMax`). A tail costs a second forward pass, of the views that count.
    """

    transforms: Compose = field(default_factory=Compose)
    draws: Draws = field(default_factory=Sobol)
    n: int = 8
    chunk: int = 32
    risk: Risk = field(default_factory=Mean)

    def __post_init__(self) -> None:
        for name in ("n", "chunk"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be a whole number of views, at least 1; got {value!r}")

    def points(self, seed: int, step: int, like: Tensor, *, times: int = 1, pictures: int | None = None) -> Tensor:
        """The coordinates (times * n, dims) of one step's views: blocks step, step + 1, ... of n points each. Or for
        each of so many `pictures` blocks of its own, (pictures, times * n, dims)."""
        dims, own = self.transforms.dims, pictures or 1
        parts = [self.draws(self.n, dims, seed=seed, step=step * own + i) for i in range(times * own)]
        if pictures is None:
            return torch.cat(parts).to(like)
        blocks = torch.stack(parts).view(times, own, self.n, dims).transpose(0, 1)
        return blocks.reshape(own, times * self.n, dims).to(like)

    def estimate(
        self,
        delta: Tensor,
        scene: MakeScene,
        loss: Loss,
        u: Tensor,
        *,
        count: int | None = None,
        world: World = ALONE,
        twin: MakeTwin | None = None,
    ) -> Estimate:
        """The mean loss over the views `u` of each image, and the gradient of the risk with respect to `delta`, the
        same on every process of `world`.

        Args:
            delta: (N,...), one perturbation per image; or (1,...), shared by `count` images: its gradient is that of
                the mean over the images.
            scene: (rows of delta, which image each belongs to) -> their scene.
            loss: (views, which image each shows) -> losses.
            u: the views' coordinates: (n,dims), common to all images, or (count,n,dims), those of each image.
            count: how many images share a single delta; the length of `delta` otherwise.
            world: the processes that share the work: each must call with the same arguments.
            twin: what `loss` wants to see from the same views, without a gradient.
        """
        count = len(delta) if count is None else count
        if u.dim() == 3 and len(u) != count:
            raise ValueError(f"`u` must hold the views of each of {count} images; got those of {len(u)}")
        return _Step(self, delta, scene, loss, u, count, world, twin).estimate()


class _Step:
    """The work of one estimate: what it was asked, and what it has found so far."""

    def __init__(
        self,
        eot: EOT,
        delta: Tensor,
        scene: MakeScene,
        loss: Loss,
        u: Tensor,
        count: int,
        world: World,
        twin: MakeTwin | None,
    ) -> None:
        self.eot, self.scene, self.loss, self.u, self.world, self.twin = eot, scene, loss, u, world, twin
        self.delta, self.count, self.n = delta.detach(), count, u.shape[-2]
        self.shared, self.wide, self.chunk = len(delta) < count, wide_dtype(delta), eot.chunk
        self.by_views = self.n >= world.size  # each process takes some of the views, or some of the images
        self.views = list(world.share(self.n)) if self.by_views else list(range(self.n))
        self.size = group_size(self.n)
        self.losses = delta.new_zeros(count, self.n, dtype=self.wide)

    def estimate(self) -> Estimate:
        weights = None
        if not self.eot.risk.uniform:  # who counts is known when all losses are
            for images in self._blocks():
                self._look(images)
            self.world.sum(self.losses)
            weights = self.eot.risk.weights(self.losses) * self.n
        grad = torch.zeros_like(self.delta, dtype=self.wide)
        energy = grad.new_zeros(len(grad))
        for rows, partial in self._partials(weights):
            grad[rows], energy[rows] = self._together(partial)
        if not self.by_views and not self.shared:
            self.world.sum(grad, energy)
        if weights is None:
            self.world.sum(self.losses)
        mean, n = self.losses.mean(1), self.n
        stderr = (self.losses.var(1, correction=1) / n).sqrt() if n > 1 else torch.zeros_like(mean)
        groups = -(-n // self.size)
        snr = signal_to_noise(grad, energy, n * (self.count if self.shared else 1), groups)
        dtype = self.delta.dtype
        value = self.eot.risk.value(self.losses).to(dtype)
        return Estimate(mean.to(dtype), stderr.to(dtype), snr.to(dtype), grad.to(dtype), n, self.chunk, value)

    def _blocks(self) -> Iterator[range]:
        """The images, some at a time: as many as leave each pass all their views."""
        width = -(-self.n // self.world.size) if self.by_views else self.n
        most = max(1, self.eot.chunk // width)
        if self.by_views:
            yield from blocks(self.count, most)
            return
        # In twos at least, as far as they go: a single row takes other kernels, and rounds differently.
        parts = blocks(self.count, min(most, max(2, -(-self.count // self.world.size))))
        yield from (parts[i] for i in self.world.share(len(parts)))

    def _partials(self, weights: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """Rows of delta, and the sums of their gradients by group of views (rows,groups,...), over all processes."""
        groups = -(-self.n // self.size)
        whole = self.delta.new_zeros(1, groups, *self.delta.shape[1:], dtype=self.wide) if self.shared else None
        for images in self._blocks():
            partial = whole
            if partial is None:
                partial = self.delta.new_zeros(len(images), groups, *self.delta.shape[1:], dtype=self.wide)
            self._learn(images, partial, weights)
            if whole is None:
                if self.by_views:
                    self.world.sum(partial)
                yield slice(images.start, images.stop), partial
        if whole is not None:
            self.world.sum(whole)
            yield slice(0, 1), whole

    def _learn(self, images: range, partial: Tensor, weights: Tensor | None) -> None:
        """Add the gradients of a block of images, group by group, to `partial`."""
        for part, views in self._chosen(images, weights):
            for each in passes(part, views, self.n, self.chunk):
                for done, (losses, grad) in within_memory(lambda p: self._pass(p, weights), each):
                    self._fitted(done, each)
                    if weights is None:  # else they are known, and the same on every process
                        self._places(self.losses, done, losses)
                    first = 0 if self.shared else done.images.start - images.start
                    rows = slice(first, first + (1 if self.shared else len(done.images)))
                    which = [group[0] // self.size for group in done.groups]
                    partial[rows, which] += grad.to(self.wide)

    def _chosen(self, images: range, weights: Tensor | None) -> Iterator[tuple[range, Sequence[int]]]:
        """Images with the views of theirs that count."""
        if weights is None or bool((weights[images.start : images.stop] > 0).all()):
            yield images, self.views
            return
        for i in images:
            counts = weights[i].tolist()
            yield range(i, i + 1), [j for j in self.views if counts[j] > 0]

    def _look(self, images: range) -> None:
        """Fill in the losses of a block of images, without gradients."""
        for each in passes(images, self.views, self.n, self.chunk):
            for done, losses in within_memory(self._forward, each):
                self._fitted(done, each)
                self._places(self.losses, done, losses)

    @torch.no_grad()
    def _forward(self, part: Pass) -> Tensor:
        rows = slice(None) if self.shared else slice(part.images.start, part.images.stop)
        return self._losses(part, self.delta[rows, None].expand(-1, len(part.groups), *self.delta.shape[1:]))

    def _pass(self, part: Pass, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The losses (images,groups,views) of a pass, and the gradient (rows of delta,groups,...) of their sum."""
        rows = slice(None) if self.shared else slice(part.images.start, part.images.stop)
        leaf = self.delta[rows, None].expand(-1, len(part.groups), *self.delta.shape[1:]).detach().requires_grad_()
        while True:
            losses = self._losses(part, leaf)
            goal = losses if weights is None else losses * self._places(weights, part).to(losses)
            try:
                return losses.detach(), _gradient(goal.sum(), leaf)
            except Overflow:  # the loss scale has been halved meanwhile
                continue

    def _losses(self, part: Pass, leaf: Tensor) -> Tensor:
        """One forward pass: (images,groups,views)."""
        images, groups, length = len(part.images), len(part.groups), len(part.groups[0])
        index = torch.arange(part.images.start, part.images.stop, device=leaf.device).repeat_interleave(groups)
        rows = leaf.expand(images, *leaf.shape[1:]).flatten(0, 1)
        views = torch.tensor(part.groups, device=self.u.device).flatten()
        if self.u.dim() == 3:
            u = self.u[part.images.start : part.images.stop, views].flatten(0, 1)
        else:
            u = self.u[views].repeat(images, 1)
        which = index.repeat_interleave(length)
        seen = [self.eot.transforms(self.scene(rows, index), u)]
        if self.twin is not None:
            with torch.no_grad():
                seen.append(self.eot.transforms(self.twin(index), u))
        losses = self.loss(seen[0], which, *seen[1:], **drawn(self.eot.transforms, u))
        return losses.reshape(images, groups, length)

    def _fitted(self, done: Pass, asked: Pass) -> None:
        """Remember where memory ran out."""
        if done.rows < asked.rows:
            self.chunk = min(self.chunk, max(1, asked.rows // 2))

    @staticmethod
    def _places(table: Tensor, part: Pass, fill: Tensor | None = None) -> Tensor:
        """The entries (images,groups,views) of a table (N,n) that belong to a pass; first set to `fill`, if given."""
        rows = torch.tensor(part.images, device=table.device)[:, None, None]
        columns = torch.tensor(part.groups, device=table.device)
        if fill is not None:
            table[rows, columns] = fill.to(table)
        return table[rows, columns]

    def _together(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        """From the groups' sums to the mean gradient, and sum_k m_k ||g_k||^2 over the groups' means g_k."""
        images = self.count if self.shared else 1
        sizes = [min(self.size, self.n - k * self.size) * images for k in range(partial.shape[1])]
        energy = partial.flatten(2).square().sum(2) / partial.new_tensor(sizes)
        return partial.sum(1) / (self.n * images), energy.sum(1)


def _gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    """d loss / d leaf; zero where the graph is cut, which is for the loop to judge."""
    if not loss.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient

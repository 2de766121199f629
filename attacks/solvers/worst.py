"""The worst views for an attacker: those of the highest loss, found by random search first and by gradient after it.

First-order methods alone cannot find them (Engstrom et al. 2019: the loss over views has many local maxima), so a
gradient only refines the best of many random views. An attack against such views is the adversary of the adversary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Encoder, Tree, take
from attacks.eot.bank import Bank, bank, twins_of
from attacks.eot.batching import blocks, in_parts
from attacks.eot.estimator import EOT
from attacks.eot.protocols import Look, Objective
from attacks.eot.risk import CVaR
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Shown, base_of, scene_of, taken

#: The first step of the refinement, as a share of each coordinate's range; halved where it does not raise the loss.
STEP = 0.1
BELOW_ONE = 1 - 2**-24


class Worst(NamedTuple):
    """The views of each picture with the highest loss, highest first: coordinates `u` (N,keep,dims) and `losses`
    (N,keep)."""

    u: Tensor
    losses: Tensor


class Sides(NamedTuple):
    """Both sides of an attack, picture by picture: the `mean` loss over a bank of views, and the `worst` loss, that
    of the bank's worst views, refined; each (N,). `u` (N,dims) is the worst view."""

    mean: Tensor
    worst: Tensor
    u: Tensor


@dataclass(frozen=True)
class Adversary:
    """Chooses the views of an attack's step: for each picture the worst n of `k` new random ones, then refined.

    Against it, an attack minimises its worst views instead of their mean. Without refinement that is `CVaR(n / k)` of
    k views; the gradient is of n of them only.

    Args:
        k: random views to look at in each step, at least as many as `EOT.n`.
        refine_steps: steps of the refinement of those that are kept.
    """

    k: int = 16
    refine_steps: int = 0

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("refine_steps", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"`{name}` must be a whole number, at least {least}; got {value!r}")

    def cost(self, n: int) -> int:
        """The encoder passes for each picture that choosing n views takes; a pass without a gradient counts as one
        too. Raises ValueError for n above k."""
        if n > self.k:
            raise ValueError(f"`k` must be at least the number of views of a step, {n}; got {self.k}")
        return self.k + (n * (self.refine_steps + 1) if self.refine_steps else 0)

    def risk(self, n: int) -> CVaR:
        """What the attack minimises, as a risk over random views: how its iterates are to be compared."""
        return CVaR(n / self.k)

    def views(
        self, look: Look, eot: EOT, n: int, *, like: Tensor, count: int, seed: int, step: int, world: World = ALONE
    ) -> Tensor:
        """The views (count,n,dims) of step `step` for `EOT.estimate`; the random ones come from `eot.draws`."""
        u = eot.draws(self.k, eot.transforms.dims, seed=seed, step=step).to(like)
        losses = _survey(look, u, count, eot.chunk, world)
        kept = _highest(u, losses, n)
        return _refined(look, kept, eot.transforms.discrete, self.refine_steps, eot.chunk, world).u


def worst_views(
    images: Shown,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    transforms: Compose,
    k: int = 512,
    refine_steps: int = 10,
    keep: int = 1,
    seed: int = 0,
    chunk: int = 64,
    world: World = ALONE,
    untouched: Tensor | None = None,
) -> Worst:
    """For each picture, the `keep` views of the highest loss among `k` scrambled Sobol points, which are the same for
    all pictures, each then moved uphill by its own gradient.

    A refinement step moves every coordinate by the same share of its range, in the sign of its derivative, within
    [0,1); it is taken where the loss rises, and halved where it does not. Coordinates that choose rather than measure
    (`transforms.discrete`) stay as they were drawn. So no loss is below that of the random views.

    Args:
        images: (N,C,H,W) in [0,1], already attacked, perhaps with a patch on them.
        anchor: as of `attack`.
        keep: at most k.
        chunk: most views in memory at once.
        world: the processes that share the work; all get the same answer.
        untouched: (N,C,H,W), what a paired objective compares with.

    Raises:
        ValueError: `keep` above `k`, or either below 1.
    """
    if not 1 <= keep <= k:
        raise ValueError(f"`keep` must lie in 1..{k}, the number of random views `k`; got {keep}")
    views = bank(transforms, k, seed=seed, purpose="worst")
    given = {"encoder": encoder, "objective": objective, "chunk": chunk, "world": world, "untouched": untouched}
    return _hardest(images, anchor, views, refine_steps, keep, **given)[1]


def both_sides(
    images: Shown,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    views: Bank,
    refine_steps: int = 10,
    keep: int = 4,
    chunk: int = 64,
    world: World = ALONE,
    untouched: Tensor | None = None,
) -> Sides:
    """The mean and the worst side of an attack on one bank of views: pictures (N,C,H,W), already attacked. The worst
    loss is the highest after `refine_steps` from each of the bank's `keep` worst views. Else as `worst_views`."""
    given = {"encoder": encoder, "objective": objective, "chunk": chunk, "world": world, "untouched": untouched}
    losses, worst = _hardest(images, anchor, views, refine_steps, keep, **given)
    return Sides(losses.mean(1), worst.losses[:, 0], worst.u[:, 0])


def uphill(
    images: Shown,
    anchor: Tree,
    *,
    encoder: Encoder,
    objective: Objective,
    views: Bank,
    losses: Tensor,
    refine_steps: int = 10,
    keep: int = 4,
    chunk: int = 64,
    world: World = ALONE,
    untouched: Tensor | None = None,
) -> Worst:
    """The `keep` worst views of a bank whose `losses` (N,V) are known already, refined. It takes
    `keep * (refine_steps + 1)` encoder passes for each picture (twice as many for a paired objective), or none
    without steps. Else as `worst_views`."""
    twins = twins_of(objective, untouched)

    def look(which: Tensor, u: Tensor) -> Tensor:
        draws = drawn(views.transforms, u)
        if twins is None:
            beside = take(anchor, which.repeat_interleave(len(u) // len(which)))
        else:  # the coordinates move this view too, so their slope runs through both
            beside = encoder(views.transforms(scene_of(twins[which]), u), **draws)
        return objective(encoder(views.transforms(taken(images, which), u), **draws), beside)

    kept = _highest(views.u.to(base_of(images)), losses, keep)
    return _refined(look, kept, views.transforms.discrete, refine_steps, chunk, world)


def _hardest(
    images: Shown, anchor: Tree, views: Bank, refine_steps: int, keep: int, **given: Any
) -> tuple[Tensor, Worst]:
    """All losses on a bank (N,V), and the worst views after refinement."""
    views = views._replace(u=views.u.to(base_of(images)))
    losses = views.losses(images, anchor, **given)
    return losses, uphill(images, anchor, views=views, losses=losses, refine_steps=refine_steps, keep=keep, **given)


@torch.no_grad()
def _survey(look: Look, u: Tensor, count: int, chunk: int, world: World) -> Tensor:
    """The losses (count,k) of the views `u` (k,dims) of every picture; the processes share the views."""
    mine = torch.tensor(world.share(len(u)), dtype=torch.long, device=u.device)
    losses = u.new_zeros(count, len(u))
    for pictures in blocks(count, max(1, chunk // len(mine))) if len(mine) else ():
        which = torch.tensor(pictures, device=u.device)

        def some(part: Tensor, which: Tensor = which) -> Tensor:
            def of(some: Tensor) -> Tensor:
                return look(some, u[part].repeat(len(some), 1)).view(len(some), -1)

            return torch.cat([found for _, found in in_parts(of, which, len(which))])

        for part, found in in_parts(some, mine, max(1, chunk // len(which))):
            losses[which[:, None], part] = found.to(u)
    world.sum(losses)
    return losses


def _highest(u: Tensor, losses: Tensor, keep: int) -> Worst:
    """The `keep` views of each picture with the highest losses; of equal ones, the earlier."""
    order = losses.argsort(dim=1, descending=True, stable=True)[:, :keep]
    return Worst(u[order], losses.gather(1, order))


def _refined(look: Look, found: Worst, fixed: tuple[int, ...], steps: int, chunk: int, world: World) -> Worst:
    """The views moved uphill, and sorted again; the processes share them."""
    count, keep, dims = found.u.shape
    if not steps or not dims:  # a pipeline without coordinates has one view only
        return found
    which = torch.arange(count, device=found.u.device).repeat_interleave(keep)
    u, losses = torch.zeros_like(found.u).view(-1, dims), torch.zeros_like(found.losses).view(-1)
    mine = torch.tensor(world.share(len(which)), dtype=torch.long, device=u.device)

    def climb(part: Tensor) -> tuple[Tensor, Tensor]:
        start, height = found.u.view(-1, dims)[part], found.losses.view(-1)[part]
        return _climbed(look, which[part], start, height, fixed, steps)

    for part, (points, heights) in in_parts(climb, mine, chunk):
        u[part], losses[part] = points, heights
    world.sum(u, losses)
    u, losses = u.view(count, keep, dims), losses.view(count, keep)
    order = losses.argsort(dim=1, descending=True, stable=True)
    return Worst(u.gather(1, order[..., None].expand_as(u)), losses.gather(1, order))


def _climbed(
    look: Look, which: Tensor, u: Tensor, losses: Tensor, fixed: tuple[int, ...], steps: int
) -> tuple[Tensor, Tensor]:
    """`steps` steps uphill from each of the views (R,dims)."""
    free = torch.ones_like(u)
    free[:, list(fixed)] = 0
    length, (_, slope) = torch.full_like(losses, STEP)[:, None], _slope(look, which, u)
    for _ in range(steps):
        there = (u + length * free * slope.sign()).clamp(0, BELOW_ONE)
        after, slope_there = _slope(look, which, there)
        better = after > losses
        losses, better = torch.where(better, after, losses), better[:, None]
        u, slope = torch.where(better, there, u), torch.where(better, slope_there, slope)
        length = torch.where(better, length, length / 2)
    return u, losses


def _slope(look: Look, which: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (R,) of views, and their derivatives (R,dims) by the coordinates; zero where there is none."""
    while True:
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            losses = look(which, leaf)
        try:
            slope = torch.autograd.grad(losses.sum(), leaf, allow_unused=True)[0] if losses.requires_grad else None
        except Overflow:  # the loss scale has been halved meanwhile
            continue
        return losses.detach().to(u), torch.zeros_like(u) if slope is None else slope.nan_to_num(0, 0, 0)

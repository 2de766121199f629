"""The worst views for an attacker: those of the highest loss, found by random search first and by gradient after it.

First-order methods alone cannot find them (Engstrom et al. 2019: the loss over views has many local maxima), so a
gradient only refines the best of many random views. An attack against such views is the adversary of the adversary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.contract import check_encoder
from attacks.encoders.engine import Overflow
from attacks.eot.bank import NO_DELTA, Bank, bank
from attacks.eot.batching import Pass, in_parts, in_passes
from attacks.eot.estimator import EOT, Question
from attacks.eot.problem import Problem
from attacks.eot.risk import CVaR
from attacks.runtime.distributed import ALONE, World
from attacks.solvers.checks import check_images
from transforms import Compose

#: Images (B,), and the coordinates (B*V,dims) of V views of each in turn -> losses (B*V,).
LossFn = Callable[[Tensor, Tensor], Tensor]

#: The first step of the refinement, as a share of each coordinate's range; halved where it does not raise the loss.
STEP = 0.1
MAX_U = 1 - 2**-24


class Worst(NamedTuple):
    """The views of each picture with the highest loss, highest first: coordinates `u` (N,keep,dims) and `losses`
    (N,keep)."""

    u: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Adversary:
    """Chooses the views of an attack's step: for each picture the worst n of k new random ones, then refined.

    Against it, an attack minimises its worst views instead of their mean. Without refinement that is `CVaR(n / k)` of
    k views; the gradient is of n of them only.

    `adversary` is k, the random views that each step chooses among, at least as many as `EOT.views`; `refine` the
    steps of the refinement of those that are kept.

    Examples:
        >>> from attacks.solvers import Adversary
        >>> adversary = Adversary(adversary=16, refine=2)
        >>> adversary.risk(4), adversary.cost(4)  # the worst quarter; 16 views to choose among, and 4 * 3 to refine
        (CVaR(alpha=0.25), 28)
    """

    adversary: int
    refine: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("adversary", 1), ("refine", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < minimum:
                raise ValueError(f"`{name}` must be a whole number, at least {minimum}; got {value!r}")

    def cost(self, n: int) -> int:
        """The encoder passes for each picture that choosing n views takes; a pass without a gradient counts as one
        too. Raises ValueError for n above k."""
        if n > self.adversary:
            raise ValueError(f"`adversary` must be at least the number of views of a step, {n}; got {self.adversary}")
        return self.adversary + (n * (self.refine + 1) if self.refine else 0)

    def risk(self, n: int) -> CVaR:
        """What the attack minimises, as a risk over random views: how its iterates are to be compared."""
        return CVaR(n / self.adversary)

    def views(self, problem: Question, delta: Tensor, eot: EOT, n: int, *, seed: int, step: int) -> Tensor:
        """The views (N,n,dims) of step `step` for `EOT.estimate`; the random ones come from `eot.draws`."""

        def loss(numbers: Tensor, u: Tensor) -> Tensor:
            deltas = delta.expand(len(numbers), *delta.shape[1:]) if len(delta) < len(problem) else delta[numbers]
            return problem.losses(eot.transforms, deltas, numbers, u)

        u = eot.draws(self.adversary, eot.transforms.dims, seed=seed, step=step).to(delta)
        losses = _survey(loss, u, len(problem), eot.chunk, eot.world)
        highest = _highest(u.expand(len(losses), -1, -1), losses, n)
        return _refine(loss, highest, eot.transforms.discrete, self.refine, eot.chunk, eot.world).u


def worst_views(
    problem: Problem,
    transforms: Compose,
    *,
    k: int = 512,
    refine_steps: int = 10,
    keep: int = 1,
    seed: int = 0,
    chunk: int = 64,
    world: World = ALONE,
) -> Worst:
    """For each picture, the `keep` views of the highest loss among `k` scrambled Sobol points, which are the same for
    all pictures, each then moved uphill by its own gradient.

    A refinement step moves every coordinate by the same share of its range, in the sign of its derivative, within
    [0,1); it is taken where the loss rises, and halved where it does not. Coordinates that choose rather than measure
    (`transforms.discrete`) stay as they were drawn. So no loss is below that of the random views.

    Args:
        problem: the attacked pictures, as `attacks.eot.bank.judged` makes it.
        chunk: most views in memory at once.
        world: the processes that share the work; all get the same answer.

    Raises ValueError for `keep` above `k`, or either below 1.

    Examples:
        >>> from attacks import Away, worst_views
        >>> from attacks.eot.bank import judged
        >>> from transforms import Brightness, Compose
        >>> images, encoder = torch.full((1, 3, 4, 4), 0.5), torch.nn.Flatten().eval()
        >>> problem = judged(images, encoder(images), encoder, Away("l2"))
        >>> worst = worst_views(problem, Compose([Brightness(0.25)]), k=16)
        >>> worst.u.shape, round(worst.u.item(), 2)  # the view without a change of brightness
        (torch.Size([1, 1, 1]), 0.5)
    """
    if not 1 <= keep <= k:
        raise ValueError(f"`keep` must lie in 1..{k}, the number of random views `k`; got {keep}")
    check_images(problem.scene(NO_DELTA, torch.arange(len(problem))))
    check_encoder(problem.encoder, problem.images, transforms)
    views = bank(transforms, k, seed=seed, purpose="worst")
    views = views._replace(u=views.u.to(problem.images))
    losses = views.losses_of(problem, chunk, world)
    return uphill(problem, views, losses, refine_steps=refine_steps, keep=keep, chunk=chunk, world=world)


def uphill(
    problem: Problem,
    views: Bank,
    losses: Tensor,
    *,
    refine_steps: int = 10,
    keep: int = 4,
    chunk: int = 64,
    world: World = ALONE,
) -> Worst:
    """The `keep` worst views of a bank whose `losses` (N,V) are known already, refined. It takes
    `keep * (refine_steps + 1)` encoder passes for each picture (twice as many for a paired objective), or none
    without steps. Else as `worst_views`."""
    loss = partial(problem.losses, views.transforms, NO_DELTA)
    highest = _highest(views.u.to(problem.images).expand(len(losses), -1, -1), losses, keep)
    return _refine(loss, highest, views.transforms.discrete, refine_steps, chunk, world)


@torch.no_grad()
def _survey(loss: LossFn, u: Tensor, count: int, chunk: int, world: World) -> Tensor:
    """The losses (count,k) of the views `u` (k,dims) of every picture; the processes share the views."""
    losses = u.new_zeros(count, len(u))

    def part_losses(part: Pass) -> Tensor:
        numbers = torch.tensor(part.images, device=u.device)
        return loss(numbers, u[list(part.groups[0])].repeat(len(numbers), 1)).view(len(numbers), -1)

    for part, values in in_passes(part_losses, count, world.share(len(u)), chunk):
        losses[part.images.start : part.images.stop, part.groups[0]] = values.to(u)
    world.sum(losses)
    return losses


def _highest(u: Tensor, losses: Tensor, keep: int) -> Worst:
    """The `keep` of the views `u` (N,k,dims) of each picture with the highest losses; of equal ones, the earlier."""
    order = losses.argsort(dim=1, descending=True, stable=True)[:, :keep]
    return Worst(u.gather(1, order[..., None].expand(-1, -1, u.shape[2])), losses.gather(1, order))


def _refine(loss: LossFn, views: Worst, fixed: tuple[int, ...], steps: int, chunk: int, world: World) -> Worst:
    count, keep, dims = views.u.shape
    if not steps or not dims:  # a pipeline without coordinates has one view only
        return views
    numbers = torch.arange(count, device=views.u.device).repeat_interleave(keep)
    u, losses = torch.zeros_like(views.u).view(-1, dims), torch.zeros_like(views.losses).view(-1)
    mine = torch.tensor(world.share(len(numbers)), dtype=torch.long, device=u.device)

    def climb(part: Tensor) -> tuple[Tensor, Tensor]:
        start, height = views.u.view(-1, dims)[part], views.losses.view(-1)[part]
        return _ascend(loss, numbers[part], start, height, fixed, steps)

    for part, (points, heights) in in_parts(climb, mine, chunk):
        u[part], losses[part] = points, heights
    world.sum(u, losses)
    return _highest(u.view(count, keep, dims), losses.view(count, keep), keep)


def _ascend(
    loss: LossFn, numbers: Tensor, u: Tensor, losses: Tensor, fixed: tuple[int, ...], steps: int
) -> tuple[Tensor, Tensor]:
    free = torch.ones_like(u)
    free[:, list(fixed)] = 0
    length, (_, slope) = torch.full_like(losses, STEP)[:, None], _slope(loss, numbers, u)
    for _ in range(steps):
        candidate = (u + length * free * slope.sign()).clamp(0, MAX_U)
        new_losses, next_slope = _slope(loss, numbers, candidate)
        better = new_losses > losses
        losses, better = torch.where(better, new_losses, losses), better[:, None]
        u, slope = torch.where(better, candidate, u), torch.where(better, next_slope, slope)
        length = torch.where(better, length, length / 2)
    return u, losses


def _slope(loss: LossFn, numbers: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (R,) of views, and their derivatives (R,dims) by the coordinates; zero where there is none."""
    while True:
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            losses = loss(numbers, leaf)
        try:
            slope = torch.autograd.grad(losses.sum(), leaf, allow_unused=True)[0] if losses.requires_grad else None
        except Overflow:  # the scale is smaller now: try again
            continue
        return losses.detach().to(u), torch.zeros_like(u) if slope is None else slope.nan_to_num(0, 0, 0)

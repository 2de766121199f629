"""A small problem, and solvers and checks with the parts of an attack as keywords, which tests take from one
dictionary."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import PGD, Linf, Toward
from attacks.encoders import contract
from attacks.encoders.randomness import encoder_draws
from attacks.eot.bank import judged
from attacks.eot.problem import Options, problem_for
from attacks.eot.protocols import Objective
from attacks.evaluation import sanity
from attacks.evaluation.sanity.short_attack import short_attack
from attacks.solvers import solver, worst
from attacks.solvers import suite as suites
from attacks.solvers.search import bank_losses
from attacks.solvers.selection import selection
from transforms import Affine, Brightness, Compose

VIEWS = Compose([Affine(degrees=30, translate=0.1), Brightness(0.2)])


class Dot(Objective):
    """A loss that is linear in the features."""

    def __call__(self, features, anchor):
        return (features * anchor).flatten(1).sum(1)


class Untargeted(Objective):
    """Minus the cross-entropy; the anchor holds labels."""

    def __call__(self, features, anchor):
        return -F.cross_entropy(features, anchor, reduction="none")


def small_problem(count=3, dtype=torch.float64):
    """Pictures (count,3,12,14), their target features, and the other parts of an attack."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6)).to(dtype).eval()
    images = torch.rand(count, 3, 12, 14, dtype=dtype)
    net(images)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "optimiser": PGD(), "seed": 5}
    return images, torch.randn(count, 6, dtype=dtype), parts


def mark_checked(encoder):
    """An encoder whose calls a test counts or tells apart: the check of its contract makes none."""
    contract._honest[True].add(encoder)
    return encoder


@dataclass
class Losses:
    """The part of a problem that `EOT.estimate` needs: (image of each row of delta, delta, u) -> losses."""

    of: Callable[[Tensor, Tensor, Tensor], Tensor]
    count: int

    def __len__(self):
        return self.count

    def losses(self, transforms, delta, rows, u):
        return self.of(rows, delta, u)


def split(images, anchor, *, encoder, objective, perturbation, **options):
    """The problem and the options."""
    how = Options(**options)
    return problem_for(images, anchor, encoder, objective, perturbation, how), how


def estimate(eot, delta, scene, loss, u, *, count=None, **world):
    """`EOT.estimate` of `scene` (rows of delta, which image) and `loss` (views, which image)."""

    def of(rows, delta, u):
        views = eot.transforms(scene(delta, rows), u)
        return loss(views, rows.repeat_interleave(len(u) // len(rows)), **encoder_draws(eot.transforms, u))

    return replace(eot, **world).estimate(Losses(of, count or len(delta)), delta, u)


def watch(images, anchor, *, stop=None, restarts=1, state=None, select=None, **parts):
    return solver.run_steps(*split(images, anchor, **parts), stop=stop, restarts=restarts, state=state, select=select)


def look_risk(images, anchor, delta, full=False, **parts):
    """The risk (N,) of a delta from the views of a look, or from the `full` bank."""
    problem, options = split(images, anchor, **parts)
    select = selection(problem, options)
    views = select.bank if full else select.bank._replace(u=select.bank.u[: select.plan.screen])
    return select.risk.value(bank_losses(problem, delta, views, replace(options.eot, chunk=64), options.penalty)[0])


def suite(images, aim, attacks, *, state=None, **parts):
    problem, options = split(images, aim.anchor, **{"optimiser": PGD()} | parts | {"objective": aim.objective})
    return suites.suite(problem, options, attacks, state=state)


def examine(images, anchor, *, steps=20, **parts):
    options = {key: parts.pop(key) for key in ("views", "planned", "trace", "module") if key in parts}
    return sanity.examine(*split(images, anchor, steps=steps, **parts), **options)


def trial(images, anchor, parts, counts):
    return short_attack(*split(images, anchor, **{"steps": 20} | parts), counts)


def worst_views(images, anchor, *, encoder, objective, transforms, untouched=None, **rest):
    return worst.worst_views(judged(images, anchor, encoder, objective, untouched), transforms, **rest)


def uphill(images, anchor, *, encoder, objective, views, losses, untouched=None, **rest):
    return worst.uphill(judged(images, anchor, encoder, objective, untouched), views, losses, **rest)

"""Several attacks on the same pictures: of each picture, the one that is worst for the encoder counts.

Where one attack fails another may succeed: a loss is flat, a gradient masked, the way to one impostor barred.
What is left of an encoder after all of them is nearer to the truth than after the best one (Croce & Hein 2020). The
members are compared on one bank of views that none of them has drawn, in terms of what the attacker wants; what is
then judged on further views is one perturbation for each picture, so no maximum of noisy scores is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.protocols import Objective, Optimiser, Proposer, Setup
from attacks.objectives.aim import Aim, Known
from attacks.objectives.embedding import Toward
from attacks.objectives.retrieval import Retrieval, alike
from attacks.optimisers.apgd import APGD
from attacks.optimisers.square import Square
from attacks.runtime.values import stored
from attacks.solvers.loop import Step
from attacks.solvers.solver import Best, Standing, compare, watch


class Member(NamedTuple):
    """One attack of a suite."""

    name: str
    objective: Objective
    anchor: Tree
    optimiser: Optimiser | Proposer


def members(known: Known, nearest: int, aim: Aim, optimiser: Optimiser | Proposer) -> list[Member]:
    """The attacks: what the run itself would do (so that no suite is weaker than a single run), the same aim by APGD
    and without a gradient, and, where any other picture will do, below the best impostor and toward each of the
    `nearest` impostors. Raises ValueError if the gallery has too few."""
    name = type(optimiser).__name__.lower()
    # An optimiser of the run that is one of the usual two keeps its settings.
    by_name = {name: optimiser} | {"apgd": APGD(), "square": Square()} | {name: optimiser}
    own = [Member(each, aim.objective, aim.anchor, made) for each, made in by_name.items()]
    if known.goal is not None:
        return own
    cosines = F.normalize(known.own, dim=1) @ F.normalize(known.gallery, dim=1).T
    rows = known.truth.to(cosines.device)
    identity = torch.arange(len(known.gallery)) if known.identity is None else known.identity
    same = alike(identity, rows)
    cosines, most = cosines.masked_fill(same, -torch.inf), int((~same).sum(1).min())
    if not 0 <= nearest <= most:
        raise ValueError(
            f"`attack.nearest` must lie between 0 and {most}, the other pictures or classes of the gallery (with "
            f"identities, of others); got {nearest}"
        )
    targets = cosines.topk(nearest, dim=1).indices.T
    return [
        *own,
        Member("apgd_hinge", Retrieval(known.gallery, identity=known.identity), known.truth, APGD()),
        *(Member(f"apgd_nearest_{i}", Toward(), known.gallery[rows], APGD()) for i, rows in enumerate(targets, 1)),
    ]


@stored("suite_state")
class Stand(NamedTuple):
    """Where a suite stands after a step: the member, where that one's own run stands, the best of all that have
    ended, and the encoder passes of those before it."""

    member: int
    inner: Standing
    best: Best | None
    evals: int


def suite(
    images: Tensor, aim: Aim, attacks: Sequence[Member], *, stand: Stand | None = None, **setup: Unpack[Setup]
) -> Iterator[tuple[str, Step, Best | None]]:
    """The steps of every member, one after the other, each with its name and the best of all that have ended (None
    until the first has). The last item has the best of all; `Best.step` counts within its member, and `Best.loss` is
    that of `aim` on the common bank.

    Args:
        aim: in terms of which the members are compared.
        stand: the `position` of a step, to go on after it.
        setup: as for `watch`; objective and optimiser are those of the members.
    """
    first, inner, best, evals = (0, None, None, 0) if stand is None else stand
    for number, member in list(enumerate(attacks))[first:]:
        own = setup | {"objective": member.objective, "optimiser": member.optimiser}
        passed = 0 if inner is None else inner.step.evals
        for step, found in watch(images, member.anchor, standing=inner, **own):
            passed = step.evals
            if step.last:
                assert found is not None  # the last step is always compared
                best = compare(best, found, images, aim.anchor, setup | {"objective": aim.objective})
            at = Stand(number, step.position, best, evals)
            yield member.name, step._replace(evals=evals + step.evals, position=at), best
        evals, inner = evals + passed, None

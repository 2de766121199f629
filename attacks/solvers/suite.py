"""Several attacks on the same pictures: of each picture, the one that is worst for the encoder counts (Croce & Hein
2020). They are compared by the attacker's objective on one bank of views that none of them has drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from attacks.encoders.tree import Tree
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Objective, Optimiser, Proposer
from attacks.objectives.aim import Aim, Knowledge
from attacks.objectives.embedding import Toward
from attacks.objectives.retrieval import Retrieval, alike
from attacks.optimisers.apgd import APGD
from attacks.optimisers.square import Square
from attacks.runtime.values import stored
from attacks.solvers.loop import Step
from attacks.solvers.selection import Selection, selection
from attacks.solvers.solver import Best, SolveState, better_of, run_steps


class Member(NamedTuple):
    """One attack of a suite; one that `continues` begins with the best of those before it."""

    name: str
    objective: Objective
    anchor: Tree
    optimiser: Optimiser | Proposer
    continues: bool = False


def members(case: Knowledge, nearest: int, aim: Aim, optimiser: Optimiser | Proposer) -> list[Member]:
    """The attacks: that of the run itself (so that no suite is weaker than a single run), the same aim by APGD and
    without a gradient, and, without a target, below the best impostor and toward each of the `nearest` impostors.
    Raises ValueError if the gallery has too few."""
    name = type(optimiser).__name__.lower()
    # An optimiser of the run that is one of the usual two keeps its settings.
    by_name = {name: optimiser} | {"apgd": APGD(), "square": Square()} | {name: optimiser}
    arms = [Member(label, aim.objective, aim.anchor, algorithm) for label, algorithm in by_name.items()]
    if case.goal is not None:
        return arms
    cosines = F.normalize(case.embeddings, dim=1) @ F.normalize(case.gallery, dim=1).T
    rows = case.truth.to(cosines.device)
    identity = torch.arange(len(case.gallery)) if case.identity is None else case.identity
    matches = alike(identity, rows)
    cosines, limit = cosines.masked_fill(matches, -torch.inf), int((~matches).sum(1).min())
    if not 0 <= nearest <= limit:
        raise ValueError(
            f"`attack.nearest` must lie between 0 and {limit}, the other pictures or identities; got {nearest}"
        )
    targets = cosines.topk(nearest, dim=1).indices.T
    return [
        *arms,
        Member("apgd_hinge", Retrieval(case.gallery, identity=case.identity), case.truth, APGD()),
        *(Member(f"apgd_nearest_{i}", Toward(), case.gallery[rows], APGD()) for i, rows in enumerate(targets, 1)),
    ]


@stored("suite_state")
class SuiteState(NamedTuple):
    """All that the next step of a suite depends on: the member, the state of its run, the best of all that have
    ended, and the encoder passes of those before it."""

    member: int
    inner: SolveState
    best: Best | None
    evals: int


def suite(
    problem: Problem,
    options: Options,
    attacks: Sequence[Member],
    *,
    state: SuiteState | None = None,
    select: Selection | None = None,
    **runs: Any,
) -> Iterator[tuple[str, Step, Best | None]]:
    """The steps of every member, one after the other, each with its name and the best of all that have ended (None
    until the first has). The last item has the best of all; `Best.step` counts within its member, and `Best.loss` is
    that of the `problem` on the common bank.

    Args:
        problem: by its objective and anchor the members are compared.
        options: of the attacks; objective, anchor and optimiser of each run are its member's.
        state: that of a step, to resume after it.
        select: how the members are compared, on its whole bank; its `timer` is also entered for each one's looks.
        runs: `stop` and `restarts` of each (see `run_steps`).
    """
    common = select or selection(problem, replace(options, optimiser=attacks[0].optimiser))
    first, inner, best, evals = (0, None, None, 0) if state is None else state
    for number, member in list(enumerate(attacks))[first:]:
        first_delta = best.delta if member.continues and best is not None else problem.first
        member_problem = replace(problem, objective=member.objective, anchor=member.anchor, first=first_delta)
        run = replace(options, optimiser=member.optimiser)
        passes = 0 if inner is None else inner.step.evals
        of_member = replace(selection(member_problem, run), timer=common.timer)
        for step, latest in run_steps(member_problem, run, state=inner, select=of_member, **runs):
            passes = step.evals
            if step.last:
                assert latest is not None  # the last step is always compared
                best = better_of(best, latest, problem, run, common)
            at = SuiteState(number, step.state, best, evals)
            yield member.name, step._replace(evals=evals + step.evals, state=at), best
        evals, inner = evals + passes, None

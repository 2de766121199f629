"""How far an attack on some encoders transfers to another that it has never queried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.bank import Bank
from attacks.objectives.ensemble import Ensemble, Members
from attacks.solvers.solver import Best, solve


class Transfer(NamedTuple):
    """The mean loss over views of each encoder on each picture, (K,N): `attacked` through all encoders but this one,
    `clean` without an attack, both from the same views. Lower is better for the attacker."""

    attacked: Tensor
    clean: Tensor

    @property
    def table(self) -> Tensor:
        """By how much the loss of each encoder fell, over all pictures: (K,)."""
        return (self.clean - self.attacked).mean(1)


def leave_one_out(
    images: Tensor,
    anchor: tuple[Tree, ...],
    *,
    encoder: Ensemble,
    objective: Members,
    bank: Bank,
    chunk: int = 64,
    solve: Callable[..., Best] = solve,
    **setup: Any,
) -> Transfer:
    """Attack all members but one, score the 8-bit file on the one left out; so for every member (Liu et al. 2017).

    Args:
        images: (N,3,H,W) in [0,1].
        anchor: for each member what its objective compares with.
        encoder: at least two members.
        objective: theirs.
        bank: the views to score on, which the attack has not seen.
        chunk: most views held in memory at once while scoring.
        solve: runs the attack; called as `attacks.solvers.solver.solve` is.
        setup: the other arguments of `solve`; `perturbation` must be among them.
    """
    if not isinstance(objective, Members):
        raise ValueError(f"`objective` must be Members, one objective for each encoder; got {objective}")
    members, wishes = list(encoder.members), objective.each(anchor)
    if len(members) < 2:
        raise ValueError(f"`encoder` must have two members or more, so that one can be left out; got {len(members)}")
    if len(members) != len(anchor):
        raise ValueError(f"`anchor` must have a part for each of {len(members)} members; got {len(anchor)}")
    bank = bank._replace(u=bank.u.to(images))
    attacked: list[Tensor] = []
    clean: list[Tensor] = []
    for left, member in enumerate(members):
        rest = [i for i in range(len(members)) if i != left]
        best = solve(
            images,
            tuple(anchor[i] for i in rest),
            encoder=Ensemble([members[i] for i in rest]),
            objective=replace(objective, objective=tuple(wishes[i] for i in rest)),
            **setup,
        )
        perturbation = setup["perturbation"]
        file = perturbation.written(images, perturbation.quantise(best.delta, images))
        for rows, pictures in ((attacked, file), (clean, images)):
            rows.append(bank.losses(pictures, anchor[left], member, wishes[left], chunk).mean(1))
    return Transfer(torch.stack(attacked), torch.stack(clean))

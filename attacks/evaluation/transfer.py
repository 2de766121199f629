"""Transfer of an attack from some encoders to another that it has not queried."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.bank import Bank
from attacks.objectives.composite import Ensemble, Members
from attacks.solvers.solver import Best, solve


class Transfer(NamedTuple):
    """The mean loss over views of each encoder on each picture, (K,N): `attacked` through all other encoders, and
    `clean`, from the same views. Lower is better for the attacker."""

    attacked: Tensor
    clean: Tensor

    @property
    def table(self) -> Tensor:
        """The mean decrease of the loss of each encoder: (K,)."""
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
    """Attack all members but one and score the 8-bit files on that one, for each member in turn (Liu et al. 2017).

    Args:
        images: (N,3,H,W) in [0,1].
        anchor: of each member; there are two or more.
        bank: held-out views for the scores, at most `chunk` in memory at once.
        solve: runs the attack, with the arguments of `attacks.solvers.solver.solve`; `setup` are the other ones.

    Examples:
        >>> import torch
        >>> from attacks import EOT, Ensemble, Linf, PGD, Toward, bank
        >>> from attacks.evaluation import leave_one_out
        >>> from attacks.objectives import Members
        >>> from transforms import Compose
        >>> pooled = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.Flatten()).eval()
        >>> encoder = Ensemble([torch.nn.Flatten().eval(), pooled])
        >>> parts = {"objective": Members(Toward("l2")), "perturbation": Linf(), "optimiser": PGD(), "eot": EOT()}
        >>> parts |= {"encoder": encoder, "bank": bank(Compose(), 1, seed=0, purpose="evaluate")}
        >>> grey, black = (torch.full((1, 3, 8, 8), value) for value in (0.5, 0.0))
        >>> table = leave_one_out(grey, encoder(black), **parts, steps=2).table
        >>> table.shape, bool((table > 0).all())  # both attacks transfer
        (torch.Size([2]), True)
    """
    if not isinstance(objective, Members):
        raise ValueError(f"`objective` must be Members, one objective for each encoder; got {objective}")
    members, wishes = list(encoder.members), objective.member_objectives(anchor)
    if len(members) < 2:
        raise ValueError(f"`encoder` must have two members or more, so that one can be left out; got {len(members)}")
    if len(members) != len(anchor):
        raise ValueError(f"`anchor` must have a part for each of {len(members)} members; got {len(anchor)}")
    bank, perturbation = bank._replace(u=bank.u.to(images)), setup["perturbation"]
    losses = []
    for left, member in enumerate(members):
        rest = [i for i in range(len(members)) if i != left]
        best = solve(
            images,
            tuple(anchor[i] for i in rest),
            encoder=Ensemble([members[i] for i in rest]),
            objective=replace(objective, objective=tuple(wishes[i] for i in rest)),
            **setup,
        )
        file = perturbation.written(images, perturbation.quantise(best.delta, images))
        pair = [bank.losses(picture, anchor[left], member, wishes[left], chunk).mean(1) for picture in (file, images)]
        losses.append(torch.stack(pair))
    return Transfer(*torch.stack(losses, 1))

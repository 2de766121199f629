"""Several encoders attacked at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from attacks.encoders.randomness import EncoderDraws, dealt, joined, randomness_of
from attacks.encoders.tree import Encoder, Tree, leaves
from attacks.eot.protocols import Objective
from attacks.objectives.embedding import unpaired

#: What is averaged over the members.
Combine = Literal["losses", "gradients"]


class Ensemble(nn.Module):
    """Several encoders as one: (N,3,H,W) in [0,1] -> a tuple with the features of each.

    All see the same views in full resolution; each one's preprocessing is its own and in the graph. A view costs a
    pass of every member.

    Args:
        encoders: modules in evaluation mode.
    """

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("`encoders` must hold at least one encoder")
        for i, encoder in enumerate(encoders):
            if encoder.training:
                raise ValueError(f"`encoders[{i}]` is in training mode, so its answers change; call .eval()")
        self.members = nn.ModuleList(encoders)
        self.training = False
        self.members.training = False

    @property
    def randomness(self) -> EncoderDraws | None:
        """What its members draw, one after the other."""
        return joined(map(randomness_of, self.members))

    def forward(self, images: Tensor, only: int | None = None, draws: Tensor | None = None) -> Tree:
        """Images -> a tuple of features, or those of member `only`. `draws` are those of all members."""
        own = dealt(draws, [*map(randomness_of, self.members)], len(images))
        if only is not None:
            return self.members[only](images, **own[only])
        # Autocast may begin inside a member (attacks.encoders.engine.precision), but not before the next one's
        # preprocessing.
        kind, before = images.device.type, torch.is_autocast_enabled(images.device.type)
        found = []
        for i, member in enumerate(self.members):
            torch.set_autocast_enabled(kind, before)
            features = member(images, **own[i])
            # In a sum with the others its missing gradient would not show.
            if images.requires_grad and not any(leaf.requires_grad for leaf in leaves(features)):
                raise ValueError(f"encoder {i} of the ensemble cuts the graph (uint8, .numpy(), no_grad)")
            found.append(features)
        return tuple(found)


@dataclass(frozen=True)
class Members(Objective):
    """What is wanted of the members of an `Ensemble`: the mean of their losses. Features and anchor are tuples with a
    part for each.

    Args:
        objective: of each member; or a tuple of objectives, one for each (where a gallery belongs to an encoder).
        combine: "losses" follows the gradient of that mean (Dong et al. 2018, their ensemble in loss), where a member
            with steep gradients has most of the say; "gradients" gives each member's mean gradient the same L1 norm
            first, see `combined`. What is reported and compared is the mean loss in either case.
    """

    objective: Objective | tuple[Objective, ...]
    combine: Combine = "losses"

    def __post_init__(self) -> None:
        if self.combine not in get_args(Combine):
            raise ValueError(f"`combine` must be one of {', '.join(get_args(Combine))}; got {self.combine!r}")
        if self.objective == ():
            raise ValueError("`objective` must be one objective, or one for each member; got none")
        for objective in self.objective if isinstance(self.objective, tuple) else (self.objective,):
            unpaired(objective, "objective")

    @property
    def stationary_at_anchor(self) -> bool:
        """Where every member's objective is."""
        several = self.objective if isinstance(self.objective, tuple) else (self.objective,)
        return all(objective.stationary_at_anchor for objective in several)

    def __call__(self, features: tuple[Tree, ...], anchor: tuple[Tree, ...]) -> Tensor:
        """One tree of features and one of anchors for each member -> (N,)."""
        pairs = zip(self.each(features, anchor), features, anchor, strict=True)
        return torch.stack([objective(one, beside) for objective, one, beside in pairs]).mean(0)

    def each(self, *trees: tuple[Tree, ...]) -> tuple[Objective, ...]:
        """The objective of each member. Raises ValueError unless the trees are tuples with a part for each."""
        wish = self.objective
        count = len(wish) if isinstance(wish, tuple) else len(trees[0])
        for tree in trees:
            if not isinstance(tree, tuple) or len(tree) != count:
                found = len(tree) if isinstance(tree, tuple) else f"a {type(tree).__name__}"
                raise ValueError(
                    f"features and anchor of Members must be tuples with a part for each of {count}; got {found}"
                )
        return wish if isinstance(wish, tuple) else (wish,) * count

    def members(self, encoder: Encoder, anchor: tuple[Tree, ...]) -> list[tuple[Encoder, Objective, Tree]]:
        """For "gradients", the encoder, objective and anchor of each member; none for "losses". The encoder must take
        `only`, as an `Ensemble` does."""
        if self.combine == "losses":
            return []
        several = zip(self.each(anchor), anchor, strict=True)
        return [(partial(encoder, only=i), objective, beside) for i, (objective, beside) in enumerate(several)]

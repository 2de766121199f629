"""What an attack solves, and how it is run: two values that every solver takes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.encoders.engine.own import in_own_precision
from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Encoder, Tree, take
from attacks.eot.adaptive import Adaptive
from attacks.eot.estimator import EOT, check_count
from attacks.eot.protocols import Adversarial, Constraint, Objective, Optimiser, Penalty, Perturbation, Proposer
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Scene, scene_of
from transforms.devices import HOST, uploaded

STEPS = 100


@dataclass(frozen=True, eq=False)
class Problem:
    """What the attacker minimises: the objective of an encoder's features, over what a perturbation may change.

    Args:
        images: (N,C,H,W) in [0,1], untouched.
        anchor: what the objective compares with, a row for each image: embeddings (N,D), labels (N,), or a tree.
        encoder: images to features, in evaluation mode.
        objective: features and anchor to losses.
        perturbation: the set of allowed changes.
        first: the delta that a run begins with; None: that of its seed.
    """

    images: Tensor
    anchor: Tree
    encoder: Encoder
    objective: Objective
    perturbation: Perturbation
    first: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder", in_own_precision(self.encoder))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shared(self) -> bool:
        """Whether one delta (1,...) serves all images."""
        return self.perturbation.shared

    @property
    def constraint(self) -> Constraint:
        """Where an optimiser may move."""
        return Constraint(self.perturbation, self.images)

    def take(self, rows: Tensor) -> "Problem":
        """The problem of some of the images."""
        if len(rows) == len(self):  # rows are always in order
            return self
        part = self.perturbation.take(rows)
        first = self.first if self.first is None or self.shared else self.first[rows]
        return replace(self, images=self.images[rows], anchor=take(self.anchor, rows), perturbation=part, first=first)

    def scene(self, delta: Tensor, which: Tensor) -> Scene:
        """The attacked images `which` (B,), their numbers on the host, with a delta of each (B,...), or one (1,...)
        that all share."""
        if which.device == HOST and torch.equal(which, torch.arange(len(self))):  # saves a copy
            return self.perturbation.scene(self.images, delta)
        return self.perturbation.take(which).scene(self.images[uploaded(which, self.images.device)], delta)

    def losses(self, transforms: Compose, delta: Tensor, which: Tensor, u: Tensor) -> Tensor:
        """The losses (B*V,) of the attacked images `which` (B,), with a delta of each (B,...), or one (1,...) that
        all share, each seen from V of the views `u` (B*V,dims) in turn. A paired objective sees the untouched images
        from the same views; their features have a gradient only where `u` asks for one."""
        draws = drawn(transforms, u)
        views = transforms(self.scene(delta, which), u)
        if self.objective.paired:
            with torch.set_grad_enabled(torch.is_grad_enabled() and u.requires_grad):
                untouched = scene_of(self.images[uploaded(which, self.images.device)])
                anchor = self.encoder(transforms(untouched, u), **draws)
        else:
            anchor = take(self.anchor, which.repeat_interleave(len(u) // len(which)))
        losses = self.objective(self.encoder(views, **draws), anchor)
        if losses.shape != (len(u),):
            name = type(self.objective).__name__
            raise ValueError(f"objective {name} must return one loss a view, ({len(u)},); got {tuple(losses.shape)}")
        return losses

    def members(self) -> "Iterator[Problem]":
        """The problems whose gradients the objective wants combined; none for most objectives."""
        for encoder, objective, anchor in self.objective.members(self.encoder, self.anchor):
            yield replace(self, encoder=encoder, objective=objective, anchor=anchor)


@dataclass(frozen=True, eq=False)
class Options:
    """How a problem is solved.

    Args:
        optimiser: moves the perturbation; a `Proposer` needs no gradient.
        eot: the estimator of the expected loss.
        steps: gradient steps, at most; each costs `eot.views` encoder passes for each image, or a multiple.
        seed: of the start and of the views. The same seed gives the same bits on the same machine.
        budget: the most encoder passes for each image, one number or (N,); None for no limit.
        adaptive: chooses how many times `eot.views` views a step has; needs a budget, and one number for images that
            share a perturbation.
        world: the processes that share the work; every one of them yields the same steps.
        penalty: a price on the look of the perturbation, added to the risk.
        adversary: chooses the views of each step to the attacker's harm; not with `adaptive`.
    """

    optimiser: Optimiser | Proposer
    eot: EOT
    steps: int = STEPS
    seed: int = 0
    budget: int | Tensor | None = None
    adaptive: Adaptive | None = None
    world: World = ALONE
    penalty: Penalty | None = None
    adversary: Adversarial | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, "steps")

"""The parts of an experiment."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.data.gallery import Gallery, Pictures
from attacks.eot import risk
from attacks.eot.adaptive import Adaptive
from attacks.eot.protocols import Optimiser, Penalty, Perturbation, Proposer
from attacks.evaluation.classes import Classes
from attacks.resizers.pipeline import Pipeline
from transforms import Compose
from transforms.draws import Draws


@dataclass(frozen=True)
class Views:
    """How an attack spends its gradients: `each` step has so many views of every picture, or, where `adaptive`
    chooses their number, blocks of so many; and there are at most so many `steps`."""

    each: int
    steps: int
    adaptive: Adaptive | None = None

    @property
    def gradients(self) -> int:
        """Of each picture."""
        return self.each * self.steps

    @property
    def several(self) -> bool:
        """Whether a step may have more than one."""
        return self.each > 1 or (self.adaptive is not None and self.gradients >= 2 * self.adaptive.steps)


@dataclass(frozen=True)
class Parts:
    """Everything an experiment is made of. `queries` are attacked, `gallery` is what a view can be taken for, and
    `truth` (N,) is each query's row there; `goal` (N,) is the row that the attacker wants, or None (any other)."""

    encoder: nn.Module
    perturbation: Perturbation
    optimiser: Optimiser | Proposer
    penalty: Penalty | None
    transforms: Compose
    draws: Draws
    risk: risk.Risk
    views: Views
    queries: Pictures
    gallery: Gallery | Classes
    truth: Tensor
    goal: Tensor | None
    device: torch.device
    pipeline: Pipeline | None = None  # also where it is a function that this process was not given

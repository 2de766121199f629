"""Where an optimiser moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Ground(NamedTuple):
    """Where an optimiser moves: the set of a perturbation, round some pictures.

    `descend(grad, length, delta)` is the move of that length (a number, or one for each delta) that lowers the loss
    the most, to first order; `go(delta, move)` is the point of the set that the move leads to.
    """

    descend: Callable[[Tensor, float | Tensor, Tensor], Tensor]
    go: Callable[[Tensor, Tensor], Tensor]

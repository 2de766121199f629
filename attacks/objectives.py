"""What the attacker wants of an embedding. Losses have shape (N,) and lower is better for the attacker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Away:
    """Cosine similarity to the anchor: the view should stop looking like its own picture.

    At delta = 0 and the identity view its gradient is exactly zero (the cosine is at its maximum), so an attack with
    it must start at random.
    """

    stationary_at_anchor: ClassVar[bool] = True

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D), (N,D) -> (N,) in [-1,1]."""
        return F.cosine_similarity(features, anchor, dim=1)


@dataclass(frozen=True)
class Toward:
    """Minus the cosine similarity to the anchor, here the embedding of a picture to be mistaken for."""

    stationary_at_anchor: ClassVar[bool] = False

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,D), (N,D) -> (N,) in [-1,1]."""
        return -F.cosine_similarity(features, anchor, dim=1)

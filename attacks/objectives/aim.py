"""An objective with its anchor, and the data that both are made from."""

from collections.abc import Set
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.protocols import Objective


class Aim(NamedTuple):
    """An objective, and what it compares each picture with."""

    objective: Objective
    anchor: Tree


class Knowledge(NamedTuple):
    """The attacked pictures `images` (N,C,H,W) and their `embeddings` (N,D); the `gallery`'s embeddings (G,D), the
    row of each picture in it (N,), and that of its target (N,) or None. `identity` (G,) is equal for gallery pictures
    of the same identity; None if every picture is its own. `texts`: the gallery is classes given as text."""

    images: Tensor
    embeddings: Tensor
    gallery: Tensor
    truth: Tensor
    goal: Tensor | None
    identity: Tensor | None = None
    texts: bool = False

    def drop(self, rows: Set[int]) -> "Knowledge":
        """The same without some rows of the gallery, none of them a picture's own; a target stays."""
        if not rows:
            return self
        rows = rows if self.goal is None else rows - {*self.goal.tolist()}
        keep = torch.tensor([row not in rows for row in range(len(self.gallery))], device=self.gallery.device)
        number = (keep.cumsum(0) - 1).to(self.truth.device)  # of each row, after that
        return self._replace(
            gallery=self.gallery[keep],
            truth=number[self.truth],
            goal=None if self.goal is None else number[self.goal],
            identity=None if self.identity is None else self.identity[keep.to(self.identity.device)],
        )

"""What an attack is aimed at."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.protocols import Objective


class Aim(NamedTuple):
    """An objective, and what it compares each picture with."""

    objective: Objective
    anchor: Tree


class Known(NamedTuple):
    """What is known of the attacked pictures: the pictures `images` (N,C,H,W), their embeddings `own` (N,D), the
    gallery's (G,D), each one's row in it (N,), and the row that the attacker wants (N,), or None; `identity` (G,) is
    equal for gallery pictures that show the same, None where no two do."""

    images: Tensor
    own: Tensor
    gallery: Tensor
    truth: Tensor
    goal: Tensor | None
    identity: Tensor | None = None

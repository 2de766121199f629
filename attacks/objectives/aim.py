"""An objective with its anchor, and the data that both are made from."""

from typing import NamedTuple

from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.eot.protocols import Objective


class Aim(NamedTuple):
    """An objective, and what it compares each picture with."""

    objective: Objective
    anchor: Tree


class Known(NamedTuple):
    """The attacked pictures `images` (N,C,H,W) and their embeddings `own` (N,D); the `gallery`'s embeddings (G,D),
    the row of each picture in it (N,), and the row of its target (N,) or None. `identity` (G,) is equal for gallery
    pictures of the same identity; None if every picture is its own."""

    images: Tensor
    own: Tensor
    gallery: Tensor
    truth: Tensor
    goal: Tensor | None
    identity: Tensor | None = None

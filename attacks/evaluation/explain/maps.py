"""The maps and curves of the pictures of one arm."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from attacks.evaluation.explain.deletion import area
from attacks.runtime.stored import stored

#: The orders of deletion: by Grad-CAM, by the input gradient, and by chance.
CAM, GRADIENT, RANDOM = "gradcam", "gradient", "random"


@stored("explanation.maps")
class Maps(NamedTuple):
    """Of N pictures in one state: the pictures (N,3,H,W) and their `likeness` (N,) to the anchor, the input-gradient
    map and the Grad-CAM (N,H,W), None where there is none, and by order the deletion and insertion curves
    (N,2,S)."""

    pictures: Tensor
    likeness: Tensor
    gradient: Tensor | None
    cam: Tensor | None
    curves: dict[str, Tensor]

    def areas(self, order: str) -> Tensor:
        """(N,2): the areas under the deletion and the insertion curves."""
        return area(self.curves[order])

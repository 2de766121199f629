"""Stages that depend on the shape of the frame, not only on its shorter side."""

import copy
from typing import Self


class InFrame:
    """A stage in a frame that reaches `extent` (right, down) from its centre, in the stage frame's unit; without a
    call of `framed`, the frame is square."""

    extent: tuple[float, float] = (1.0, 1.0)

    def framed(self, size: tuple[int, int]) -> Self:
        """The same stage for a frame of `size` (height, width)."""
        stage = copy.copy(self)
        object.__setattr__(stage, "extent", (size[1] / min(size), size[0] / min(size)))
        return stage

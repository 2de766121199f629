"""Photometric stages: values change, places do not. Each clamps to [0,1], as a sensor does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from transforms.ranges import Range, pair, spread, symmetric


@dataclass(frozen=True)
class Brightness:
    """Add a constant to every value, then clamp. `amount`: a number x means (-x, x)."""

    amount: float | Range = (0.0, 0.0)

    dims: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("added (of full scale)",)

    def __post_init__(self) -> None:
        self._bounds()

    def values(self, u: Tensor) -> Tensor:
        return spread(u, self._bounds())

    def _bounds(self) -> Range:
        return pair(symmetric(self.amount, "amount"), "amount", low=-1, high=1)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return (images + self.values(u)[:, :, None, None].to(images.dtype)).clamp(0, 1)


@dataclass(frozen=True)
class Contrast:
    """Stretch values about mid-grey by a factor, then clamp.

    About 0.5 and not the picture's mean (torchvision's choice), so that the map does not depend on the content.
    """

    factor: Range = (1.0, 1.0)

    dims: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("factor (x)",)

    def __post_init__(self) -> None:
        pair(self.factor, "factor", low=0)

    def values(self, u: Tensor) -> Tensor:
        return spread(u, pair(self.factor, "factor", low=0))

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return (0.5 + (images - 0.5) * self.values(u)[:, :, None, None].to(images.dtype)).clamp(0, 1)

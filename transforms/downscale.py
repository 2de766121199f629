"""The stage that shrinks: distance, thumbnails, a service's upload limit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transforms.resize import NAMES, resize, target_size, weights


@dataclass(frozen=True)
class Downscale:
    """Resize the shorter side to `size` with a named library's kernel, and clamp to [0,1].

    Args:
        size: the shorter side in pixels (it may also enlarge); or (low, high): each view is reduced to a side drawn
            from low..high and brought back to `high` by the same kernel, as a service does that keeps thumbnails and
            a viewer that enlarges them. So the views still stack, and distance is part of the expectation.
        kernel: see `transforms.resize`.
    """

    size: int | tuple[int, int]
    kernel: str = "pil_bicubic"

    def __post_init__(self) -> None:
        if self.kernel not in NAMES:
            raise ValueError(f"`kernel` must be one of {', '.join(NAMES)}; got {self.kernel!r}")
        bounds = (self.size,) if isinstance(self.size, int) else tuple(self.size)
        whole = all(isinstance(side, int) and side >= 1 for side in bounds)
        if not whole or len(bounds) > 2 or bounds[0] > bounds[-1]:
            raise ValueError(f"`size` must be a whole number of pixels or (low, high); got {self.size!r}")
        object.__setattr__(self, "size", bounds[0] if len(set(bounds)) == 1 else bounds)

    @property
    def dims(self) -> int:
        return 0 if isinstance(self.size, int) else 1

    @property
    def names(self) -> tuple[str, ...]:
        return ("shorter side (px)",)[: self.dims]

    def values(self, u: Tensor) -> Tensor:
        if isinstance(self.size, int):
            return u
        low, high = self.size
        return (low + torch.floor(u * (high - low + 1))).clamp(max=high)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if isinstance(self.size, int):
            return resize(images, self.size, self.kernel).clamp(0, 1)
        size = (images.shape[2], images.shape[3])
        final = target_size(size, self.size[1])
        small = [target_size(size, int(side)) for side in self.values(u)[:, 0].tolist()]
        rows = self._down_and_up(size[0], [s[0] for s in small], final[0], images)
        columns = self._down_and_up(size[1], [s[1] for s in small], final[1], images)
        return (rows[:, None] @ images @ columns[:, None].mT).clamp(0, 1)

    def _down_and_up(self, length: int, smalls: list[int], final: int, like: Tensor) -> Tensor:
        """(N, final, length): each row's reduction and enlargement as one matrix."""
        both = {
            small: weights(small, final, self.kernel, like) @ weights(length, small, self.kernel, like)
            for small in set(smalls)
        }
        return torch.stack([both[small] for small in smalls])

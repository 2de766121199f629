"""The stage that shrinks: distance, thumbnails, a service's upload limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from transforms.resize import NAMES, axes, resize, target_size


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
        bounds = self.size if isinstance(self.size, tuple) else (self.size,)
        whole = all(type(side) is int and side >= 1 for side in bounds)
        if not whole or len(bounds) not in (1, 2) or bounds[0] > bounds[-1]:
            raise ValueError(f"`size` must be a whole number of pixels or (low, high); got {self.size!r}")
        object.__setattr__(self, "size", bounds[0] if len(set(bounds)) == 1 else bounds)

    @property
    def dims(self) -> int:
        return 0 if isinstance(self.size, int) else 1

    @property
    def names(self) -> tuple[str, ...]:
        return ("shorter side (px)",)[: self.dims]

    @property
    def discrete(self) -> tuple[int, ...]:
        return tuple(range(self.dims))  # whole pixels

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
        smalls = [int(side) for side in self.values(u)[:, 0].tolist()]
        like = (images.dtype, images.device)
        both = {side: _down_and_up(size, target_size(size, side), final, self.kernel, *like) for side in set(smalls)}
        rows, columns = (torch.stack(matrices) for matrices in zip(*(both[side] for side in smalls), strict=True))
        return (rows[:, None] @ images @ columns[:, None].mT).clamp(0, 1)


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def _down_and_up(
    size: tuple[int, int],
    small: tuple[int, int],
    final: tuple[int, int],
    kernel: str,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The reduction and the enlargement as one matrix per axis."""
    like = torch.empty(0, dtype=dtype, device=device)
    down, up = axes(size, small, kernel, like), axes(small, final, kernel, like)
    return up[0] @ down[0], up[1] @ down[1]

"""What an encoder does to a picture before its first layer, inside the graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transforms import resize
from transforms.surrogate import saturate


@dataclass(frozen=True)
class Preprocess:
    """Squash to `size` x `size` with a named library's kernel, clamp to [0,1], then (x - mean) / std per channel.

    The clamp is part of the library's behaviour: its 8-bit image cannot hold the overshoot of a bicubic kernel, and
    an attack must not live on values that no file can hold.
    """

    size: int
    kernel: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, images: Tensor) -> Tensor:
        """(N,3,H,W) in [0,1] -> (N,3,size,size), normalised. Raises ValueError unless there are three channels."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"an encoder takes images (N,3,H,W) in [0,1]; got shape {tuple(images.shape)}")
        if images.shape[2:] != (self.size, self.size):
            images = saturate(resize(images, (self.size, self.size), self.kernel))
        mean, std = (torch.tensor(v, dtype=images.dtype, device=images.device) for v in (self.mean, self.std))
        return (images - mean[:, None, None]) / std[:, None, None]

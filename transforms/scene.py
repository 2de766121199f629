"""What a view is taken of: a stack of layers, each with its own resolution and place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """One picture in a scene: `pixels` (N,C,h,w); `alpha` (N,1,h,w) in [0,1] or None for opaque;
    `pull` (N,3,3) or (1,3,3), stage frame of the scene -> stage frame of the layer."""

    pixels: Tensor
    alpha: Tensor | None
    pull: Tensor


class Scene(NamedTuple):
    """Layers, bottom first, seen in a frame of `size` (height, width). The bottom one is opaque (its alpha is None).
    Plain images are a scene of one layer."""

    layers: tuple[Layer, ...]
    size: tuple[int, int]


def scene_of(images: Tensor) -> Scene:
    """A scene of one opaque layer."""
    eye = torch.eye(3, dtype=images.dtype, device=images.device)[None]
    return Scene((Layer(images, None, eye),), size_of(images))


def checked(images: Tensor) -> Tensor:
    """`images`, or ValueError unless they are floating (N,C,H,W)."""
    if images.dim() != 4 or not images.is_floating_point():
        raise ValueError(
            f"`images` must be floating (N,C,H,W) in [0,1]; got {images.dtype} of shape {tuple(images.shape)} "
            "(use .permute(0, 3, 1, 2) / 255 for 8-bit channels-last)"
        )
    return images


def size_of(images: Tensor) -> tuple[int, int]:
    """(height, width)."""
    return images.shape[2], images.shape[3]

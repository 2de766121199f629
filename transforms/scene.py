"""A scene: a stack of layers, each with its own resolution and place."""

from typing import NamedTuple

import torch
from torch import Tensor

from transforms.sampling.fusion import Move
from transforms.sampling.outline import Outline


class Layer(NamedTuple):
    """One picture in a scene: `pixels` (N,C,h,w); `alpha` (N,1,h,w) in [0,1] or None for opaque;
    `pull` (N,3,3), stage frame of the scene -> stage frame of the layer, on the host. Each may have one row for all.

    `bends` are geometric stages in the layer's own frame, with their coordinates, in order: the sheet was bent, and
    then put into the scene."""

    pixels: Tensor
    alpha: Tensor | None
    pull: Tensor
    bends: tuple[Move, ...] = ()
    outline: Outline | None = None


class Scene(NamedTuple):
    """Layers, bottom first, seen in a frame of `size` (height, width). The bottom one is opaque (its alpha is None).
    Plain images are a scene of one layer."""

    layers: tuple[Layer, ...]
    size: tuple[int, int]


#: Plain pictures (N,C,H,W), or pictures with layers above them.
Shown = Tensor | Scene


def scene_of(images: Shown) -> Scene:
    """Pictures (N,C,H,W) as a scene of one opaque layer; a scene as it is."""
    if isinstance(images, Scene):
        return images
    eye = torch.eye(3, dtype=images.dtype)[None]
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


def rows_of(scene: Scene) -> int:
    """How many pictures a scene holds, those of its bottom layer. Raises ValueError where the others do not fit."""
    base = scene.layers[0]
    rows = len(checked(base.pixels))
    if base.alpha is not None:
        raise ValueError("the bottom layer of a scene must be opaque: give it alpha None")
    if not rows:
        raise ValueError("`images` must hold at least one image; got none")
    for layer in scene.layers:
        pixels = layer.pixels if layer is base else checked(layer.pixels)
        counts = len(pixels), len(layer.pull), 1 if layer.alpha is None else len(layer.alpha)
        if not set(counts) <= {1, rows}:
            raise ValueError(
                f"a layer must hold one row, or one for each of the {rows} pictures of the bottom layer; got "
                f"{counts[0]} of pixels, {counts[1]} of pull and {counts[2]} of alpha"
            )
    return rows


def taken(shown: Shown, rows: Tensor | int) -> Scene:
    """The scene of some pictures (or one), with the layers above them."""
    scene = scene_of(shown)
    if isinstance(rows, int):
        rows = torch.tensor([rows], device=base_of(scene).device)

    def some(each: Tensor) -> Tensor:
        return each if len(each) == 1 else each[rows]

    def layer(each: Layer) -> Layer:
        alpha = None if each.alpha is None else some(each.alpha)
        return Layer(
            some(each.pixels),
            alpha,
            some(each.pull),
            tuple((stage, some(u)) for stage, u in each.bends),
            each.outline,
        )

    base, *rest = scene.layers
    pixels = base.pixels if len(base.pixels) == len(rows) == 1 else base.pixels[rows]
    base = Layer(pixels, None, some(base.pull), base.bends)
    return Scene((base, *map(layer, rest)), scene.size)


def base_of(shown: Shown) -> Tensor:
    """The pictures themselves (N,C,H,W), without the layers above them."""
    return shown.layers[0].pixels if isinstance(shown, Scene) else shown


def premultiplied(layer: Layer) -> Tensor:
    """Colour times coverage, and coverage: (N,C+1,h,w)."""
    if layer.alpha is None:
        return torch.cat([layer.pixels, torch.ones_like(layer.pixels[:, :1])], dim=1)
    rows = max(len(layer.pixels), len(layer.alpha))
    alpha = layer.alpha.expand(rows, -1, -1, -1)
    return torch.cat([layer.pixels * alpha, alpha], dim=1)

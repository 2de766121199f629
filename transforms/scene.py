"""A scene: a stack of layers, each with its own resolution and place."""

from typing import NamedTuple

import torch
from torch import Tensor

from transforms.devices import picked
from transforms.doors import formed
from transforms.sampling.fusion import Move
from transforms.sampling.outline import Outline


class Layer(NamedTuple):
    """One picture in a scene: `pixels` (N,C,h,w); `alpha` (N,1,h,w) in [0,1] or None for opaque;
    `pull` (N,3,3), stage frame of the scene -> stage frame of the layer, on the host. Each may have one row for all.

    `bends` are geometric stages in the layer's own frame, with their coordinates, in order: the sheet was bent, and
    then put into the scene. `outline` is the known edge of its opaque part, so that edge pixels are covered by exact
    shares of their area (see `transforms.sampling.outline`); None: the coverage is as `alpha` is read.

    Examples:
        >>> from transforms import Compose
        >>> from transforms.scene import Layer, Scene, scene_of
        >>> base, glass = scene_of(torch.zeros(1, 1, 2, 2)), torch.full((1, 1, 2, 2), 0.25)
        >>> layers = (*base.layers, Layer(torch.ones(1, 1, 2, 2), alpha=glass, pull=torch.eye(3)[None]))
        >>> Compose()(Scene(layers, base.size), torch.zeros(1, 0)).round(decimals=4).tolist()
        [[[[0.25, 0.25], [0.25, 0.25]]]]
    """

    pixels: Tensor
    alpha: Tensor | None
    pull: Tensor
    bends: tuple[Move, ...] = ()
    outline: Outline | None = None


class Scene(NamedTuple):
    """Layers, bottom first, seen in a frame of `size` (height, width). The bottom one is opaque (its alpha is None).
    Plain images are a scene of one layer.

    Examples:
        >>> from transforms import Compose
        >>> from transforms.scene import Layer, Scene
        >>> black, white = (Layer(torch.full((1, 1, 4, 4), value), None, torch.eye(3)[None]) for value in (0.0, 1.0))
        >>> Compose()(Scene((black, white), size=(4, 4)), torch.zeros(1, 0)).mean().item()  # the last one is on top
        1.0
    """

    layers: tuple[Layer, ...]
    size: tuple[int, int]


Shown = Tensor | Scene
"""Plain pictures (N,C,H,W), or pictures with layers above them."""


def scene_of(images: Shown) -> Scene:
    """Pictures (N,C,H,W) as a scene of one opaque layer; a scene as it is."""
    if isinstance(images, Scene):
        return images
    eye = torch.eye(3, dtype=images.dtype)[None]
    return Scene((Layer(images, None, eye),), size_of(images))


def size_of(images: Tensor) -> tuple[int, int]:
    """(height, width)."""
    return images.shape[2], images.shape[3]


def count_pictures(scene: Scene) -> int:
    """How many pictures a scene holds, those of its bottom layer. Raises ValueError where the others do not fit."""
    base = scene.layers[0]
    for layer in scene.layers:
        formed(layer.pixels)
    rows = len(base.pixels)
    if base.alpha is not None:
        raise ValueError("the bottom layer of a scene must be opaque: give it alpha None")
    if not rows:
        raise ValueError("`images` must hold at least one image; got none")
    for layer in scene.layers:
        counts = len(layer.pixels), len(layer.pull), 1 if layer.alpha is None else len(layer.alpha)
        if not set(counts) <= {1, rows}:
            raise ValueError(
                f"a layer must hold one row, or one for each of the {rows} pictures of the bottom layer; got "
                f"{counts[0]} of pixels, {counts[1]} of pull and {counts[2]} of alpha"
            )
    return rows


def taken(images: Shown, rows: Tensor | int) -> Scene:
    """The scene of some pictures (or one), by their numbers on the host, with the layers above them."""
    scene = scene_of(images)
    if isinstance(rows, int):
        rows = torch.tensor([rows])

    def pick(value: Tensor) -> Tensor:  # the pulls and coordinates of a scene on a GPU are on the host
        return value if len(value) == 1 else picked(value, rows)

    def layer(value: Layer) -> Layer:
        alpha, bends = None if value.alpha is None else pick(value.alpha), tuple((s, pick(u)) for s, u in value.bends)
        return value._replace(pixels=pick(value.pixels), alpha=alpha, pull=pick(value.pull), bends=bends)

    base, *rest = scene.layers
    pixels = base.pixels if len(base.pixels) == len(rows) == 1 else picked(base.pixels, rows)
    base = Layer(pixels, None, pick(base.pull), base.bends)
    return Scene((base, *map(layer, rest)), scene.size)


def base_of(images: Shown) -> Tensor:
    """The pictures themselves (N,C,H,W), without the layers above them."""
    return images.layers[0].pixels if isinstance(images, Scene) else images


def premultiply(layer: Layer) -> Tensor:
    """Colour times coverage, and coverage: (N,C+1,h,w)."""
    if layer.alpha is None:
        return torch.cat([layer.pixels, torch.ones_like(layer.pixels[:, :1])], dim=1)
    rows = max(len(layer.pixels), len(layer.alpha))
    alpha = layer.alpha.expand(rows, -1, -1, -1)
    return torch.cat([layer.pixels * alpha, alpha], dim=1)

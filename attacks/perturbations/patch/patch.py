"""A patch: one texture for all pictures, lying in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor

from attacks.perturbations.base import Corners, PerturbationSet
from attacks.perturbations.patch.card_layer import Surround
from attacks.perturbations.patch.placement import Placements, Quad, placements_of
from attacks.perturbations.patch.shape import alpha_of, outline_of
from transforms import Layer, Scene, Shown, scene_of
from transforms.compose import seen
from transforms.sampling.outline import Outline

Start = Literal["grey", "noise"]
#: rectangle, ellipse, circle; a polygon; or the path of a picture (see `attacks.perturbations.patch.shape.alpha_of`).
Shape = str | Sequence[Sequence[float]]
#: In the middle of the picture.
CENTRE: Quad = ((0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (0.3, 0.7))
#: The most texels of a side; a print of a metre at 300 dpi has 11 811 dots.
LONGEST = 2**14


class Colours(Protocol):
    """Which colours a texture may have (see `attacks.perturbations.patch.gamut`)."""

    def project(self, texture: Tensor) -> Tensor:
        """The nearest texture (N,C,h,w) of allowed colours."""


@dataclass(frozen=True, eq=False)
class Patch(PerturbationSet):
    """One texture (1,C,h,w) in [0,1] of its own resolution, shared by all pictures, composited as layers of the
    scene: a view samples it once, straight from its texels (Brown et al. 2017, Adversarial Patch).

    The delta is the texture itself, not its change: so it can be saved, printed and priced as it is. No norm limits
    it but the box; `eps` is 1, and a step is a share of 0.5, for it is the L-inf ball of that radius round mid-grey.

    Args:
        size: (h, w) of the texture in texels.
        quad: its corners, as shares of the picture's width and height (see `Placements`): four, several quads, or
            placements in each picture.
        start_from: grey (0.5), noise (uniform in [0,1]), or an image (C,h,w) or (1,C,h,w) in [0,1].
        shape: what of the texture is opaque: rectangle, ellipse, circle, a polygon, or the path of a mask.
        grey: the same value in all channels.
        gamut: the colours it may have, if not all.
        surround: what is printed round it.
    """

    size: tuple[int, int] = (48, 48)
    quad: Quad | Tensor | Placements = CENTRE
    start_from: Start | Tensor = "grey"
    shape: Shape = "rectangle"
    grey: bool = False
    gamut: Colours | None = None
    surround: Surround | None = None
    placements: Placements = field(init=False, repr=False)
    alpha: Tensor | None = field(init=False, repr=False)

    shared: ClassVar[bool] = True
    eps: ClassVar[float] = 1.0
    reach: ClassVar[float] = 0.5
    #: The loop asks because an embedding loss has no gradient where nothing has changed; any texture is a change.
    random_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", texture_size(self.size))
        if isinstance(self.start_from, Tensor):
            self._check_image(self.start_from)
        elif self.start_from not in get_args(Start):
            raise ValueError(
                f"`start_from` must be one of {', '.join(get_args(Start))}, or an image; got {self.start_from!r}"
            )
        object.__setattr__(self, "alpha", alpha_of(self.shape, self.size))
        object.__setattr__(self, "placements", placements_of(self.quad))
        cover = self.placements.cover
        if cover is not None and cover.shape[2:] != (1, 1):
            if cover.shape[2:] != self.size:
                raise ValueError(
                    f"`cover` must be as large as the texture, {self.size}; got {tuple(cover.shape[2:])}"
                )
            if self.surround is not None:
                raise ValueError("`surround` is a whole sheet; a region that shows a part of it cannot be given too")

    def take(self, rows: Tensor) -> Self:
        """The patch in some of the pictures."""
        return self if len(self.placements.quads) == 1 else replace(self, quad=self.placements.take(rows))

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first texture (1,C,h,w). Raises ValueError if a given image has other channels."""
        shape = (1, images.shape[1], *self.size)
        if isinstance(self.start_from, Tensor):
            if self.start_from.shape[-3] != shape[1]:
                raise ValueError(
                    f"`start_from` must have as many channels as the pictures, {shape[1]}; got "
                    f"{self.start_from.shape[-3]}"
                )
            return self._allowed(self.start_from.to(images).reshape(shape).clone())
        if self.start_from == "grey":
            return self._allowed(images.new_full(shape, 0.5))
        return self._allowed(torch.rand(shape, generator=generator, dtype=images.dtype).to(images.device))

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the strongest random texture (1,C,h,w): every value 0 or 1, as far as its colours allow it."""
        shape = (1, 1 if self.grey else images.shape[1], *self.size)
        drawn = torch.randint(2, shape, generator=generator).to(images).expand(1, images.shape[1], *self.size)
        return self._allowed(drawn.clone())

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The pictures with the patch over them; `delta` is (1,C,h,w), or has a row for each of them."""
        base, cover = scene_of(images), self.placements.cover
        pixels, alpha = delta, self.alpha
        inward = torch.eye(3, dtype=torch.float64)
        if self.surround is not None:
            pixels, alpha, inward = self.surround.embed(delta, alpha), None, self.surround.pull(self.size)
        # A region shows an end of its own; a sheet ends where its paper does.
        line = None if cover is not None and cover.shape[2:] != (1, 1) else outline_of(self.shape, self.size)
        line = line if self.surround is None else Outline()
        over = []
        for k, pull in enumerate(self.placements.pulls(base.size, self.size)):
            opacity = None if alpha is None else alpha.to(pixels)
            if cover is not None:
                part = cover[:, k, None].to(pixels)
                full = pixels.new_ones(1, 1, *pixels.shape[2:]) if opacity is None else opacity
                opacity = part * full
            place = (inward @ pull).to(images.device, torch.promote_types(images.dtype, torch.float32))
            over.append(Layer(pixels, opacity, place, outline=line))
        return Scene((*base.layers, *over), base.size)

    def steepest(self, grad: Tensor) -> Tensor:
        """The step of L-inf norm 1 with the largest inner product with `grad`."""
        return (grad.sum(1, keepdim=True).expand_as(grad) if self.grey else grad).sign()

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The move that lowers the loss the most, to first order, no value by more than `length`."""
        if isinstance(length, Tensor):
            length = length[:, None, None, None]
        return -length * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, the nearest texture that is allowed."""
        return self.project(delta + by, images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The nearest texture."""
        return self._allowed(delta.clamp(0, 1))

    def norm(self, delta: Tensor) -> Tensor:
        """The largest value, (N,C,h,w) -> (N,): of a texture, or of the change that it makes to a picture."""
        return delta.flatten(1).abs().amax(1)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The texture (1,C,h,w) that an 8-bit file of it will hold."""
        return (self.project(delta, images) * 255).round() / 255

    @property
    def texture_size(self) -> tuple[int, int]:
        """(height, width) of the texture."""
        return self.size

    @property
    def texture_alpha(self) -> Tensor | None:
        """The shape, (1,1,h,w); None: a rectangle."""
        return self.alpha

    def written(self, images: Tensor, delta: Tensor) -> Tensor:
        """The pictures (N,C,H,W) with the patch pasted in, in 8 bits."""
        return (seen(self.scene(images, delta)) * 255).round() / 255

    def evaluated(self, images: Tensor, delta: Tensor) -> Shown:
        """The scene: a view samples the texture itself, for a picture with the patch pasted in would be resampled
        twice."""
        return self.scene(images, delta)

    def corners(self) -> list[list[Corners]]:
        """Where the texture lies: for each picture, or once for all. A place that a picture does not have is left
        out."""
        return self.placements.corners()

    def footprint(self, size: tuple[int, int], sheet: bool = False) -> Scene | None:
        """A white texture without edges of its own on black pictures of `size`, with `sheet` the card instead."""
        bare = replace(self, surround=None)
        if sheet:
            if self.surround is None:
                return None
            bare = replace(self, surround=replace(self.surround, picture=torch.ones_like(self.surround.picture)))
        images = torch.zeros(len(self.placements.quads), 3, *size)
        return bare.scene(images, torch.ones(1, 3, *self.size))

    def _allowed(self, texture: Tensor) -> Tensor:
        if self.grey:
            texture = texture.mean(1, keepdim=True).expand_as(texture)
        if self.gamut is None:
            return texture
        allowed = self.gamut.project(texture)
        # A printer's grey need not be neutral; what is printed in all channels alike is.
        return allowed.mean(1, keepdim=True).expand_as(allowed) if self.grey else allowed

    def _check_image(self, image: Tensor) -> None:
        fits = image.dim() in (3, 4) and image.shape[-2:] == self.size and image.shape[:-3] in ((), (1,))
        if not fits or not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
            raise ValueError(
                f"`start_from` must be an image (C,{self.size[0]},{self.size[1]}) in [0,1], as large as `size`; got "
                f"{image.dtype} of shape {tuple(image.shape)}"
            )


def texture_size(size: Sequence[int]) -> tuple[int, int]:
    """(height, width) in texels. Raises ValueError for anything else."""
    if len(size) != 2 or not all(type(side) is int and 1 <= side <= LONGEST for side in size):
        raise ValueError(f"`size` must be (height, width) in whole texels, each 1 to {LONGEST}; got {size}")
    return size[0], size[1]

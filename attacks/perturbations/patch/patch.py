"""A patch: one texture, placed in every picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from attacks.perturbations.ball import per_picture
from attacks.perturbations.base import Corners, PerturbationSet
from attacks.perturbations.patch.card_raster import Surround
from attacks.perturbations.patch.colour_profiles import Gamut
from attacks.perturbations.patch.placement import Placements, Quad
from attacks.perturbations.patch.shape import Shape, shape_alpha, shape_outline
from transforms.compose import seen
from transforms.sampling.outline import Outline
from transforms.scene import Layer, Scene, Shown, scene_of

Start = Literal["grey", "noise"]
#: In the middle of the picture.
CENTRE: Quad = ((0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (0.3, 0.7))
#: The most texels of a side; a print of a metre at 300 dpi has 11 811 dots.
LONGEST = 2**14


@dataclass(frozen=True, eq=False)
class Patch(PerturbationSet):
    """One texture (1,C,h,w) in [0,1] of its own resolution, shared by all pictures, composited as layers of the
    scene: a view samples it once, straight from its texels (Brown et al. 2017, Adversarial Patch).

    The delta is the texture itself, not its change. No norm limits it but the box; `eps` is 1, and a step is a share
    of 0.5, for it is the L-inf ball of that radius round mid-grey.

    Use: something that is printed and laid into the scene.
    Not: a change of the whole picture that nobody should see: a ball.
    Cost: the texture is sampled once in each view.
    Oracle: a texture on whole pixels, pasted, tests/perturbations/patch/test_patch.py.
    With: config=patch

    Args:
        size: (h, w) of the texture in texels.
        quad: its corners, as shares of the picture's width and height (see `Placements`): four, several quads, or
            placements in each picture.
        start_from: noise (uniform in [0,1]), grey (0.5; away from an embedding the patch then ends weaker), or an
            image (C,h,w) or (1,C,h,w) in [0,1].
        shape: what of the texture is opaque: rectangle, ellipse, circle, a polygon, or the path of a mask.
        grey: the same value in all channels.
        gamut: the colours it may have, if not all.
        surround, surround_of: what is printed round it; the same for each arm of an experiment, by name.

    Examples:
        >>> from attacks import Patch
        >>> patch = Patch(size=(4, 4), quad=[[0.0, 0.0], [0.5, 0.0], [0.5, 0.5], [0.0, 0.5]])
        >>> images = torch.zeros(2, 3, 8, 8)
        >>> texture = patch.noise(images, torch.Generator().manual_seed(0))
        >>> texture.shape, torch.allclose(patch.written(images, texture)[:, :, :4, :4], texture)
        (torch.Size([1, 3, 4, 4]), True)
    """

    size: tuple[int, int] = (48, 48)
    quad: Quad | Tensor | Placements = CENTRE
    start_from: Start | Tensor = "noise"
    shape: Shape = "rectangle"
    grey: bool = False
    gamut: Gamut | None = None
    surround: Surround | None = None
    surround_of: Callable[[str], Surround] | None = None
    placements: Placements = field(init=False, repr=False)
    alpha: Tensor | None = field(init=False, repr=False)

    shared: ClassVar[bool] = True
    eps: ClassVar[float] = 1.0
    reach: ClassVar[float] = 0.5
    #: Read as "does not start at zero": any texture is a change, so an embedding loss has a gradient.
    random_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", texture_size(self.size))
        if isinstance(self.start_from, Tensor):
            self._check_image(self.start_from)
        elif self.start_from not in get_args(Start):
            raise ValueError(f"`start_from` must be grey, noise or an image; got {self.start_from!r}")
        object.__setattr__(self, "alpha", shape_alpha(self.shape, self.size))
        placements = self.quad
        if not isinstance(placements, Placements):  # one quad, or several (K,4,2), the same in all pictures
            corners = torch.as_tensor(placements, dtype=torch.float64)
            placements = Placements(corners[None, None] if corners.dim() == 2 else corners[None])
        grid = self.size if self.surround is None else (*self.surround.picture.shape[2:],)
        if placements.cover is None or placements.cover.shape[2:] != grid:
            placements = placements.with_cover(self.size, self.surround)
        object.__setattr__(self, "placements", placements)
        if (cover := placements.cover) is not None and self._has_regions and cover.shape[2:] != grid:
            raise ValueError(f"`cover` must be as large as texture or card, {grid}; got {(*cover.shape[2:],)}")

    @property
    def _has_regions(self) -> bool:
        """Whether `cover` shows or hides single texels, not only whole placements."""
        return self.placements.cover is not None and self.placements.cover.shape[2:] != (1, 1)

    def take(self, rows: Tensor) -> Self:
        return self if len(self.placements.quads) == 1 else replace(self, quad=self.placements.take(rows))

    def for_arm(self, arm: str) -> Self:
        return self if self.surround_of is None else replace(self, surround=self.surround_of(arm))

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first texture (1,C,h,w). Raises ValueError if a given image has other channels."""
        shape = (1, images.shape[1], *self.size)
        if isinstance(self.start_from, Tensor):
            if (count := self.start_from.shape[-3]) != shape[1]:
                raise ValueError(f"`start_from` must have as many channels as the pictures, {shape[1]}; got {count}")
            return self._restrict_colours(self.start_from.to(images).reshape(shape).clone())
        if self.start_from == "grey":
            return self._restrict_colours(images.new_full(shape, 0.5))
        sample = torch.rand(1, 1 if self.grey else shape[1], *self.size, generator=generator, dtype=images.dtype)
        return self._restrict_colours(sample.to(images.device).expand(shape).clone())

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the strongest random texture (1,C,h,w): values of 0 and 1, as far as its colours allow."""
        shape = (1, 1 if self.grey else images.shape[1], *self.size)
        sample = torch.randint(2, shape, generator=generator).to(images).expand(1, images.shape[1], *self.size)
        return self._restrict_colours(sample.clone())

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The pictures with the patch over them; `delta` is (1,C,h,w), or has a row for each of them."""
        base, cover = scene_of(images), self.placements.cover
        pixels, alpha, outline = delta, self.alpha, shape_outline(self.shape, self.size)
        inward = torch.eye(3, dtype=torch.float64)
        if self.surround is not None:  # a sheet ends where its paper does
            pixels, alpha, outline = self.surround.embed(delta, alpha), None, Outline()
            inward = self.surround.pull(self.size)
        if self._has_regions:  # a region has an edge of its own
            outline = None
        layers = []
        for k, pull in enumerate(self.placements.pulls(base.size, self.size)):
            opacity = None if alpha is None else alpha.to(pixels)
            if cover is not None:
                full = pixels.new_ones(1, 1, *pixels.shape[2:]) if opacity is None else opacity
                opacity = cover[:, k, None].to(pixels) * full
            place = (inward @ pull).to(torch.promote_types(images.dtype, torch.float32))
            layers.append(Layer(pixels, opacity, place, outline=outline))
        return Scene((*base.layers, *layers), base.size)

    def steepest(self, grad: Tensor) -> Tensor:
        return (grad.sum(1, keepdim=True).expand_as(grad) if self.grey else grad).sign()

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        return -per_picture(length) * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        return self.project(delta + by, images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        return self._restrict_colours(delta.clamp(0, 1))

    def norm(self, delta: Tensor) -> Tensor:
        """The largest value, (N,C,h,w) -> (N,): of a texture, or of the change that it makes to a picture."""
        return delta.flatten(1).abs().amax(1)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:
        """The texture (1,C,h,w) that an 8-bit file of it will hold."""
        return (self.project(delta, images) * 255).round() / 255

    @property
    def texture_size(self) -> tuple[int, int]:
        return self.size

    @property
    def texture_alpha(self) -> Tensor | None:
        return self.alpha

    def written(self, images: Tensor, delta: Tensor) -> Tensor:
        return (seen(self.scene(images, delta)) * 255).round() / 255

    def evaluated(self, images: Tensor, delta: Tensor) -> Shown:
        """The scene: in a picture with the patch pasted in, a view would resample the texture a second time."""
        return self.scene(images, delta)

    def corners(self) -> list[list[Corners]]:
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

    def _restrict_colours(self, texture: Tensor) -> Tensor:
        if self.grey:
            texture = texture.mean(1, keepdim=True).expand_as(texture)
        if self.gamut is None:
            return texture
        projection = self.gamut.project(texture)
        # A printer's grey need not be neutral; what is printed in all channels alike is.
        return projection.mean(1, keepdim=True).expand_as(projection) if self.grey else projection

    def _check_image(self, image: Tensor) -> None:
        fits = image.dim() in (3, 4) and image.shape[-2:] == self.size and image.shape[:-3] in ((), (1,))
        if not fits or not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
            wanted = f"an image (C,{self.size[0]},{self.size[1]}) in [0,1], as large as `size`"
            raise ValueError(f"`start_from` must be {wanted}; got {image.dtype} of {(*image.shape,)}")


def texture_size(size: Sequence[int]) -> tuple[int, int]:
    """(height, width) in texels. Raises ValueError for anything else."""
    if len(size) != 2 or not all(type(side) is int and 1 <= side <= LONGEST for side in size):
        raise ValueError(f"`size` must be (height, width) in whole texels, each 1 to {LONGEST}; got {size}")
    return size[0], size[1]

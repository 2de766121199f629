"""A patch: one texture for all pictures, lying in each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from transforms import Layer, Scene, scene_of
from transforms.homography import homography

Start = Literal["grey", "noise"]
Shape = Literal["rectangle", "ellipse"]
#: (x, y) of the upper left, upper right, lower right and lower left corner.
Quad = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]
#: The middle half of the picture.
CENTRE: Quad = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
#: An ellipse covers a texel by the share of so many points along each axis that lie in it.
POINTS = 8


@dataclass(frozen=True, eq=False)
class Patch:
    """One texture (1,C,h,w) in [0,1] of its own resolution, shared by all pictures, composited as a layer of the
    scene: a view samples it once, straight from its texels (Brown et al. 2017, Adversarial Patch).

    The delta is the texture itself, not its change: so it can be saved, printed and priced as it is. No norm limits
    it but the box; `eps` is 1, and a step is a share of 0.5, for it is the L-inf ball of that radius round mid-grey.

    Args:
        size: (h, w) of the texture in texels.
        quad: where its corners lie, as shares of the picture's width and height: (x, y) from (0, 0), the upper left
            corner of the picture, to (1, 1), its lower right one; upper left, upper right, lower right, lower left
            of the texture. Any quad that a camera could see; a mirrored one mirrors the texture.
        start: grey (0.5), noise (uniform in [0,1]), or an image (C,h,w) or (1,C,h,w) in [0,1].
        shape: rectangle, or the ellipse inscribed in it.
    """

    size: tuple[int, int]
    quad: Quad = CENTRE
    start_from: Start | Tensor = "grey"
    shape: Shape = "rectangle"

    shared: ClassVar[bool] = True
    eps: ClassVar[float] = 1.0
    reach: ClassVar[float] = 0.5
    #: The loop asks because an embedding loss has no gradient where nothing has changed; any texture is a change.
    random_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.size) != 2 or not all(type(side) is int and side >= 1 for side in self.size):
            raise ValueError(f"`size` must be (height, width) in whole texels, at least 1; got {self.size}")
        if self.shape not in get_args(Shape):
            raise ValueError(f"`shape` must be one of {', '.join(get_args(Shape))}; got {self.shape!r}")
        if isinstance(self.start_from, Tensor):
            self._check_image(self.start_from)
        elif self.start_from not in get_args(Start):
            raise ValueError(
                f"`start_from` must be one of {', '.join(get_args(Start))}, or an image; got {self.start_from!r}"
            )
        self._pull((1, 1), torch.zeros(()))  # refuses a degenerate quad

    def start(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the first texture (1,C,h,w). Raises ValueError if a given image has other channels."""
        shape = (1, images.shape[1], *self.size)
        if isinstance(self.start_from, Tensor):
            if self.start_from.shape[-3] != shape[1]:
                raise ValueError(
                    f"`start_from` must have as many channels as the pictures, {shape[1]}; got "
                    f"{self.start_from.shape[-3]}"
                )
            return self.start_from.to(images).reshape(shape).clone()
        if self.start_from == "grey":
            return images.new_full(shape, 0.5)
        return torch.rand(shape, generator=generator, dtype=images.dtype).to(images.device)

    def noise(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(N,C,H,W) -> the strongest random texture (1,C,h,w): every value 0 or 1."""
        shape = (1, images.shape[1], *self.size)
        return torch.randint(2, shape, generator=generator).to(images)

    def scene(self, images: Tensor, delta: Tensor) -> Scene:
        """The pictures with the patch over them; `delta` is (1,C,h,w), or has a row for each of them."""
        base = scene_of(images)
        pull = self._pull(base.size, images)
        alpha = None if self.shape == "rectangle" else _ellipse(self.size).to(delta).expand(len(delta), -1, -1, -1)
        return Scene((*base.layers, Layer(delta, alpha, pull)), base.size)

    def steepest(self, grad: Tensor) -> Tensor:
        """The step of L-inf norm 1 with the largest inner product with `grad`."""
        return grad.sign()

    def descend(self, grad: Tensor, length: float | Tensor, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The move that lowers the loss the most, to first order, no value by more than `length`."""
        if isinstance(length, Tensor):
            length = length[:, None, None, None]
        return -length * self.steepest(grad)

    def move(self, delta: Tensor, by: Tensor, images: Tensor) -> Tensor:
        """delta + by, clamped to [0,1]."""
        return self.project(delta + by, images)

    def project(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The nearest texture."""
        return delta.clamp(0, 1)

    def norm(self, delta: Tensor) -> Tensor:
        """The largest value, (N,C,h,w) -> (N,): of a texture, or of the change that it makes to a picture."""
        return delta.flatten(1).abs().amax(1)

    def quantise(self, delta: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """The texture (1,C,h,w) that an 8-bit file of it will hold."""
        return (delta.clamp(0, 1) * 255).round() / 255

    def _pull(self, size: tuple[int, int], like: Tensor) -> Tensor:
        """(1,3,3) from the stage frame of a picture of `size` (height, width) to that of the texture."""
        unit = torch.tensor([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=torch.float64)
        corners = torch.tensor(self.quad, dtype=torch.float64)
        if corners.shape != (4, 2):
            raise ValueError(f"`quad` must hold four corners (x, y); got shape {tuple(corners.shape)}")
        if not bool(((corners > -1) & (corners < 2)).all()):
            raise ValueError(f"`quad` is in shares of the picture's width and height, not pixels; got {self.quad}")
        found = homography(_framed(corners, size), _framed(unit, self.size))
        return found.to(like.device, torch.promote_types(like.dtype, torch.float32))

    def _check_image(self, image: Tensor) -> None:
        fits = image.dim() in (3, 4) and image.shape[-2:] == self.size and image.shape[:-3] in ((), (1,))
        if not fits or not image.is_floating_point() or not bool(((image >= 0) & (image <= 1)).all()):
            raise ValueError(
                f"`start_from` must be an image (C,{self.size[0]},{self.size[1]}) in [0,1], as large as `size`; got "
                f"{image.dtype} of shape {tuple(image.shape)}"
            )


def _framed(shares: Tensor, size: tuple[int, int]) -> Tensor:
    """From shares of width and height to the stage frame: the centre is 0, half the shorter side 1."""
    height, width = size
    return (shares - 0.5) * shares.new_tensor([width, height]) * (2 / min(size))


def _ellipse(size: tuple[int, int]) -> Tensor:
    """How much of each texel lies in the inscribed ellipse, (1,1,h,w)."""
    y, x = ((torch.arange(side * POINTS) + 0.5) / (side * POINTS) * 2 - 1 for side in size)
    inside = (x.square() + y[:, None].square() <= 1).float()[None, None]
    return F.avg_pool2d(inside, POINTS)

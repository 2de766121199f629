"""JPEG and WebP: forward is Pillow's codec, to the bit; backward the vector-Jacobian product of kornia's
differentiable JPEG at the same images and quality (Athalye et al. 2018; Reich et al. 2024 after Shin & Song 2017)."""

from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image, features
from torch import Tensor

from transforms.colour.spaces import is_grey
from transforms.devices import uploaded
from transforms.doors import OVERSHOOT, check_choice, door, unchecked
from transforms.draws.ranges import WholeRanged, whole_pair
from transforms.sampling.straight_through import backward_through, saturate

Subsampling = Literal["4:4:4", "4:2:2", "4:2:0"]
Codec = Literal["real", "straight"]


@door(slack=OVERSHOOT)
def jpeg(
    images: Tensor,  # (N,C,H,W)
    quality: float | Tensor = 75,
    *,
    subsampling: Subsampling = "4:2:0",
    codec: Codec = "real",
) -> Tensor:  # (N,C,H,W)
    """Encode as JPEG with Pillow and decode again.

    Args:
        images: C = 1 (grey) or 3, any size and floating dtype; clamped to [0,1] and rounded to 8 bits first.
        quality: 1 to 100, one number or one a picture (N,). The codec rounds it to a whole number, so it has no
            gradient.
        subsampling: of the colours. kornia implements 4:2:0 only, and that gradient stands in for the others' too.
        codec: "real": Pillow forward, the gradient of kornia's differentiable codec backward. "straight": Pillow
            forward, the gradient of the identity backward: for large pictures of high quality, which JPEG changes
            little and where kornia's codec takes most of the time.

    Returns:
        Values k/255 in the dtype and on the device of `images`.

    kornia's gradient is weak: its smooth rounding of a coefficient x has the slope 3 (x - round x)^2, a quarter on
    average, and zero where x is whole. So a picture of a few flat colours needs a random start.

    Raises:
        ValueError: other channels, a quality out of range, or an unknown name.

    Examples:
        >>> from transforms import jpeg
        >>> picture = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
        >>> bool(torch.autograd.grad(jpeg(picture, 75).square().sum(), picture)[0].any())
        True
    """
    check_choice("subsampling", subsampling, get_args(Subsampling))
    check_choice("codec", codec, get_args(Codec))
    options = {"format": "JPEG", "subsampling": subsampling}
    return _real(images, _qualities(quality, images), options, straight=codec == "straight")


@door(slack=OVERSHOOT)
def webp(images: Tensor, quality: float | Tensor = 75) -> Tensor:
    """Encode as lossy WebP with Pillow and decode again; arguments and result as in `jpeg`.

    Backward is kornia's JPEG at the same quality number, as there is no differentiable WebP. Both code transformed
    blocks, with the colours at half the resolution, but the same quality number does not mean the same loss: the
    gradient is an approximation. Grey goes through RGB.

    Raises:
        RuntimeError: this Pillow was built without WebP.

    Examples:
        >>> from transforms.camera import webp
        >>> picture = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> errors = [(webp(picture, quality) - picture).square().mean() for quality in (10, 90)]
        >>> bool(errors[0] > errors[1])
        True
    """
    _check_webp()
    return _real(images, _qualities(quality, images), {"format": "WEBP"})


@dataclass(frozen=True)
class _CodecStage(WholeRanged):
    """Base of the stages: quality as a whole number, or (low, high) drawn whole number by whole number."""

    quality: int | tuple[int, int] = 75

    name, field = "quality (of 100)", "quality"

    def __post_init__(self) -> None:
        object.__setattr__(self, "quality", whole_pair(self.quality, "quality", 100))

    def _strength(self, u: Tensor) -> int | Tensor:
        return self.quality if isinstance(self.quality, int) else self.values(u)[:, 0]


@dataclass(frozen=True)
class Jpeg(_CodecStage, slack=OVERSHOOT):
    """Save as JPEG and load again (see `jpeg`).

    Use: a view that is stored or sent as JPEG.
    Not: large pictures of high quality in every step, unless `codec` is straight.
    Source: Pillow; backward kornia's differentiable JPEG (Reich et al. 2024), as in BPDA (Athalye et al. 2018).
    Cost: Pillow saves and loads each view on the host, and kornia's codec runs in the backward pass; with `codec`
    straight it does not, which is ten to twenty times as fast on a CPU.
    Oracle: Pillow forward, kornia backward, tests/transforms/camera/test_codec.py.

    Args:
        quality: whole number from 1 to 100, or (low, high), both included.
        subsampling: 4:4:4, 4:2:2 or 4:2:0, of the colours.
        codec: real (Pillow forward, kornia's gradient) or straight (Pillow forward, the gradient of the identity).

    Examples:
        >>> from transforms import Jpeg
        >>> Jpeg(quality=(30, 90)).values(torch.tensor([[0.0], [0.999]])).tolist()
        [[30.0], [90.0]]
    """

    subsampling: Subsampling = "4:2:0"
    codec: Codec = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("subsampling", self.subsampling, get_args(Subsampling))
        check_choice("codec", self.codec, get_args(Codec))

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return unchecked(jpeg)(images, self._strength(u), subsampling=self.subsampling, codec=self.codec)


@dataclass(frozen=True)
class Webp(_CodecStage, slack=OVERSHOOT):
    """Save as lossy WebP and load again (see `webp`).

    Use: a view that a service stores as WebP.
    Not: an exact gradient: it is that of JPEG at the same number, for want of a better one.
    Source: Pillow; backward kornia's differentiable JPEG (Reich et al. 2024).
    Cost: Pillow saves and loads each view on the host, and kornia's codec runs in the backward pass.
    Oracle: Pillow, tests/transforms/camera/test_codec.py.

    Args:
        quality: whole number from 1 to 100, or (low, high), both included.

    Examples:
        >>> from transforms.camera import Webp, webp
        >>> picture = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> torch.equal(Webp(quality=(30, 90))(picture, torch.zeros(1, 1)), webp(picture, 30))
        True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_webp()

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return unchecked(webp)(images, self._strength(u))


def _real(images: Tensor, quality: Tensor, options: dict[str, Any], *, straight: bool = False) -> Tensor:
    numbers = quality.detach().round().tolist()

    def through_files(images: Tensor) -> Tensor:
        work = images.detach().to(torch.promote_types(images.dtype, torch.float32))
        bytes_ = (work.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
        # One by one: threads were measured, and are no faster at 224 px.
        files = [_save_and_load(pixels, int(number), options) for pixels, number in zip(bytes_, numbers, strict=True)]
        decoded = uploaded(torch.from_numpy(np.array(files, np.uint8).reshape(bytes_.shape)), work.device)
        decoded = decoded.permute(0, 3, 1, 2)
        return (decoded.to(work.dtype) / 255).to(images.dtype)

    surrogate = saturate if straight else partial(_surrogate, quality=quality.detach())
    return backward_through(images, through_files, surrogate)


def _save_and_load(pixels: np.ndarray, quality: int, options: dict[str, Any]) -> np.ndarray:
    """One picture (H,W,C) uint8 through an encoder and its decoder."""
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    file = BytesIO()
    picture.save(file, quality=quality, **options)
    with Image.open(file) as decoded:
        return np.asarray(decoded.convert(picture.mode)).reshape(pixels.shape)


def _surrogate(images: Tensor, quality: Tensor) -> Tensor:
    from kornia.enhance import jpeg_codec_differentiable  # here, because kornia takes a while to import

    if not len(images):
        return images
    rgb = saturate(images).expand(-1, 3, -1, -1)
    # Four at a time: the same numbers, and twice as fast backward on a CPU as sixteen at once.
    parts = zip(rgb.split(4), quality.to(rgb.device).split(4), strict=True)
    return torch.cat([jpeg_codec_differentiable(*part) for part in parts])[:, : images.shape[1]]


def _qualities(quality: float | Tensor, images: Tensor) -> Tensor:
    """One quality a picture, (N,)."""
    is_grey(images)  # or neither grey nor RGB: refused
    numbers = torch.as_tensor(quality)
    numbers = numbers if numbers.is_floating_point() else numbers.to(torch.float32)
    n = len(images)
    if numbers.shape not in ((), (1,), (n,)):
        raise ValueError(f"`quality` must be one number or one a picture ({n},); got {tuple(numbers.shape)}")
    if not bool(((numbers >= 1) & (numbers <= 100)).all()):
        raise ValueError(f"`quality` must lie in [1, 100]; got {numbers.detach().tolist()}")
    return numbers.expand(n)


def _check_webp() -> None:
    if not features.check("webp"):
        raise RuntimeError("this Pillow was built without WebP: install Pillow's own wheels, or leave the stage out")

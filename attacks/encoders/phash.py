"""The perceptual hash of PyPI's ImageHash (`imagehash.phash`), with gradients: an encoder without weights."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from attacks.encoders.tree import PictureModule
from transforms import resize
from transforms.colour.spaces import at_least_float32
from transforms.devices import wide_dtype
from transforms.doors import formed, unchecked
from transforms.sampling.straight_through import saturate, straight_through

#: The side of the grey picture, and the number of lowest frequencies along each axis.
SIDE, FREQUENCIES = 32, 8
#: Pillow's `convert("L")`: the weights of ITU-R BT.601 in 16 bits.
_LUMA = tuple(share / 2**16 for share in (19595, 38470, 7471))


class Phash(PictureModule):
    """(N,3,H,W) in [0,1], any size -> (N,64): each frequency's distance from the median, row by row (vertical
    frequency first), the mean first of all. Unit: grey levels (1/255), of a cosine of norm 1 over the 32x32 pixels.

    The sign is the bit (see `bits`) of `imagehash.phash` for the 8-bit file of the picture: grey and resize round as
    Pillow does, after the picture itself is rounded. The gradient goes straight through the roundings. Where a
    frequency equals the median but for rounding (pictures of one colour, or symmetric ones) the bit is arbitrary.

    It computes in float64 where the device has it; the features have the dtype of the images, at least float32.

    Use: a filter of known pictures that compares perceptual hashes.
    Not: a hash of another package, whose bits differ.
    Source: imagehash.phash of PyPI's ImageHash.
    Cost: of a view one resize and one cosine transform, forward and back.
    Oracle: ImageHash, bit for bit, tests/encoders/test_phash.py.
    With: objective=bits transforms=identity

    Examples:
        >>> import torch
        >>> from attacks.encoders import Phash, bits
        >>> images = torch.rand(2, 3, 40, 48, generator=torch.Generator().manual_seed(0))
        >>> features = Phash()(images)
        >>> features.shape, torch.equal(Phash().signature(features), 2.0 * bits(features) - 1)
        (torch.Size([2, 64]), True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        formed(images, channels=3)
        grey = to_grey(saturate(at_least_float32(images)))
        small = 255 * unchecked(resize)(grey, (SIDE, SIDE), "pil_lanczos", eight_bit=True).to(wide_dtype(images))
        levels = straight_through(small.round(), small)  # whole again: 255 * (k/255) is k but for float32's rounding
        return above_median(levels).to(grey.dtype)

    def signature(self, features: Tensor) -> Tensor:
        """(...,64) -> the bits as +-1, by which pictures are compared: a cosine is then 1 - 2*(bits that differ)/64.
        A cosine of the features themselves would depend on the mean alone, the largest of them."""
        return torch.where(bits(features), 1.0, -1.0).to(features.dtype)


def to_grey(images: Tensor) -> Tensor:
    """RGB (N,3,H,W) in [0,1] -> (N,1,H,W), whole levels over 255: rounded to 8 bits, then Pillow's
    `convert("L")` in its integers. The gradient is that of the weighted sum."""

    def weighted(pictures: Tensor) -> Tensor:
        red, green, blue = pictures.unbind(1)
        return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue)[:, None]

    with torch.no_grad():
        # Whole numbers below 2^24, over 2^16: float32 holds them exactly.
        grey = (weighted((255 * images).round()) + 0.5).floor() / 255
    return straight_through(grey, weighted(images))


def above_median(levels: Tensor) -> Tensor:
    """(N,1,32,32) in grey levels -> (N,64), as `Phash` returns them; the one step without rounding to 8 bits.

    ImageHash's cosines are not of norm 1: its numbers are these times 64. Those that are constant along an axis keep
    their factor here too, although norm 1 would need 1/sqrt(2) more.
    """
    cosines = _cosines(levels.dtype, levels.device)
    coefficients = (cosines @ levels @ cosines.mT).flatten(1)
    middle = coefficients.shape[1] // 2
    median = coefficients.sort(dim=1).values[:, middle - 1 : middle + 1].mean(1, keepdim=True)
    return coefficients - median


def bits(features: Tensor) -> Tensor:
    """(...,64) of `Phash` -> the bits (...,64) bool, in the order of `imagehash.phash(...).hash.flatten()`.

    Examples:
        >>> import torch
        >>> from attacks.encoders import bits
        >>> bits(torch.tensor([-2.0, 3.0])).tolist()
        [False, True]
    """
    return features > 0


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # a matrix first made in inference mode would be barred from autograd for good
def _cosines(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The first rows of the DCT-II, (8,32)."""
    place, frequency = torch.arange(SIDE, dtype=torch.float64) + 0.5, torch.arange(FREQUENCIES, dtype=torch.float64)
    rows = (math.pi / SIDE * frequency[:, None] * place).cos() * math.sqrt(2 / SIDE)
    return rows.to(device, dtype)

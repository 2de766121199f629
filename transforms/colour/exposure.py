"""Stages in linear light: what multiplies light before the camera encodes it as sRGB. See also
`transforms.colour.illumination`, for light that varies over the picture."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32, is_grey, to_linear, to_srgb
from transforms.draws.ranges import Range, Ranged, symmetric
from transforms.sampling.straight_through import saturate

#: Gains in stops lie within this: 2^16 times the light is beyond any sensor's range.
MOST_STOPS = 16


def relight(images: Tensor, gain: Tensor) -> Tensor:
    """Multiply the light of sRGB images (N,C,H,W) in [0,1] by `gain` (0 or more, broadcasts), and encode it again,
    clamped to [0,1], in the images' dtype. Half precision is computed in float32."""
    wide = at_least_float32(images)
    return saturate(to_srgb(to_linear(wide) * gain.to(wide))).to(images.dtype)


@dataclass(frozen=True)
class Exposure(Ranged):
    r"""Expose longer or shorter: light times 2^stops.

    Formula: L \leftarrow 2^{s} L
    Use: more or less light, or another exposure time.
    Not: an error of the display values: `Gain`, `Brightness`.
    Source: light is linear; display values are decoded and encoded as sRGB.
    Oracle: a stop doubles the light, sRGB is scikit-image's, tests/transforms/colour/test_illumination.py.

    Args:
        stops: within [-16, 16]; a number x means (-x, x).

    Examples:
        >>> from transforms.colour import Exposure
        >>> from transforms.colour.spaces import to_linear
        >>> grey = torch.full((1, 3, 1, 1), 0.5)
        >>> brighter = Exposure(stops=(1, 1))(grey, torch.zeros(1, 1))
        >>> torch.allclose(to_linear(brighter), 2 * to_linear(grey))
        True
    """

    stops: float | Range = (0.0, 0.0)

    names: ClassVar[tuple[str, ...]] = ("exposure (stops)",)

    def _bounds(self) -> tuple[Range, ...]:
        return (symmetric(self.stops, "stops", low=-MOST_STOPS, high=MOST_STOPS),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return relight(images, self.values(u).exp2()[:, :, None, None])


@dataclass(frozen=True)
class WhiteBalance(Ranged):
    """Light of another colour, or a camera's wrong estimate of it: gains on red and blue against green (von Kries,
    in linear sRGB; a camera does it in its sensor's own primaries).

    Use: lamps of another colour, or a camera that misjudges them.
    Not: the colour error of inks and paper: `ChannelGain`, or a printer.
    Source: von Kries.
    Oracle: arithmetic in linear light, tests/transforms/colour/test_illumination.py.

    Args:
        red, blue: gains in stops, within [-16, 16]; a number x means (-x, x). Red up and blue down is a warmer
            picture.

    Pictures of one channel stay as they are; any number but 1 or 3 raises ValueError.

    Examples:
        >>> from transforms.colour import WhiteBalance
        >>> warm = WhiteBalance(red=(1, 1), blue=(-1, -1))(torch.full((1, 3, 1, 1), 0.5), torch.zeros(1, 2))
        >>> [round(value, 2) for value in warm.flatten().tolist()]
        [0.69, 0.5, 0.36]
    """

    red: float | Range = (0.0, 0.0)
    blue: float | Range = (0.0, 0.0)

    names: ClassVar[tuple[str, ...]] = ("red gain (stops)", "blue gain (stops)")

    def _bounds(self) -> tuple[Range, ...]:
        ranges = (("red", self.red), ("blue", self.blue))
        return tuple(symmetric(v, name, low=-MOST_STOPS, high=MOST_STOPS) for name, v in ranges)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if is_grey(images):
            return images
        red, blue = self.values(u).unbind(-1)
        return relight(images, torch.stack([red, torch.zeros_like(red), blue], dim=-1).exp2()[:, :, None, None])

"""Photometric stages in display values, each clamped to [0,1]; `exposure` and `illumination` work in linear light."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32, is_grey, luma, rotate_hue
from transforms.draws.ranges import Range, Ranged, pair, symmetric
from transforms.sampling.straight_through import saturate

#: Below this value, about half a step of 8 bits, `Gamma` is a straight line.
GAMMA_TOE = 1 / 512


@dataclass(frozen=True)
class Brightness(Ranged):
    """Add a constant to every value, then clamp.

    Use: a display or a scan whose black level is off.
    Not: more or less light: `Exposure`.
    Source: arithmetic on display values.
    Oracle: arithmetic, tests/transforms/colour/test_photometric.py.

    Args:
        amount: what is added, as a share of full scale, within [-1, 1]; a number x means (-x, x).

    Examples:
        >>> from transforms import Brightness
        >>> Brightness(amount=(0.25, 0.25))(torch.tensor([[[[0.25, 0.5, 0.875]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.5, 0.75, 1.0]]]]
    """

    amount: float | Range = (0.0, 0.0)

    names: ClassVar[tuple[str, ...]] = ("added (of full scale)",)

    def _bounds(self) -> tuple[Range, ...]:
        return (symmetric(self.amount, "amount", low=-1, high=1),)

    def line(self, u: Tensor) -> tuple[Tensor, Tensor]:
        offset = self.values(u)[:, :, None, None]
        return torch.ones_like(offset), offset

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return _apply_line(images, *self.line(u))


@dataclass(frozen=True)
class _Factor(Ranged):
    """A stage with one factor, 0 or more; 1 is the identity."""

    factor: Range = (1.0, 1.0)

    names: ClassVar[tuple[str, ...]] = ("factor (x)",)

    def _bounds(self) -> tuple[Range, ...]:
        return (pair(self.factor, "factor", low=0),)


@dataclass(frozen=True)
class Contrast(_Factor):
    """Stretch values about mid-grey by a factor, then clamp.

    About 0.5 and not the picture's mean (torchvision's choice), so that the map does not depend on the content.

    Use: the contrast setting of a display or a viewer.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_contrast, about mid-grey in place of the mean.
    Oracle: arithmetic, tests/transforms/colour/test_photometric.py.

    Args:
        factor: 0 or more; 1 changes nothing.

    Examples:
        >>> from transforms import Contrast
        >>> Contrast(factor=(2, 2))(torch.tensor([[[[0.25, 0.5, 0.625]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.0, 0.5, 0.75]]]]
    """

    def line(self, u: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.values(u)[:, :, None, None]
        return factor, 0.5 - 0.5 * factor

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return _apply_line(images, *self.line(u))


@dataclass(frozen=True)
class Gain(_Factor):
    """Multiply every value by a factor, then clamp, as torchvision's adjust_brightness: a dimmer or brighter picture
    in display values (for light itself see `transforms.colour.exposure.Exposure`).

    Use: a dimmer or brighter display.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_brightness.
    Oracle: torchvision's adjust_brightness, tests/transforms/colour/test_photometric.py.

    Args:
        factor: 0 or more; 1 changes nothing.

    Examples:
        >>> from transforms.colour import Gain
        >>> Gain(factor=(2, 2))(torch.tensor([[[[0.125, 0.25, 0.75]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.25, 0.5, 1.0]]]]
    """

    def line(self, u: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.values(u)[:, :, None, None]
        return factor, torch.zeros_like(factor)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return _apply_line(images, *self.line(u))


@dataclass(frozen=True)
class ChannelGain(Ranged):
    """Multiply each channel by its own gain and add its own offset, then clamp: how a printer or a screen renders
    colour (the print error of Athalye et al. 2018, "Synthesizing Robust Adversarial Examples").

    Use: the colour error of printer, paper and camera together, of which only ranges are known.
    Not: a printer with a profile or a photographed chart: `printer=measured`.
    Oracle: arithmetic, tests/transforms/colour/test_photometric.py.

    Args:
        gain: factor of each of red, green and blue, drawn independently.
        offset: added to each, in full scales, within [-1, 1]; a number x means (-x, x).

    A picture of one channel is multiplied by the mean gain and gets the mean offset. Raises ValueError on any other
    number of channels.

    Examples:
        >>> from transforms.colour import ChannelGain
        >>> u = torch.tensor([[0.25, 0.5, 0.75, 0.0, 0.0, 0.0]])  # gains of 0.75, 1 and 1.25
        >>> ChannelGain(gain=(0.5, 1.5))(torch.full((1, 3, 1, 1), 0.5), u).flatten().tolist()
        [0.375, 0.5, 0.625]
    """

    gain: Range = (1.0, 1.0)
    offset: float | Range = (0.0, 0.0)

    names: ClassVar[tuple[str, ...]] = tuple(
        f"{channel} {part}" for part in ("gain (x)", "added (of full scale)") for channel in ("red", "green", "blue")
    )

    def _bounds(self) -> tuple[Range, ...]:
        offset = symmetric(self.offset, "offset", low=-1, high=1)
        return (pair(self.gain, "gain", low=0),) * 3 + (offset,) * 3

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        values = self.values(u)[:, :, None, None]
        gain, offset = values[:, :3], values[:, 3:]
        if is_grey(images):
            gain, offset = gain.mean(1, keepdim=True), offset.mean(1, keepdim=True)
        return _apply_line(images, gain, offset)


@dataclass(frozen=True)
class Gamma(Ranged):
    r"""Raise values to a power, as torchvision's adjust_gamma: above 1 darkens the middle, below 1 lightens it.

    Below `GAMMA_TOE` the curve is the chord from 0, because there a power below 1 has a derivative that grows without
    bound, and a power above 1 almost none. Every 8-bit value gets exactly its power.

    Formula: x \leftarrow x^{\gamma}
    Use: a display or a file with another transfer curve.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_gamma.
    Oracle: torchvision's adjust_gamma on every 8-bit value, tests/transforms/colour/test_photometric.py.

    Args:
        gamma: the exponent, within [0.05, 20]; 1 changes nothing.

    Examples:
        >>> from transforms.colour import Gamma
        >>> Gamma(gamma=(2, 2))(torch.tensor([[[[0.0, 0.5, 1.0]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.0, 0.25, 1.0]]]]
    """

    gamma: Range = (1.0, 1.0)

    names: ClassVar[tuple[str, ...]] = ("gamma (exponent)",)

    def _bounds(self) -> tuple[Range, ...]:
        return (pair(self.gamma, "gamma", low=0.05, high=20),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        wide = at_least_float32(images)
        gamma = self.values(u)[:, :, None, None].to(wide)
        return saturate(wide * wide.clamp(min=GAMMA_TOE).pow(gamma - 1)).to(images.dtype)


@dataclass(frozen=True)
class Saturation(_Factor):
    """Blend with the picture's luma, then clamp, as torchvision's adjust_saturation: 0 is grey, 1 the picture.

    Pictures of one channel stay as they are; any number of channels but 1 or 3 raises ValueError.

    Use: cameras and filters with paler or stronger colours.
    Not: light of another colour: `WhiteBalance`.
    Source: torchvision's adjust_saturation.
    Oracle: torchvision's adjust_saturation, tests/transforms/colour/test_photometric.py.

    Args:
        factor: 0 or more; 1 changes nothing.

    Examples:
        >>> from transforms.colour import Saturation
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> [round(value, 4) for value in Saturation(factor=(0, 0))(red, torch.zeros(1, 1)).flatten().tolist()]
        [0.2989, 0.2989, 0.2989]
    """

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if is_grey(images):
            return images
        wide = at_least_float32(images)
        factor = self.values(u)[:, :, None, None].to(wide)
        return saturate(factor * wide + (1 - factor) * luma(wide)).to(images.dtype)


@dataclass(frozen=True)
class Hue(Ranged):
    """Turn the hue in HSV, from red towards green, as torchvision's adjust_hue with a factor of degrees / 360.

    No clamp is needed: value and saturation stay. For the gradient where hue has
    none (grey, ties between channels) see `transforms.colour.spaces.rotate_hue`. Pictures of one channel stay as
    they are; any number of channels but 1 or 3 raises ValueError.

    Use: a filter that shifts all hues.
    Not: light of another colour, which changes grey too: `WhiteBalance`.
    Source: torchvision's adjust_hue.
    Oracle: torchvision's adjust_hue and colorsys, tests/transforms/colour/test_photometric.py.

    Args:
        degrees: within [-360, 360]; a number x means (-x, x).

    Examples:
        >>> from transforms.colour import Hue
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> Hue(degrees=(120, 120))(red, torch.zeros(1, 1)).flatten().tolist()
        [0.0, 1.0, 0.0]
    """

    degrees: float | Range = (0.0, 0.0)

    names: ClassVar[tuple[str, ...]] = ("hue (deg)",)

    def _bounds(self) -> tuple[Range, ...]:
        return (symmetric(self.degrees, "degrees", low=-360, high=360),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if is_grey(images):
            return images
        wide = at_least_float32(images)
        return rotate_hue(wide, self.values(u)[:, 0].to(wide)).to(images.dtype)


def _apply_line(images: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    wide = at_least_float32(images)
    return saturate(wide * gain.to(wide) + offset.to(wide)).to(images.dtype)

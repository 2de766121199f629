"""Stages in display values, each clamped to [0,1]; those of `illumination` work in linear light."""

from dataclasses import dataclass

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32, is_grey, luma, rotate_hue
from transforms.draws.ranges import Coordinate, Range, Ranged, is_number
from transforms.sampling.straight_through import saturate

#: Below this value, about half a step of 8 bits, `Gamma` is a straight line.
GAMMA_TOE = 1 / 512


class _Line(Ranged):
    """A stage that is one line for all values of a view (see `transforms.compose.Linear`)."""

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return _apply_line(images, *self.line(u))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Brightness(_Line):
    """Add a constant to every value, then clamp.

    Use: a display or a scan whose black level is off.
    Not: more or less light: `Exposure`.
    Source: arithmetic on display values.
    Oracle: arithmetic, tests/transforms/colour/test_colour.py.

    Args:
        amount: what is added, as a share of full scale, within [-1, 1]; a number x means (-x, x).

    Examples:
        >>> from transforms import Brightness
        >>> Brightness(amount=(0.25, 0.25))(torch.tensor([[[[0.25, 0.5, 0.875]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.5, 0.75, 1.0]]]]
    """

    amount: float | Range = (0.0, 0.0)

    coordinates = (Coordinate("added (of full scale)", "amount", -1, 1),)

    def line(self, u: Tensor) -> tuple[Tensor, Tensor]:
        offset = self.values(u)[:, :, None, None]
        return torch.ones_like(offset), offset


@dataclass(frozen=True)
class _Factor(Ranged):
    """A stage with one factor, 0 or more; 1 is the identity."""

    factor: Range = (1.0, 1.0)

    coordinates = (Coordinate("factor (x)", "factor", 0),)


@dataclass(frozen=True)
class Contrast(_Factor, _Line):
    """Stretch values about mid-grey by a factor, then clamp.

    About 0.5 and not about the picture's mean (torchvision's choice), so that the map does not depend on the content.

    Use: the contrast setting of a display or a viewer.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_contrast, about mid-grey in place of the mean.
    Oracle: arithmetic, tests/transforms/colour/test_colour.py.

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


@dataclass(frozen=True)
class Gain(_Factor, _Line):
    """Multiply every value by a factor, then clamp, as torchvision's adjust_brightness: a dimmer or brighter picture
    in display values, not in light.

    Use: a dimmer or brighter display.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_brightness.
    Oracle: torchvision's adjust_brightness, tests/transforms/colour/test_colour.py.

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


@dataclass(frozen=True)
class ChannelGain(Ranged):
    """Multiply each channel by its own gain and add its own offset, then clamp: how a printer or a screen renders
    colour (the print error of Athalye et al. 2018).

    Use: the colour error of printer, paper and camera together, of which only ranges are known.
    Not: a printer with a profile or a photographed chart: `printer=measured`.
    Oracle: arithmetic, tests/transforms/colour/test_colour.py.

    Args:
        gain: factor of each of red, green and blue, drawn independently.
        offset: added to each, drawn independently too, in full scales, within [-1, 1]; a number x means (-x, x).

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

    coordinates = (
        *(Coordinate(f"{channel} gain (x)", "gain", 0) for channel in ("red", "green", "blue")),
        *(Coordinate(f"{channel} added (of full scale)", "offset", -1, 1) for channel in ("red", "green", "blue")),
    )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        values = self.values(u)[:, :, None, None]
        gain, offset = values[:, :3], values[:, 3:]
        if is_grey(images):
            gain, offset = gain.mean(1, keepdim=True), offset.mean(1, keepdim=True)
        return _apply_line(images, gain, offset)


@dataclass(frozen=True)
class Gamma(Ranged):
    r"""Raise values to a power, as torchvision's adjust_gamma: above 1 darkens the middle, below 1 lightens it.

    Below `GAMMA_TOE` (1/512) the curve is the chord from 0. For there the derivative of a power below 1 grows without
    bound, and that of a power above 1 almost vanishes. Every 8-bit value gets exactly its power.

    Formula: x \leftarrow x^{\gamma}
    Use: a display or a file with another transfer curve.
    Not: more or less light: `Exposure`.
    Source: torchvision's adjust_gamma.
    Oracle: torchvision's adjust_gamma on every 8-bit value, tests/transforms/colour/test_colour.py.

    Args:
        gamma: the exponent, within [0.05, 20]; 1 changes nothing.

    Examples:
        >>> from transforms.colour import Gamma
        >>> Gamma(gamma=(2, 2))(torch.tensor([[[[0.0, 0.5, 1.0]]]]), torch.zeros(1, 1)).tolist()
        [[[[0.0, 0.25, 1.0]]]]
    """

    gamma: Range = (1.0, 1.0)

    coordinates = (Coordinate("gamma (exponent)", "gamma", 0.05, 20),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        wide = at_least_float32(images)
        gamma = self.values(u)[:, :, None, None].to(wide)
        return saturate(wide * wide.clamp(min=GAMMA_TOE).pow(gamma - 1)).to(images.dtype)


@dataclass(frozen=True)
class Saturation(_Factor):
    """Blend with the picture's luma, then clamp, as torchvision's adjust_saturation: 0 is grey, 1 the picture.
    Pictures of one channel stay as they are.

    Use: cameras and filters with paler or stronger colours.
    Not: light of another colour: `WhiteBalance`.
    Source: torchvision's adjust_saturation.
    Oracle: torchvision's adjust_saturation, tests/transforms/colour/test_colour.py.

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

    No clamp is needed: value and saturation stay. Grey, and ties between channels, where hue has no derivative, have
    a gradient too (see `transforms.colour.spaces.rotate_hue`). Pictures of one channel stay as they are; any number
    of channels but 1 or 3 raises ValueError.

    Use: a filter that shifts all hues.
    Not: light of another colour, which changes grey too: `WhiteBalance`.
    Source: torchvision's adjust_hue.
    Oracle: torchvision's adjust_hue and colorsys, tests/transforms/colour/test_colour.py.

    Args:
        degrees: within [-360, 360]; a number x means (-x, x).

    Examples:
        >>> from transforms.colour import Hue
        >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
        >>> Hue(degrees=(120, 120))(red, torch.zeros(1, 1)).flatten().tolist()
        [0.0, 1.0, 0.0]
    """

    degrees: float | Range = (0.0, 0.0)

    coordinates = (Coordinate("hue (deg)", "degrees", -360, 360),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if is_grey(images):
            return images
        wide = at_least_float32(images)
        return rotate_hue(wide, self.values(u)[:, 0].to(wide)).to(images.dtype)


def _apply_line(images: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    wide = at_least_float32(images)
    return saturate(wide * gain.to(wide) + offset.to(wide)).to(images.dtype)


@dataclass(frozen=True)
class Cutout(Ranged):
    """Cover a square at a random place with one value (DeVries & Taylor 2017; T-SEA, Huang et al. 2023, cuts 0.4).

    Use: something small before the picture, or an attack that should not rest on one spot.
    Not: an object of a known shape and place: put it into the pictures.
    Oracle: the covered area, tests/transforms/colour/test_colour.py.

    Args:
        size: side of the square as a share of the shorter side, within [0, 1].
        value: what covers it, in [0,1].

    The square lies wholly inside the picture. A pixel is covered by the share of its area that the square takes, so
    the place and the size have a gradient, through the pixels that the edge crosses. The picture has none under the
    cover.

    Examples:
        >>> from transforms.colour import Cutout
        >>> Cutout(size=(0.5, 0.5), value=0.0)(torch.ones(1, 1, 2, 2), torch.zeros(1, 3)).tolist()
        [[[[0.0, 1.0], [1.0, 1.0]]]]
    """

    size: Range = (0.0, 0.0)
    value: float = 0.5

    coordinates = (
        Coordinate("size (of shorter side)", "size", 0, 1),
        Coordinate("from left (of free width)", "", 0, 1),
        Coordinate("from top (of free height)", "", 0, 1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"`value` must be a number in [0, 1]; got {self.value!r}")

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        wide = at_least_float32(images)
        height, width = images.shape[2:]
        share, left, top = self.values(u).to(wide).unbind(-1)
        side = share * min(height, width)
        columns, rows = (_cover_shares(n, at * (n - side), side) for n, at in ((width, left), (height, top)))
        cover = (rows[:, :, None] * columns[:, None, :])[:, None]
        return saturate(wide + cover * (self.value - wide)).to(images.dtype)


def _cover_shares(n: int, start: Tensor, side: Tensor) -> Tensor:
    """The share of each of n pixels that the interval from `start` (N,), `side` (N,) long, covers: (N,n) in [0,1]."""
    edges = torch.arange(n + 1, dtype=start.dtype, device=start.device)
    # The covered length to the left of each pixel's edge; its differences telescope, so nothing is lost between them.
    length = (edges - start[:, None]).clamp(min=0).minimum(side[:, None])
    return length.diff(dim=-1)

"""Stages in linear light: exposure, white balance, and light that varies over the picture, in the stage frame."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32, is_grey, to_linear, to_srgb
from transforms.doors import Doored
from transforms.draws.ranges import Coordinate, Range, Ranged, pair, spread, symmetric
from transforms.sampling.straight_through import saturate

#: Gains in stops lie within this: 2^16 times the light is beyond any sensor's range.
MOST_STOPS = 16
#: Controls of a `Shading` along each side: each is a coordinate of its own, with a name.
MOST_CONTROLS = 64


def relight(images: Tensor, gain: Tensor, offset: Tensor | float = 0.0) -> Tensor:
    """Multiply the light of sRGB images (N,C,H,W) in [0,1] by `gain` (0 or more, broadcasts), add `offset` light, and
    encode it again, clamped to [0,1], in the images' dtype. Half precision is computed in float32."""
    wide = at_least_float32(images)
    return saturate(to_srgb(to_linear(wide) * gain.to(wide) + offset)).to(images.dtype)


@dataclass(frozen=True)
class Exposure(Ranged):
    r"""Expose longer or shorter: light times 2^stops.

    Formula: L \leftarrow 2^{s} L
    Use: more or less light, or another exposure time.
    Not: an error of the display values: `Gain`, `Brightness`.
    Source: light is linear; display values are decoded and encoded as sRGB.
    Oracle: a stop doubles the light, sRGB is scikit-image's, tests/transforms/colour/test_colour.py.

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

    coordinates = (Coordinate("exposure (stops)", "stops", -MOST_STOPS, MOST_STOPS),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return relight(images, self.values(u).exp2()[:, :, None, None])


@dataclass(frozen=True)
class WhiteBalance(Ranged):
    """Light of another colour, or a camera's wrong estimate of it: gains on red and blue against green (von Kries, in
    linear sRGB; a camera does it in its sensor's own primaries).

    Use: lamps of another colour, or a camera that misjudges them.
    Not: the colour error of inks and paper: `ChannelGain`, or a printer.
    Source: von Kries.
    Oracle: arithmetic in linear light, tests/transforms/colour/test_colour.py.

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

    coordinates = (
        Coordinate("red gain (stops)", "red", -MOST_STOPS, MOST_STOPS),
        Coordinate("blue gain (stops)", "blue", -MOST_STOPS, MOST_STOPS),
    )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        if is_grey(images):
            return images
        red, blue = self.values(u).unbind(-1)
        return relight(images, torch.stack([red, torch.zeros_like(red), blue], dim=-1).exp2()[:, :, None, None])


@dataclass(frozen=True)
class Vignette(Ranged):
    """Light falls off towards the corners as 1 / (1 + s r^2)^2, the cos^4 law of a simple lens, about the centre.

    Formula: (1 + s r^2)^{-2}
    Use: a simple lens, whose corners are darker.
    Not: light from one side: `Shading`, `Shadow`.
    Source: the cos^4 law.
    Oracle: cos^4 of the ray's angle, tests/transforms/colour/test_colour.py.

    Args:
        strength: the share of light that is lost in the very corners, within [0, 0.99]; 0 changes nothing.

    Examples:
        >>> from transforms.colour import Vignette
        >>> from transforms.colour.spaces import to_linear
        >>> light = to_linear(Vignette(strength=(0.75, 0.75))(torch.ones(1, 1, 201, 201), torch.zeros(1, 1)))[0, 0]
        >>> round(float(light[100, 100]), 2), round(float(light[0, 0]), 2)  # the centre; a corner, without 0.75 of it
        (1.0, 0.25)
    """

    strength: Range = (0.0, 0.0)

    coordinates = (Coordinate("lost in the corners (of light)", "strength", 0, 0.99),)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        like = at_least_float32(images)
        x, y = _places(like)
        corner = (images.shape[2] ** 2 + images.shape[3] ** 2) / min(images.shape[2:]) ** 2
        bend = (1 - self.values(u)[:, :, None, None].to(like)) ** -0.5 - 1  # s, with r = 1 in the corners
        return relight(images, (1 + bend * (x * x + y * y) / corner) ** -2)


@dataclass(frozen=True)
class Shading(Doored):
    """Uneven lighting: a smooth field of gains, spanned by grid x grid control gains from edge to edge.

    The gains are in stops, and a uniform cubic B-spline runs between the controls (end controls repeated). So the
    field of light is positive and never leaves the controls' range, and a single inner control makes a bump of 2/3 of
    its height along each axis.

    Use: uneven light of a shape that is not known.
    Not: a hard edge: `Shadow`.
    Source: this project's own, spanned by a cubic B-spline.
    Oracle: SciPy's B-spline, tests/transforms/colour/test_colour.py.

    Args:
        strength: the gain of each control, in stops; a number x means (-x, x).
        grid: controls along each side, 1 to 64.

    Examples:
        >>> from transforms.colour import Shading
        >>> Shading(grid=3).dims, Shading(grid=3).names[5]
        (9, 'row 2 column 3 gain (stops)')
    """

    strength: float | Range = (0.0, 0.0)
    grid: int = 3

    def __post_init__(self) -> None:
        self._bounds()
        if type(self.grid) is not int or not 1 <= self.grid <= MOST_CONTROLS:
            raise ValueError(f"`grid` must be a whole number of controls, 1 to {MOST_CONTROLS}; got {self.grid!r}")

    @property
    def names(self) -> tuple[str, ...]:
        count = range(1, self.grid + 1)
        return tuple(f"row {row} column {column} gain (stops)" for row in count for column in count)

    def values(self, u: Tensor) -> Tensor:
        return spread(u, self._bounds())

    def _bounds(self) -> Range:
        return symmetric(self.strength, "strength", low=-MOST_STOPS, high=MOST_STOPS)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        like = at_least_float32(images)
        controls = self.values(u).to(like).unflatten(-1, (self.grid, self.grid))
        rows, columns = (_spline(n, self.grid, like) for n in images.shape[2:])
        return relight(images, (rows @ controls @ columns.mT).exp2()[:, None])


@dataclass(frozen=True)
class Shadow(Ranged):
    """A straight shadow with a soft edge lies over one side of the picture.

    Use: the shadow of something straight across a print.
    Not: light that changes slowly: `Shading`.
    Source: this project's own formula.
    Oracle: the formula, on a photograph, tests/transforms/colour/test_colour.py.

    Args:
        darkness: the share of light lost deep in the shadow, within [0, 1].
        angle: the direction from light into shadow, in degrees clockwise as displayed: 0 darkens the right side, 90
            the lower one; a number x means (-x, x).
        position: how far the middle of the edge lies from the picture's centre in that direction, as a share of the
            shorter side; a number x means (-x, x).
        softness: width of the penumbra, from 10 % to 90 % of the darkness, as a share of the shorter side, 0.001 or
            more. The profile is a logistic curve, so that every pixel has a gradient to every coordinate.

    Examples:
        >>> from transforms.colour import Shadow
        >>> shadow = Shadow(darkness=(1, 1), angle=(0, 0), position=(0, 0), softness=(0.02, 0.02))
        >>> view = shadow(torch.ones(1, 1, 8, 8), torch.zeros(1, 4))[0, 0, 0]
        >>> [round(value, 2) for value in view.tolist()]
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """

    darkness: Range = (0.0, 0.0)
    angle: float | Range = (-180.0, 180.0)
    position: float | Range = (-0.4, 0.4)
    softness: Range = (0.02, 0.2)

    coordinates = (
        Coordinate("darkness (of light)", "darkness", 0, 1),
        Coordinate("angle (deg)", "angle"),
        Coordinate("position (of shorter side)", "position"),
        Coordinate("softness (of shorter side)", "softness", 1e-3),
    )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        like = at_least_float32(images)
        darkness, angle, position, softness = self.values(u).to(like)[..., None, None, None].unbind(1)
        depth = _projection(like, angle) - position
        return relight(images, 1 - darkness * torch.sigmoid(2 * math.log(9) * depth / softness))


@dataclass(frozen=True)
class Moire(Ranged):
    """Coloured fringes, as when a camera's colour filters sample a screen's stripes of red, green and blue: light is
    multiplied by 1 + strength cos(2 pi (d / period + phase)), where d runs along `angle`.

    A screen's three stripes lie a third of its pitch apart. So the beats of red, green and blue are a third of a
    period apart, and where one colour brightens the others darken. A picture of one channel gets one set of fringes.
    This is the first harmonic of the beat, not a simulation of the screen and the sensor. With `shift` 0 the fringes
    are grey: the bands of a screen's refresh, whose rows a rolling shutter reads at different times.

    Use: a monitor that is filmed.
    Not: paper, which has no stripes of red, green and blue.
    Source: this project's own, the first harmonic of the beat.
    Oracle: the formula, on a photograph, tests/transforms/colour/test_colour.py.

    Args:
        strength: modulation of light, within [0, 1].
        period: from fringe to fringe, as a share of the shorter side, 0.01 or more (use at least two pixels, or the
            fringes alias).
        angle: direction across the fringes in degrees, clockwise as displayed; a number x means (-x, x).
        phase: in periods, at the picture's centre, of red.
        shift: from the fringes of one colour to those of the next, in periods, within [0, 1].

    Raises ValueError unless pictures have 1 or 3 channels.

    Examples:
        >>> from transforms.colour import Moire
        >>> moire = Moire(strength=(0.5, 0.5), period=(0.25, 0.25), angle=(0, 0))
        >>> view = moire(torch.full((1, 3, 32, 32), 0.5), torch.zeros(1, 4))
        >>> torch.allclose(view[..., 8:], view[..., :-8], atol=1e-5)  # a fringe every quarter of the side
        True
    """

    strength: Range = (0.0, 0.0)
    period: Range = (0.05, 0.3)
    angle: float | Range = (-90.0, 90.0)
    phase: Range = (0.0, 1.0)
    shift: float = 1 / 3

    coordinates = (
        Coordinate("strength (of light)", "strength", 0, 1),
        Coordinate("period (of shorter side)", "period", 0.01),
        Coordinate("angle (deg)", "angle"),
        Coordinate("phase (periods)", "phase", is_pair=True),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pair((self.shift, self.shift), "shift", low=0, high=1)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        like = at_least_float32(images)
        strength, period, angle, phase = self.values(u).to(like)[..., None, None, None].unbind(1)
        stripes = self.shift * torch.arange(1 if is_grey(images) else 3).to(like)[:, None, None]
        wave = torch.cos(2 * math.pi * (_projection(like, angle) / period + phase - stripes))
        return relight(images, 1 + strength * wave)


@dataclass(frozen=True)
class Reflection(Ranged):
    r"""Glass, a screen or a film over the picture reflects the room: its light is added, an even veil and the soft
    image of a square window.

    Formula: L \leftarrow L + veil + window \, w(x - x_0) \, w(y - y_0)
    Use: a picture behind glass, a laminated print, a screen in a lit room.
    Not: gloss that leaves no colour under it: `Cutout`.
    Source: this project's own formula; glass reflects 4 % of the light at each surface (Fresnel).
    Oracle: the formula, on a photograph, tests/transforms/colour/test_colour.py.

    Args:
        veil: the even light, as a share of white's, within [0, 1].
        window: the light of the window's image, as a share of white's, within [0, 1].
        side: of the window, as a share of the shorter side, 0.01 or more; the edge, 10 % to 90 %, is a tenth of it.
        x, y: how far its middle lies right and down of the picture's, as a share of the shorter side; a number x
            means (-x, x).

    Examples:
        >>> from transforms.colour import Reflection
        >>> from transforms.colour.spaces import to_linear
        >>> view = Reflection((0.1, 0.1), (0.5, 0.5), x=0, y=0)(torch.zeros(1, 1, 9, 9), torch.zeros(1, 5))
        >>> [round(x, 2) for x in to_linear(view)[0, 0, 4, [0, 4]].tolist()]  # beside the window, and in it
        [0.1, 0.6]
    """

    veil: Range = (0.0, 0.0)
    window: Range = (0.0, 0.0)
    side: Range = (0.3, 0.6)
    x: float | Range = (-0.5, 0.5)
    y: float | Range = (-0.5, 0.5)

    coordinates = (
        Coordinate("veil (of white's light)", "veil", 0, 1),
        Coordinate("window (of white's light)", "window", 0, 1),
        Coordinate("window's side (of shorter side)", "side", 0.01),
        Coordinate("right (of shorter side)", "x"),
        Coordinate("down (of shorter side)", "y"),
    )

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        like = at_least_float32(images)
        veil, window, side, *middle = self.values(u).to(like)[..., None, None, None].unbind(1)
        shape = torch.ones_like(like[:1, :1])
        for places, at in zip(_places(like), middle, strict=True):
            shape = shape * torch.sigmoid((side / 2 - (places / 2 - at).abs()) * (20 * math.log(9) / side))
        return relight(images, torch.ones_like(like[:1, :1]), veil + window * shape)


def _places(images: Tensor) -> tuple[Tensor, Tensor]:
    """The x (1,W) and y (H,1) of the pixels' centres in the stage frame."""
    height, width = images.shape[2:]
    x, y = (
        (2 * torch.arange(n, dtype=images.dtype, device=images.device) + 1 - n) / min(height, width)
        for n in (width, height)
    )
    return x[None], y[:, None]


def _projection(images: Tensor, angle: Tensor) -> Tensor:
    """How far each pixel lies from the centre in the direction `angle` (N,1,1,1) in degrees: (N,1,H,W), in shares of
    the shorter side."""
    x, y = _places(images)
    radians = angle * (math.pi / 180)
    return (radians.cos() * x + radians.sin() * y) / 2


def _spline(n: int, controls: int, like: Tensor) -> Tensor:
    """Weights (n, controls) of a uniform cubic B-spline that spans n pixels from the first control to the last; rows
    sum to 1. The controls beyond the ends, which the cubic needs, repeat the end ones."""
    at = (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5) / n * (controls - 1)
    gap = (at[:, None] - torch.arange(-1, controls + 1, dtype=like.dtype, device=like.device)).abs()
    weights = torch.where(gap < 1, 2 / 3 - gap**2 + gap**3 / 2, (2 - gap).clamp(min=0) ** 3 / 6)
    inner = weights[:, 1:-1].clone()
    inner[:, 0] += weights[:, 0]
    inner[:, -1] += weights[:, -1]
    return inner

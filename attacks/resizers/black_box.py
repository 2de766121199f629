"""A person's own preprocessing, known through calls alone: its values as levels, where it looks, its weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from attacks.resizers.separable import Separable, rms

#: Grey levels on which the values of a pipeline must be a straight line.
GREYS = np.arange(0, 256, 15)
#: How far from it, and from whole levels, float rounding may lead, of 255 levels.
STRAIGHT, ROUNDING = 0.02, 0.02
#: To this the shares of each colour in an output channel are measured: a JPEG step does not hide an order.
_COLOUR_ERROR = 0.02


@dataclass(frozen=True)
class PipelineProbe:
    """A pipeline: an 8-bit picture (H,W,3) -> float64 (h,w,C), as it returned it. It takes "arrays" or "PIL images";
    `key` names it in messages."""

    function: Callable[[Any], Any]
    takes: str
    key: str = "--callable"

    def __call__(self, picture: np.ndarray) -> np.ndarray:
        """Raises ValueError where it fails, or returns no picture."""
        try:
            result = self.function(picture.copy() if self.takes == "arrays" else Image.fromarray(picture))
            if hasattr(result, "detach"):
                result = result.detach().cpu()
            array = np.asarray(result)
            return _channels_last(array.reshape(array.shape[array.ndim == 4 and len(array) == 1 :]).astype(float))
        except Exception as error:  # a foreign function may raise anything
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            rule = f"must turn an 8-bit picture (H,W,3), given as {self.takes}, into one picture"
            raise ValueError(f"`{self.key}` {rule}; got {reason}") from None


def _channels_last(array: np.ndarray) -> np.ndarray:
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3 or not {1, 3} & {array.shape[0], array.shape[2]}:
        raise ValueError(f"a result of shape {array.shape}: return an array (h,w,3) or (3,h,w), or a PIL image")
    return array if array.shape[2] in (1, 3) else array.transpose(1, 2, 0)


def open_box(function: Callable[[Any], Any], size: tuple[int, int], key: str = "--callable") -> PipelineProbe:
    """`function` as a black box that takes arrays, or else PIL images, tried on noise of `size`. Raises ValueError
    where it takes neither, or returns two results for one picture."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    box = PipelineProbe(function, "arrays", key)
    try:
        first = box(noise)
    except ValueError:
        box = PipelineProbe(function, "PIL images", key)
        first = box(noise)
    second = box(noise)
    if first.shape != second.shape or not np.array_equal(first, second, equal_nan=True):
        raise ValueError(f"`{key}` must give one result for one picture; got two: fix its random choices")
    if not np.isfinite(first).all():
        raise ValueError(f"`{key}` must return finite values; got NaN or inf on a picture of noise")
    return box


@dataclass(frozen=True)
class Values:
    """How the values of a pipeline follow from the levels of a flat picture.

    Attributes:
        window: rows and columns of the output that depend on the picture; the others are padding.
        low, gain: (C,), black, and a level's step, from black and white: a flat grey g becomes `low` + `gain` g.
        straight: whether that holds, to float rounding, for the greys in between.
        curve: (18,C), what `GREYS` become, as levels between black and white.
        order: for each output channel the colour that it holds; None where it mixes colours.
    """

    window: tuple[slice, slice]
    low: np.ndarray
    gain: np.ndarray
    straight: bool
    curve: np.ndarray
    order: tuple[int, ...] | None

    def levels(self, result: np.ndarray) -> np.ndarray:
        """What the pipeline returned (h,w,C), inside the window, as levels 0..255, colours in their order."""
        inside: np.ndarray = (result[self.window] - self.low) / self.gain
        if not self.straight:  # a curve that rises is undone, roughly: no kernel will be named
            planes = zip(np.moveaxis(inside, 2, 0), np.maximum.accumulate(self.curve.T, axis=1), strict=True)
            inside = np.stack([np.interp(x, y, GREYS) for x, y in planes], 2)
        if self.order is not None:
            inside = inside[..., np.argsort(self.order)]
        near = np.rint(inside)
        return near if np.abs(inside - near).max() <= ROUNDING else inside

    def __str__(self) -> str:
        """The pipeline in words; empty for levels as they are."""
        words = []
        if not self.straight:
            words.append("no straight line of the picture's levels (a gamma, a curve, padding)")
        elif np.abs(self.low).max() > STRAIGHT or np.abs(self.gain - 1).max() > 1e-6:
            low, gain = (np.array2string(v, precision=4, separator=", ") for v in (self.low, 255 * self.gain))
            words.append(f"{low} + {gain} x level / 255")
        if self.order is None:
            words.append("colours are mixed")
        elif self.order != (0, 1, 2):
            words.append(f"channels are {''.join('RGB'[colour] for colour in self.order)}")
        return "; ".join(words)


def measure_values(box: PipelineProbe, size: tuple[int, int]) -> Values:
    """Measure the values with 21 flat pictures of `size`. Raises ValueError where black and white give the same, or
    the size of the result changes."""
    flat = [box(np.full((*size, 3), grey, np.uint8)) for grey in GREYS]
    colours = [box(np.broadcast_to(np.uint8(colour), (*size, 3))) for colour in 255 * np.eye(3, dtype=int)]
    if len({result.shape for result in (*flat, *colours)}) > 1:
        raise ValueError(f"`{box.key}` must return one size for pictures of one size; got several")
    difference = (flat[0] != flat[-1]).any(2)
    if not difference.any():
        raise ValueError(f"`{box.key}` must depend on the picture; black and white give the same")
    rows, columns = (np.flatnonzero(difference.any(axis)) for axis in (1, 0))
    window = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
    tones = np.stack([np.median(result[window], axis=(0, 1)) for result in flat])
    low, gain = tones[0], (tones[-1] - tones[0]) / 255
    gain = np.where(gain == 0, np.inf, gain)
    off = max(float(np.abs((r[window] - low) / gain - g).max()) for r, g in zip(flat, GREYS, strict=True))
    shares = np.stack([(np.median(result[window], axis=(0, 1)) - low) / gain for result in colours], axis=1) / 255
    order = tuple(int(row.argmax()) for row in shares)
    plain = len({*order}) == 3 and np.abs(shares - np.eye(3)[list(order)]).max() <= _COLOUR_ERROR
    return Values(window, low, gain, off <= STRAIGHT, (tones - low) / gain, order if plain else None)


#: A superposition of four 8-bit results is off by at most this many levels (root mean square) where only rounding is.
LINEAR = 1.25
#: A fine ramp repeats after this many pixels, a level each.
_PERIOD = 256
#: Of a comb, source pixels between teeth per source pixel per output pixel: the widest kernel, Lanczos, reaches 6.
_TEETH = 8
#: A line that rises less does not depend on the axis.
_FLAT = 1e-3
#: A measured weight below this may be rounding: one level of 255.
WEIGHT_ERROR = 1 / 255


@dataclass(frozen=True)
class ProbeLine:
    """Where output pixels of an axis look: pixel q of the window `scale` (q + 1/2) + `shift` pixels from the edge."""

    scale: float
    shift: float


@dataclass(frozen=True)
class Prober:
    """A black box with its values, asked about pictures of `size` (H, W)."""

    box: PipelineProbe
    values: Values
    size: tuple[int, int]

    def levels(self, picture: np.ndarray) -> np.ndarray:
        """(H,W,3) or (H,W) of whole levels -> (h,w,C) levels, inside the window."""
        colours = picture[..., None] if picture.ndim == 2 else picture
        return self.values.levels(self.box(np.broadcast_to(colours, (*self.size, 3)).astype(np.uint8)))

    def line_response(self, axis: int, line: np.ndarray) -> np.ndarray:
        """A picture that varies along one axis alone -> the mean profile of the result."""
        grey = self.levels(np.broadcast_to(line[:, None] if axis == 0 else line, self.size))
        return np.asarray(grey.mean(axis=(1 - axis, 2)))

    def noise(self, low: int, high: int, seed: int) -> np.ndarray:
        """Colour noise (H,W,3), levels `low` to `high`, equally likely."""
        return np.random.default_rng(seed).integers(low, high + 1, (*self.size, 3), dtype=np.uint8)


def fit_line(prober: Prober, axis: int) -> ProbeLine:
    """Fit where the output pixels look along an axis, from three ramps: one over the whole axis gives the place of
    each to within some pixels, two of one level a pixel, which repeat, to a fraction of one. The outer tenths, where
    kernels are cut off, are left out."""
    length = prober.size[axis]
    at = np.arange(length)
    places = prober.line_response(axis, np.rint(255 * at / max(length - 1, 1))) * (length - 1) / 255
    count = len(places)
    inner = slice(count // 10, count - count // 10)
    if len(places[inner]) < 2:
        return ProbeLine(length / count, 0.0)
    if length > _PERIOD:
        fine = []
        for shift in (0, _PERIOD // 2):
            place = prober.line_response(axis, (at + shift) % _PERIOD) - shift
            fine.append(place + _PERIOD * np.rint((places - place) / _PERIOD))
        places = np.where(np.abs(places % _PERIOD - _PERIOD / 2) < _PERIOD / 4, *fine)  # far from the ramp's end
    scale, shift = np.polyfit(np.arange(count)[inner] + 0.5, places[inner] + 0.5, 1)
    return ProbeLine(float(scale), float(shift)) if abs(scale) > _FLAT else ProbeLine(length / count, 0.0)


def is_linear(prober: Prober, seed: int) -> bool:
    """Whether noise on grey adds up, and turned bright for dark gives the opposite, to the rounding of 8 bits."""
    first, second = (prober.noise(0, 60, seed + k).astype(int) - 30 for k in (0, 1))
    strong = 127 * np.sign(prober.noise(0, 1, seed).astype(int) - 0.5)
    grey, first_response, second_response, sum_response, light, dark = (
        prober.levels(127 + part) for part in (0 * first, first, second, first + second, strong, -strong)
    )
    return max(rms(sum_response - first_response - second_response + grey), rms(light + dark - 2 * grey)) <= LINEAR


def noise_gain(prober: Prober, seed: int) -> float:
    """The energy of noise after the box over that before it, times source pixels per output pixel: 1 where an output
    pixel is the mean of its area, the area where it is a copy."""
    noise = prober.noise(67, 187, seed)[..., 0]
    result = prober.levels(noise) - prober.levels(np.full_like(noise, 127))
    pixels = prober.size[0] * prober.size[1] / (result.shape[0] * result.shape[1])
    return float(max(np.mean((result - result.mean()) ** 2) - 1 / 12, 0.0) / noise.var() * pixels)


def predicts(weights: Separable, prober: Prober, seed: int) -> bool:
    """Whether measured weights predict most of what a box makes of noise; not where pixels are turned or warped."""
    noise = prober.noise(67, 187, seed)[..., 0]
    result = prober.levels(noise).mean(2)
    return float(np.std(result - weights(noise.astype(float)))) <= float(np.std(result)) / 2


def measure_weights(prober: Prober, lines: tuple[ProbeLine, ProbeLine]) -> Separable:
    """The matrices of the two axes, from the responses to combs: bright or dark lines on grey, so far apart that an
    output pixel reads at most one, the nearest."""
    matrices = []
    for axis, line in enumerate(lines):
        length = prober.size[axis]
        period = min(length, _TEETH * math.ceil(max(abs(line.scale), 1)))
        teeth = (np.where(np.arange(length) % period == phase, 127, 0) for phase in range(period))
        columns = [prober.line_response(axis, 128 + t) - prober.line_response(axis, 128 - t) for t in teeth]
        responses = np.stack(columns, axis=1) / 254  # output pixel, phase
        centre = line.scale * (np.arange(len(responses))[:, None] + 0.5) + line.shift - 0.5
        phases = np.arange(period)
        nearest = (phases + period * np.rint((centre - phases) / period)).astype(int)
        inside = (nearest >= 0) & (nearest < length)
        matrices.append(np.zeros((len(responses), length)))
        np.add.at(matrices[-1], (np.nonzero(inside)[0], nearest[inside]), responses[inside])
    return Separable(*matrices)

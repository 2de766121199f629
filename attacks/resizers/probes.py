"""Test pictures for a black box: where its pixels look, whether it is linear, and its weights."""

import math
from dataclasses import dataclass

import numpy as np

from attacks.resizers.black_box import PipelineProbe, Values
from attacks.resizers.hiding import rms
from attacks.resizers.separable import Separable

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
    """Where the output pixels of one axis look: pixel q of the window at `scale` (q + 1/2) + `shift` source pixels
    from the edge."""

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
        """A picture that varies along one axis (0: from row to row) alone -> the mean profile of the result."""
        grey = self.levels(np.broadcast_to(line[:, None] if axis == 0 else line, self.size))
        profile: np.ndarray = grey.mean(axis=(1 - axis, 2))
        return profile

    def noise(self, low: int, high: int, seed: int) -> np.ndarray:
        """Colour noise (H,W,3), levels `low` to `high`, equally likely."""
        return np.random.default_rng(seed).integers(low, high + 1, (*self.size, 3), dtype=np.uint8)


def fit_line(prober: Prober, axis: int) -> ProbeLine:
    """Fit where the output pixels look along an axis, from three ramps.

    A ramp over the whole axis gives the place of each output pixel to within some pixels, ramps of one level a pixel,
    which repeat, to a fraction of one: the mean place of what a pixel reads, if its weights add up to 1. The outer
    tenths, where kernels are cut off, are left out.
    """
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
    """The energy of noise after the box over that before it, times source pixels per output pixel: 1 if an output
    pixel is the mean of all pixels of its area, the area if it is a copy of one."""
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
    """The matrices of the two axes, from the responses to combs: bright or dark lines on grey, a few pixels apart.

    Each is a central difference, so it is also the slope of a box that is not linear. A comb's teeth are so far apart
    that an output pixel reads at most one, the nearest. Weights are exact to `MEASURED`.
    """
    matrices = []
    for axis, line in enumerate(lines):
        length = prober.size[axis]
        period = min(length, _TEETH * math.ceil(max(abs(line.scale), 1)))
        columns = []
        for phase in range(period):
            tooth = np.where(np.arange(length) % period == phase, 127, 0)
            columns.append((prober.line_response(axis, 128 + tooth) - prober.line_response(axis, 128 - tooth)) / 254)
        responses = np.stack(columns, axis=1)  # output pixel, phase
        count = len(responses)
        centre = line.scale * (np.arange(count)[:, None] + 0.5) + line.shift - 0.5
        phases = np.arange(period)
        nearest = (phases + period * np.rint((centre - phases) / period)).astype(int)
        inside = (nearest >= 0) & (nearest < length)
        matrix = np.zeros((count, length))
        np.add.at(matrix, (np.nonzero(inside)[0], nearest[inside]), responses[inside])
        matrices.append(matrix)
    return Separable(*matrices)

"""What printer, paper and light did to known colours, beside the scene round them: a polynomial in linear light.

Fitted to the swatches of the card, it is the `printer.colour` of a next run: a texture that is optimised through it
is optimised for this printer, in this light. There it changes the patch and not the scene, so it must not hold what
the camera did to both: exposure and white balance are measured on the scene, and taken out. Monomials are in the
order of `transforms.colour.lut.powers`: 1, r, g, b, r^2, rg, rb, g^2, gb, b^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Box, Card
from attacks.physical.detect import LIGHT
from attacks.physical.rectify import project, rectified, visible
from attacks.runtime.extras import extra
from transforms.colour.lut import powers

Floats = NDArray[np.float64]
#: The part of a swatch that is measured, along each axis: its edges mix with what is beside it.
MIDDLE = 0.6
#: Pixels along each axis to which a swatch's middle is brought.
PIXELS = 24
#: From this level on, in more than this share of a swatch's pixels, a channel counts as saturated: the sensor's noise
#: has been cut off, and the median no longer says how bright it was.
FULL, SHARE = 253, 0.1
#: Cells along the longer side of the run's picture, by which a photograph is compared with it; so many are enough.
CELLS, ENOUGH = 64, 150
#: Below this level a ratio of light is noise.
DARK = 40
#: So far round the card, as a share of its shorter side, is left out too: blur, its shadow, paper left on.
BESIDE = 0.1
#: Where scene and picture are the same, the middle half of the ratios spans at most so many stops, and the logarithms
#: of both correlate at least so much. Of 42 simulated photographs (light that falls off by up to 0.3 stops, tone
#: curves of 0.8 to 1.2) the worst had 0.73 and 0.75; of 252 pairs with another scene's picture none had more than
#: 0.22, though some flat ones spanned 0.55 stops.
ALIKE, SAME = 1.0, 0.5
#: Swatches that a fit of each degree needs; it has 4 or 10 unknowns a channel.
LEAST = {1: 8, 2: 16}
#: The weight of staying near the colours as they are; it decides only what the swatches leave open.
RIDGE = 1e-5


@dataclass(frozen=True, eq=False)
class Swatches:
    """Swatches as photographed: `light` (S,3) linear, in order of the card's chart, and where it can be trusted,
    (S,3): a swatch that the photograph does not show whole is trusted nowhere, one that is saturated not in that
    channel."""

    light: Floats
    trusted: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ColourFit:
    """A map of colours in linear light: `coefficients` (3,K). `before` and `after` are mean differences of colour
    (CIEDE2000) between the swatches as photographed and as asked for, and as predicted from the other swatches."""

    degree: int
    coefficients: Floats
    swatches: int
    before: float
    after: float

    def to_dict(self) -> dict[str, Any]:
        """The content of a colour file."""
        rows = self.coefficients.tolist()
        return {"schema": 1, "kind": "polynomial", "degree": self.degree, "coefficients": rows, "light": "linear"}


def nominal(card: Card) -> Floats:
    """The swatches' colours as they were sent to the printer, (S,3) linear."""
    return np.asarray(LIGHT[np.array([swatch.colour for swatch in card.chart])], np.float64)


def measure_swatches(photo: NDArray[np.uint8], homography: Floats, card: Card) -> Swatches:
    """The median of the middle of each swatch, in linear light."""
    height, width = photo.shape[:2]
    light, trusted = np.zeros((len(card.chart), 3)), np.zeros((len(card.chart), 3), bool)
    for row, swatch in enumerate(card.chart):
        x, y = project(homography, np.array(swatch.box.corners)).T
        if x.min() < 0 or y.min() < 0 or x.max() > width - 1 or y.max() > height - 1:
            continue
        # About this part's own neighbourhood, so that a large photograph is not looked through for each swatch.
        left, top = int(x.min()), int(y.min())
        part = photo[top : int(y.max()) + 2, left : int(x.max()) + 2]
        shift = np.array([[1.0, 0, -left], [0, 1, -top], [0, 0, 1]])
        middle = rectified(part, shift @ homography, _middle(swatch.box), (PIXELS, PIXELS)).reshape(-1, 3)
        light[row] = LIGHT[np.rint(np.median(middle, axis=0)).astype(int)]
        trusted[row] = (middle >= FULL).mean(0) <= SHARE
    return Swatches(light, trusted)


def gains(
    photo: NDArray[np.uint8], picture: NDArray[np.uint8], scene: Floats, card: Card, homography: Floats
) -> Floats | None:
    """How much more light a photograph has of the scene round the card than the run's picture of it, in each channel
    (3,): what exposure and white balance did to the card as well. None where too little of the scene can be compared,
    or it is not the picture's.

    The median of ratios in linear light, on a coarse grid of the picture. A cell's mean is that of the files' values:
    they follow a power of light, so a gain of light is one of the mean.

    Args:
        picture: the run's, without the card.
        scene: from the picture's pixels, 0 its edge, to the photograph's, a centre a whole number.
        homography: from mm of the card to the photograph's pixels.
    """
    height, width = picture.shape[:2]
    whole = Box(0, 0, width, height)
    if not visible(scene, whole.corners):
        return None
    scale = min(1.0, CELLS / max(height, width))
    rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
    edge = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
    known = rectified(picture, edge, whole, (rows, columns))
    seen = rectified(photo, scene, whole, (rows, columns))
    x, y = np.meshgrid(np.linspace(0, width, columns + 1), np.linspace(0, height, rows + 1))
    points = project(scene, np.stack([x, y], -1))  # the cells' corners
    shown = _cells(((points >= 0) & (points <= [photo.shape[1] - 1, photo.shape[0] - 1])).all(-1))
    back = np.asarray(np.linalg.inv(homography), np.float64)
    at, margin = project(back, points), BESIDE * min(card.width, card.height)
    shown &= _cells(((at < -margin) | (at > np.array([card.width, card.height]) + margin)).any(-1))
    result = np.ones(3)
    for channel in range(3):
        levels = np.stack([known[..., channel], seen[..., channel]])
        use = shown & ((levels >= DARK) & (levels < FULL)).all(0)
        if use.sum() < ENOUGH:
            return None
        before, after = np.log2(LIGHT[levels[:, use]].astype(np.float64))
        low, middle, high = np.quantile(after - before, [0.25, 0.5, 0.75])
        common = np.mean((before - before.mean()) * (after - after.mean()))
        alike = common / (before.std() * after.std() + 1e-4)  # of one colour alone nothing follows
        if not (high - low <= ALIKE and alike >= SAME):
            return None
        result[channel] = 2**middle
    return result


def _cells(corners: Any) -> NDArray[np.bool_]:
    """(R+1,C+1) -> (R,C): the cells of which it is true at all corners."""
    true = np.asarray(corners, bool)
    return np.asarray(true[:-1, :-1] & true[1:, :-1] & true[:-1, 1:] & true[1:, 1:])


def _middle(box: Box) -> Box:
    cut = (1 - MIDDLE) / 2
    return Box(box.x + cut * box.width, box.y + cut * box.height, MIDDLE * box.width, MIDDLE * box.height)


def pooled(measured: Sequence[Swatches], known: Sequence[Floats | None]) -> tuple[Swatches, Floats]:
    """Several photographs of one card as one, and the gain of each (P,3): swatch by swatch the median over
    photographs, each first divided by its gain.

    Args:
        known: of each photograph what `gains` says. Where that is None, its chart is brought to those of the others;
            where all are, to the median photograph's, so that what all have in common stays in the colours.
    """
    light, trusted = (np.stack([getattr(each, name) for each in measured]) for name in ("light", "trusted"))
    bright = trusted & (light > LIGHT[40])  # in the dark a ratio is noise
    masked = np.where(bright, light, np.nan)
    charts = np.ones(len(light))
    for _ in range(3):
        common = _median(masked / charts[:, None, None], 0)
        off = (masked / charts[:, None, None] / common).reshape(len(light), -1)
        charts *= np.nan_to_num(_median(off, 1), nan=1.0)
    gain = np.repeat(charts[:, None] / np.median(charts), 3, 1)
    sure = [i for i, gain in enumerate(known) if gain is not None]
    if sure:
        scene = np.array([known[i] for i in sure], np.float64)
        gain *= np.median(scene / gain[sure], 0)
        gain[sure] = scene
    common = _median(np.where(trusted, light, np.nan) / gain[:, None], 0)
    return Swatches(np.nan_to_num(common), np.asarray(trusted.any(0))), gain


def _median(values: Floats, axis: int) -> Floats:
    """The median of what is not NaN; NaN where nothing is."""
    empty = np.asarray(np.isnan(values).all(axis, keepdims=True))
    median = np.asarray(np.nanmedian(np.where(empty, 0.0, values), axis, keepdims=True))
    return np.asarray(np.where(empty, np.nan, median).squeeze(axis))


def fit(source: Floats, measured: Swatches) -> ColourFit:
    """Fit the map from `source` (S,3), linear, to what was measured. Degree 1 or 2, whichever predicts swatches that
    it has not seen with the smaller difference of colour; `after` is that difference.

    Raises:
        ValueError: too few swatches.
    """
    count = int(measured.trusted.sum(0).min())
    degrees = [degree for degree, least in LEAST.items() if count >= least]
    if not degrees:
        raise ValueError(
            f"`swatches` must be at least {LEAST[1]} that the photograph shows whole and not saturated, in every "
            f"channel; found {count} (less light, or the whole card in the picture)"
        )
    # Only in all three channels is there a colour to compare.
    whole = measured.trusted.all(1)
    rows = np.flatnonzero(whole) if whole.any() else np.arange(len(source))
    held_out = {degree: _held_out(source, measured, degree, rows) for degree in degrees}
    error = {d: float(difference(light, measured.light[rows]).mean()) for d, light in held_out.items()}
    best = min(degrees, key=lambda degree: error[degree])
    return ColourFit(
        degree=best,
        coefficients=solved(source, measured, best),
        swatches=len(rows),
        before=float(difference(source[rows], measured.light[rows]).mean()),
        after=error[best],
    )


def _held_out(source: Floats, measured: Swatches, degree: int, rows: NDArray[np.intp]) -> Floats:
    """Each of these swatches as predicted from all others."""
    predictions = []
    for row in rows:
        trusted = measured.trusted.copy()
        trusted[row] = False
        coefficients = solved(source, Swatches(measured.light, trusted), degree)
        predictions.append(terms(source[row : row + 1], degree) @ coefficients.T)
    return np.concatenate(predictions)


def solved(source: Floats, measured: Swatches, degree: int) -> Floats:
    """The coefficients (3,K): least squares, each channel from the swatches that can be trusted in it. An error in
    the dark weighs more, as the eye has it: lightness goes with the cube root of light."""
    rows = terms(source, degree)
    same = np.zeros((3, rows.shape[1]))
    same[[0, 1, 2], [1, 2, 3]] = 1.0  # the colours as they are
    coefficients = same.copy()
    for channel in range(3):
        use = measured.trusted[:, channel]
        weight = (np.clip(measured.light[use, channel], 0, None) + 0.02) ** (-2 / 3)
        a = rows[use] * weight[:, None]
        b = measured.light[use, channel] * weight - a @ same[channel]
        size = np.trace(a.T @ a) / a.shape[1]
        coefficients[channel] += np.linalg.solve(a.T @ a + RIDGE * size * np.eye(a.shape[1]), a.T @ b)
    return coefficients


def terms(light: Floats, degree: int) -> Floats:
    """(S,3) -> (S,K), in the order of `transforms.colour.lut.powers`."""
    return np.stack([np.prod([light[:, i] for i in p], axis=0) * np.ones(len(light)) for p in powers(degree)], 1)


def difference(light: Floats, other: Floats) -> Floats:
    """CIEDE2000 between linear colours (S,3), clipped to [0,1] -> (S,). 1 is about the least that an eye sees."""
    colour = extra("skimage.color")
    lab = [colour.rgb2lab(_encoded(np.clip(each, 0, 1))[None])[0] for each in (light, other)]
    return np.asarray(colour.deltaE_ciede2000(*lab), np.float64)


def _encoded(light: Floats) -> Floats:
    return np.where(light > 0.0031308, 1.055 * np.maximum(light, 1e-12) ** (1 / 2.4) - 0.055, light * 12.92)

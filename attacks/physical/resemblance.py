"""How a rectified patch and the chart beside it compare with what was printed: correlation, hidden parts, and whether
the colours are those of ink."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Box, Card
from attacks.physical.colour_fit import Swatches, colour_terms, fit_degrees, least_squares_map, nominal
from attacks.physical.detect import LIGHT, Bytes, Floats
from attacks.runtime.extras import extra

#: Cells along each side of the patch that are compared, and along each side of the window round each.
GRID, WINDOW = 32, 3
#: The fewest places that the run declares as hidden that are compared: one or two may look alike by chance.
PLACES = 10
#: The least correlation of a patch with the print that it shows.
CORRELATION = 0.7
#: A place whose window differs by more than this from the print (mean of the channels, of full scale) is hidden.
DIFFERENT = 0.18
#: So is one whose print varies more than the first (standard deviation, of full scale) and correlates with it less
#: than the second; or than the third, if the photograph varies there less than the fourth of the print (variance).
VARIES, UNLIKE, STRUCTURE, FLAT = 0.05, 0.2, 0.5, 0.5
#: The largest share of the patch that may be hidden; as much of it, where it differs most, is not correlated.
MAX_HIDDEN_SHARE = 0.1
#: A hidden place at least this light, and lighter than it should be, is glare.
LIGHTEST = 0.8
#: Keeps the correlation of flat pictures small: a mean square of full scale.
EPSILON = 2e-6
#: Swatches of each channel that show the purity.
PURITY_SWATCHES = 6


@dataclass(frozen=True)
class Resemblance:
    """Of a patch in a photograph: its `correlation` with its own texture, but for the tenth that differs most; what
    correlates `better`, in words, and by `CORRELATION` or more ("": nothing); and the shares of it that are
    `hidden_share`, under `glare`, and `cut` off by the photograph's edge. Of what the run declares as hidden nothing
    counts, but that so much of it is not there (`missing_share`)."""

    correlation: float
    better: str
    hidden_share: float
    glare: float
    cut: float
    missing_share: float = 0.0


def correlation(a: Floats, b: Floats) -> float:
    """The normalised correlation of the cells (n,3) of two pictures, without the mean of each channel."""
    a, b = (cells - cells.mean(0) for cells in (a, b))
    return float((a * b).sum() / (math.sqrt(float((a**2).sum() * (b**2).sum())) + EPSILON * a.size))


def expected_look(texture: NDArray[np.float32], swatches: Swatches, card: Card) -> Floats:
    """A texture as the photograph should show it, (GRID,GRID,3) encoded in [0,1]: its light, mapped by a fit to the
    chart of the same photograph."""
    light = LIGHT[np.rint(texture).astype(np.uint8)].astype(np.float64)
    degrees = fit_degrees(swatches)
    if degrees:
        coefficients = least_squares_map(nominal(card), swatches, degrees[-1])
        light = (colour_terms(light.reshape(-1, 3), degrees[-1]) @ coefficients.T).reshape(light.shape)
    return _coarse(light)


def _coarse(light: NDArray[Any]) -> Floats:
    """Light (h,w,3) on the grid, encoded."""
    cv2 = extra("cv2")
    kernel = cv2.INTER_AREA if min(light.shape[:2]) >= GRID else cv2.INTER_LINEAR
    grid = cv2.resize(np.asarray(light, np.float32), (GRID, GRID), interpolation=kernel)
    return np.asarray(np.clip(grid, 0, 1), np.float64) ** (1 / 2.2)


def cell_centres(box: Box) -> Floats:
    """The middles (GRID,GRID,2) of the cells of the grid over a box."""
    at = (np.arange(GRID) + 0.5) / GRID
    return np.stack(np.meshgrid(box.x + at * box.width, box.y + at * box.height), -1)


def cells_inside(to_pixels: Callable[[Any], Floats], box: Box, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Which cells (GRID,GRID) over a box, mapped by `to_pixels`, lie in a photograph of `size` (height, width)."""
    points = to_pixels(cell_centres(box))
    return np.asarray(((points >= 0) & (points <= [size[1] - 1, size[0] - 1])).all(-1))


@dataclass(frozen=True, eq=False)
class HiddenPart:
    """What the run declares as hidden: which `cells` of the patch (GRID,GRID), how what hides them looks, encoded
    (None: not known), and which `swatches` (S,1)."""

    cells: NDArray[np.bool_] | bool = False
    look: Floats | None = None
    swatches: NDArray[np.bool_] | bool = False


def resemblance(
    patch: Bytes,
    inside: NDArray[np.bool_],
    looks: Mapping[str, Floats],
    arm: str,
    hidden_part: HiddenPart = HiddenPart(),
    slack: int = 0,
) -> Resemblance:
    """Compare a rectified patch with what was printed.

    Args:
        inside: see `cells_inside`.
        looks: of each arm of the run, see `expected_look`.
        arm: that which the photograph should show.
        slack: cells by which a place may lie off; it is hidden where it is like none of those.
    """
    region = np.full_like(inside, hidden_part.cells)
    compared_cells = inside & (extra("cv2").dilate(np.uint8(region), np.ones((WINDOW, WINDOW))) == 0)
    windows, behind = (_windows(cells).all((2, 3)) for cells in (compared_cells, inside & region))
    if not windows.any():
        return Resemblance(0.0, "", 0.0, 0.0, float(1 - inside.mean()))
    photo, reference = _coarse(LIGHT[patch]), looks[arm]
    rivals = {f"the patch of the arm {name}": look for name, look in looks.items() if name != arm}
    for i in range(1, 8):
        words = ("mirrored" if i > 3 else "", f"turned by {90 * (i % 4)} degrees" if i % 4 else "")  # clockwise
        rotation = np.rot90(reference[:, ::-1] if i > 3 else reference, -(i % 4))
        rivals[f"its patch {' and '.join(filter(None, words))}"] = rotation
    values = {name: _likeness(photo, look, compared_cells) for name, look in ({"": reference} | rivals).items()}
    best = max(values, key=lambda name: values[name])
    better = best if values[best] >= CORRELATION else ""
    photo_windows, reference_windows = _windows(photo), _windows(reference)
    off = photo_windows - reference_windows
    differing = _differences(photo_windows, reference_windows)
    for step in product(range(-slack, slack + 1), repeat=2):
        differing = differing & _differences(photo_windows, np.roll(reference_windows, step, (0, 1)))
    hidden_cells = windows & differing
    glare = hidden_cells & (photo_windows.mean((2, 3, 4)) > LIGHTEST) & (off.mean((2, 3, 4)) > 0)
    hidden_share, glare_share = (float(cells.sum()) / int(windows.sum()) for cells in (hidden_cells, glare))
    distinct = reference_windows.var((3, 4)).mean(2) > VARIES**2  # a flat place may look as what stands before it
    if hidden_part.look is not None:
        distinct |= np.abs(_windows(hidden_part.look) - reference_windows).mean((2, 3, 4)) > DIFFERENT
    behind &= distinct
    missing_share = float((behind & ~differing).sum()) / int(behind.sum()) if behind.sum() >= PLACES else 0.0
    return Resemblance(values[""], better, hidden_share, glare_share, float(1 - inside.mean()), missing_share)


def _windows(cells: NDArray[Any]) -> NDArray[Any]:
    return np.lib.stride_tricks.sliding_window_view(cells, (WINDOW, WINDOW), (0, 1))


def _likeness(photo: Floats, look: Floats, inside: NDArray[np.bool_]) -> float:
    """The correlation of the places of a patch but those that differ most: glare would outweigh all others."""
    off = extra("cv2").blur(np.abs(photo - look).mean(2), (WINDOW, WINDOW))
    use = inside & (off <= np.quantile(off[inside], 1 - MAX_HIDDEN_SHARE))
    return correlation(photo[use], look[use])


def _differences(photo: Floats, reference: Floats) -> NDArray[np.bool_]:
    """Which windows show something else than the print."""
    a, b = (windows - windows.mean((3, 4), keepdims=True) for windows in (photo, reference))
    product, first, second = ((x * y).mean((2, 3, 4)) for x, y in ((a, b), (a, a), (b, b)))
    alike = np.where(second > VARIES**2, product / np.sqrt(first * second + 1e-12), 1.0)
    different = np.abs(photo - reference).mean((2, 3, 4)) > DIFFERENT
    return np.asarray(different | (alike < np.where(first < FLAT * second, STRUCTURE, UNLIKE)))


def purity(swatches: Swatches, card: Card) -> float | None:
    """The light of a pure colour in its own channel relative to white, from a fit to the whole chart: 1 on a screen,
    less with ink, because no ink lets all of its own colour through. None where too little of the chart can be used.

    In each channel the swatches with that channel at 128 or 255 follow a level each, a gradient of light over the
    card that all channels share, and a loss by the ink of the other two channels, in logarithms.
    """
    colours = np.array([swatch.colour for swatch in card.chart], np.float64) / 255
    middles = np.array([[item.box.x + item.box.width / 2, item.box.y + item.box.height / 2] for item in card.chart])
    middles = middles / [card.width, card.height] - 0.5
    rows, values = [], []
    for channel in range(3):
        levels = np.isclose(colours[:, channel, None], (128 / 255, 1.0), atol=0.01)
        use = swatches.valid[:, channel] & (swatches.light[:, channel] > LIGHT[8]) & levels.any(1)
        if use.sum() < PURITY_SWATCHES:
            return None
        features = np.zeros((len(colours), 11))
        features[:, channel] = 1 - np.delete(colours, channel, 1).mean(1)
        features[:, 3 + 2 * channel : 5 + 2 * channel] = levels  # one may be saturated in all swatches
        features[:, 9:] = middles
        rows.append(features[use])
        values.append(np.log(swatches.light[use, channel]))
    design, target = np.concatenate(rows), np.concatenate(values)
    weight = np.ones(len(target))
    for _ in range(8):  # least absolute deviations: a covered swatch does not count
        solution = np.linalg.lstsq(design * weight[:, None], target * weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.abs(target - design @ solution) + 0.02)
    return math.exp(float(solution[:3].mean()))

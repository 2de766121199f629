"""A colour chart alone, printed and photographed before anything is optimised: it gives a printer."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import GAP, Box, Card, Swatch, card
from attacks.perturbations.patch.card_raster import WHITE
from attacks.physical import colour_fit, rectify
from attacks.physical.colour_fit import ColourFit, Swatches
from attacks.physical.detect import detect
from attacks.physical.paper import Plan, plan
from attacks.physical.photos import read_photo
from attacks.physical.sheet import write_sheets
from attacks.runtime.files import write_json

#: The grid's side in mm and in swatches, and the levels of its colours.
SIDE, CELLS, LEVELS = 130.0, 12, (0, 64, 128, 191, 255)
#: One cell in so many is white, from that with the number `FIRST` on: four columns of them, in all rows.
PERIOD, FIRST = 9, 4
#: The light of unprinted paper: lightness 95, as ISO 12647-2 has it for coated paper.
PAPER = 0.876
#: Fewest white swatches that are not saturated.
WHITES = 8


def chart_card() -> Card:
    """The chart: a card with a grid of 144 swatches where its patch would be."""
    bare = card(SIDE, SIDE, "colour chart")
    colours = list(itertools.product(LEVELS, LEVELS, LEVELS))
    colours = [colours[i * 47 % len(colours)] for i in range(len(colours))]  # so that neighbours differ
    rest = iter([*colours, *((v, v, v) for v in (32, 96, 160))])
    step = SIDE / CELLS
    grid = []
    for i in range(CELLS**2):
        x, y = bare.patch.x + (i % CELLS + GAP / 2) * step, bare.patch.y + (i // CELLS + GAP / 2) * step
        colour = (WHITE, WHITE, WHITE) if i % PERIOD == FIRST else next(rest)
        grid.append(Swatch(colour, Box(x, y, (1 - GAP) * step, (1 - GAP) * step)))
    return replace(bare, chart=(*bare.chart, *grid))


def write_chart(folder: Path, paper: str = "a4", dpi: int = 300) -> Plan:
    """Write the sheet of the chart: sheet.pdf, sheet.png and card.png."""
    sheets = plan(chart_card(), paper, dpi)
    write_sheets(folder, sheets, np.full((1, 1, 3), WHITE, np.float32))
    return sheets


def measured_printer(photos: Sequence[Path], out: Path) -> ColourFit:
    """Fit the printer to photographs of its chart, and write it for `printer=measured`. Raises ValueError or OSError
    in one line, with the photograph."""
    chart, swatches = chart_card(), []
    for path in photos:
        try:
            swatches.append(_reflectance(read_photo(path), chart))
        except ValueError as error:
            raise ValueError(f"`--chart {path}`: {error}") from None
    light, _ = colour_fit.pool(swatches, [np.ones(3)] * len(swatches))
    colour_map = colour_fit.fit_colours(colour_fit.nominal(chart), light)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, colour_map.to_dict())
    return colour_map


def _reflectance(photo: NDArray[np.uint8], chart: Card) -> Swatches:
    """The light of each swatch as if the paper reflected `PAPER` everywhere. Raises ValueError."""
    tags = detect(photo, chart).corners
    if len(tags) < len(chart.tags):
        raise ValueError(f"{len(tags)} of the chart's 4 fiducials found: the whole chart, sharp, and from the front")
    swatches = colour_fit.measure_swatches(photo, rectify.fit_homography(chart, tags).homography, chart)
    boxes = [swatch.box for swatch in chart.chart]
    at = np.array([[1, box.x + box.width / 2, box.y + box.height / 2] for box in boxes])
    white = np.array([swatch.colour == (WHITE,) * 3 for swatch in chart.chart]) & swatches.valid.all(1)
    if white.sum() < WHITES:
        raise ValueError(f"{white.sum()} white swatches are not saturated, {WHITES} are needed: less exposure")
    plane, *_ = np.linalg.lstsq(at[white], np.log(swatches.light[white]), rcond=None)
    return Swatches(PAPER * swatches.light / np.exp(at @ plane), swatches.valid)

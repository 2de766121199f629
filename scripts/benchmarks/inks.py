"""How well success is predicted for inks that the attack has not assumed, and what a family of inks is worth.

The simulated inks share no code with the attack's printers: layers of dye that absorb (Beer's law) with dot gain, in
numpy, after `attacks.physical.simulation.camera.printed`; the attack's are halftones. The ranges of `printer=family`
were set on none of them (see `attacks.perturbations.patch.inks.Inks`).
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from attacks import EOT, InfoNCE, solve
from attacks.data.images import to_bytes
from attacks.eot.bank import bank
from attacks.evaluation.judge import Judge
from attacks.experiment.build.parts import build
from attacks.experiment.build.patch import patch_id
from attacks.perturbations.patch.card import Card, card, words_of
from attacks.perturbations.patch.card_raster import card_picture
from attacks.physical.chart import PAPER, chart_card, measured_printer
from attacks.physical.colour_fit import difference, terms
from attacks.physical.photo_measure import PhotoMeasurement, measure_photo
from attacks.physical.photos import Photo
from attacks.physical.prediction import Prediction, predicted
from attacks.physical.recognition import Expected
from attacks.physical.score import judge_of, judge_photos, scored
from attacks.physical.scoring import colours_of
from attacks.physical.simulation.camera import INKS, Pixels, filed, printed, to_light
from attacks.physical.simulation.photographs import photograph
from attacks.physical.simulation.shots import Ranges, draw
from attacks.physical.views import PlacementRecord, Rerun
from attacks.run import compose
from transforms import Shown, stream

from .table import Row, Table

#: Of a patch in mm, of its raster in dots an inch, and of a photograph in pixels.
MM, DPI, SIZE = 100.0, 120, (480, 640)
QUAD = ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75))
COMMON = ("perturbation.card=true", f"perturbation.width_mm={MM:g}", "sanity=none")
PRINTERS = {"generic": ("printer=generic", "perturbation.gamut=generic"), "family": ("printer=family",)}
Bytes = NDArray[np.uint8]
#: From an 8-bit raster to the light of its print.
Print = Callable[[Bytes], Pixels]


@dataclass(frozen=True)
class Ink:
    """An ink and its paper.

    Args:
        paper: the light that it reflects, of red, green and blue.
        densest: the density of one dye in full.
        gain: of dots at half coverage.
        impurity: of the dyes, 1 as the simulator's own.
        amounts: of cyan, magenta and yellow, against full.
    """

    paper: tuple[float, float, float]
    densest: float
    gain: float
    impurity: float = 1.0
    amounts: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __call__(self, raster: Bytes) -> Pixels:
        """The light of a printed 8-bit raster (h,w,3)."""
        cover = 1 - to_light(raster / np.float32(255))
        cover = np.clip(cover + 4 * self.gain * cover * (1 - cover), 0, 1)
        density = -np.log10(1 - cover * (1 - 10**-self.densest)) * np.asarray(self.amounts)
        absorbed = np.eye(3) + self.impurity * (np.asarray(INKS) - np.eye(3))
        return np.asarray(np.asarray(self.paper) * 10 ** -(density @ absorbed.T), np.float32)


#: Held out: neither the attack's printers nor the ranges of the family were set on them.
HELD_OUT = {
    "laser, office paper": Ink((0.80, 0.82, 0.84), 1.4, 0.14),
    "inkjet, uncoated": Ink((0.84, 0.83, 0.78), 1.15, 0.18, 1.6),
    "draft mode": Ink((0.85, 0.85, 0.83), 0.65, 0.0, 1.2),
    "newsprint": Ink((0.58, 0.56, 0.50), 0.85, 0.2, 1.8),
    "cyan runs out": Ink((0.86, 0.86, 0.84), 1.3, 0.1, 1.0, (0.3, 1.0, 1.0)),
}
#: The simulator's own, as in docs/simulate_photographs.md, which `printer=generic` is meant for; then the others.
OWN = "generic ink"
PRINTS: dict[str, Print] = {OWN: partial(printed, strength=1.0), **HELD_OUT}


@dataclass(frozen=True, eq=False)
class Attacked:
    """A run without its files: its parts, its judge, and the 8-bit texture (3,h,w) that was made."""

    origin: Rerun
    judge: Judge
    texture: Tensor

    @property
    def card(self) -> Card:
        """The printed card."""
        return card(MM, MM, words_of(patch_id(self.origin.run), "eot"))

    @property
    def shown(self) -> Shown:
        """The run's picture with the patch."""
        parts = self.origin.parts
        return parts.perturbation.evaluated(parts.queries.images, self.texture[None])

    def digital(self) -> float:
        """Success on the held-out views, with the printer that the attack assumed."""
        run, views = self.origin.run, self.origin.parts.transforms
        held_out = bank(views, run.evaluate.views, seed=run.seed, purpose="evaluate")
        scores = scored(self.judge, self.shown, torch.arange(1), held_out._replace(u=held_out.u.float()))
        return float(scores.success.double().mean())


def attacked(printer: str, gradients: int, held_out: int) -> Attacked:
    """The patch of `patch_quickstart` with its card, for a printer of `PRINTERS`."""
    words = [*COMMON, *PRINTERS[printer], f"attack.gradients={gradients}", f"evaluate.views={held_out}"]
    run = compose("patch_quickstart", words)
    parts = build(run)
    judge = judge_of(parts)
    assert parts.goal is not None and isinstance(judge.gallery, Tensor)
    images, patch = parts.queries.images, parts.perturbation
    best = solve(
        images,
        parts.goal,
        encoder=parts.encoder,
        objective=InfoNCE(judge.gallery, targeted=True),
        perturbation=patch,
        optimiser=parts.optimiser,
        eot=EOT(parts.transforms, parts.draws, views=parts.views.each),
        steps=parts.views.steps,
        budget=parts.views.gradients,
        adaptive=parts.views.adaptive,
        seed=stream(run.seed, "inks", printer),
    )
    side = run.data.size
    texture = patch.quantise(best.delta, images)[0]
    placement = PlacementRecord(("scene",), (side, side), tuple(run.perturbation.size), ((QUAD,),), "target", True)
    return Attacked(Rerun(Path(), run, parts, {}, placement), judge, texture)


def photographed(case: Attacked, ink: Print, count: int) -> list[PhotoMeasurement]:
    """Photographs of the print in the run's scene, those that are scored."""
    laid, scene = case.card, to_bytes(case.origin.parts.queries.images[0])
    texture = to_bytes(case.texture).astype(np.float32)
    wanted = Expected(patch_id(case.origin.run), "eot", laid, {"eot": texture})
    light = ink(card_picture(laid, texture, DPI))
    measured = []
    for index in range(count):
        pixels = taken(scene, laid, light, np.random.default_rng((7, index)))
        photo = Photo(Path(), str(index), 0)
        try:
            each = measure_photo(photo, pixels, scene, wanted, None, case.origin.placement, "photo")
        except ValueError:
            continue
        measured += [each] if each.evidence.refusal is None else []
    return measured


def taken(scene: Bytes, laid: Card, light: Pixels, random: np.random.Generator) -> Bytes:
    """One photograph, as the file has it."""
    shot = draw(Ranges(), random)
    pixels = photograph(scene, QUAD, laid, light, DPI, shot, SIZE, random).pixels
    with Image.open(io.BytesIO(filed(pixels, shot.quality))) as opened:
        return np.asarray(opened.convert("RGB"))


@dataclass(frozen=True, eq=False)
class Outcome:
    """The share of photographs with success, their number, the prediction, and the colour difference before and
    after the fit."""

    success: float
    photos: int
    prediction: Prediction
    before: float
    after: float


def success(case: Attacked, measured: Sequence[PhotoMeasurement]) -> float:
    """The share of photographs that are taken for the target."""
    return float(judge_photos(case.judge, measured).success.double().mean())


def outcome(case: Attacked, ink: Print, photos: int) -> Outcome:
    """Photographs in an ink, and what they predict."""
    measured = photographed(case, ink, photos)
    fit = colours_of(measured, case.card).fit
    assert fit is not None
    prediction = predicted(case.origin, case.judge, case.shown, measured, fit)
    return Outcome(success(case, measured), len(measured), prediction, fit.before, fit.after)


def run(gradients: int = 800, photos: int = 100, held_out: int = 128) -> list[Table]:
    """Success that is predicted and scored on inks that the attack has not assumed; a patch for a family of inks; the
    printer of a photographed chart.

    Points are differences in per cent. `digital` is that of the ink that the attack assumed.
    """
    generic, family = (attacked(name, gradients, held_out) for name in PRINTERS)
    single = {name: outcome(generic, ink, photos) for name, ink in PRINTS.items()}
    broad = {name: success(family, photographed(family, ink, photos)) for name, ink in HELD_OUT.items()}
    return [_predictions(generic.digital(), single), _worth(single, broad), _charts()]


def _predictions(digital: float, single: Mapping[str, Outcome]) -> Table:
    rows: dict[str, Row] = {}
    for name, each in single.items():
        poses, measured = each.prediction.poses, each.prediction.printer["success"].mean
        assert poses is not None
        figures = (measured, poses["success"].mean, each.success)
        rows[name] = (
            *(100 * value for value in (digital, *figures)),
            100 * (digital - each.success),
            100 * (measured - each.success),
            each.before,
            each.after,
            float(each.photos),
        )
    columns = dict.fromkeys(("digital", "own printer", "and poses", "scored"), ".0f")
    columns |= {"off before": "+.0f", "off now": "+.0f", "dE2000": ".1f", "fitted": ".1f", "photos": ".0f"}
    held_out = [
        abs(float(row[5] or 0)) for name, row in rows.items() if name in HELD_OUT and not isinstance(row, str)
    ]
    note = f"held-out inks: off by {max(held_out):.0f} points at most"
    return Table("Success in %, of the patch for the generic ink", columns, rows, notes=(note,))


def _worth(single: Mapping[str, Outcome], broad: Mapping[str, float]) -> Table:
    rows: dict[str, Row] = {
        name: (100 * each.success, 100 * broad[name] if name in broad else None) for name, each in single.items()
    }
    own = single[OWN].success
    least, worst = min(single[name].success for name in HELD_OUT), min(broad.values())
    ratio = [f"{value / own:.2f}" if own else "-" for value in (least, worst)]
    note = f"worst held-out ink against the generic patch on its own ink: generic {ratio[0]}, family {ratio[1]}"
    columns = {"generic": ".0f", "family": ".0f"}
    return Table("Scored success in %, by the printer of the attack", columns, rows, notes=(note,))


def _charts(photos: int = 6) -> Table:
    """How near the printer of the photographed chart comes to the ink: mean CIEDE2000 over random colours, against
    the light that the ink reflects, relative to its paper. The camera's tone curve is in it."""
    laid, random = chart_card(), np.random.default_rng(0)
    raster = card_picture(laid, np.full((1, 1, 3), 255, np.float32), DPI)
    grey, asked = np.full((256, 256, 3), 128, np.uint8), random.integers(0, 256, (1, 500, 3)).astype(np.uint8)
    quad, rows = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)), dict[str, Row]()
    ranges = replace(
        Ranges(), degrees=(-8.0, 8.0), scale=(0.85, 0.95), shift=(-0.05, 0.05), stops=(-1.2, -0.6), jitter=0.05
    )
    with TemporaryDirectory() as folder:
        for name, ink in PRINTS.items():
            paths = [Path(folder) / f"{i}.jpg" for i in range(photos)]
            for path in paths:
                shot = draw(ranges, random)
                made = photograph(grey, quad, laid, ink(raster), DPI, shot, (960, 1280), random)
                path.write_bytes(filed(made.pixels, shot.quality))
            fit = measured_printer(paths, Path(folder) / "printer.json")
            true = (PAPER * ink(asked) / ink(np.full((1, 1, 3), 255, np.uint8)))[0].astype(np.float64)
            light = to_light(asked[0] / np.float32(255)).astype(np.float64)
            seen = terms(light, fit.degree) @ fit.coefficients.T
            rows[name] = (float(difference(light, true).mean()), float(difference(seen, true).mean()))
    columns = {"as asked": ".1f", "measured": ".1f"}
    return Table(f"dE2000 of the printer from {photos} photographs of its chart", columns, rows)

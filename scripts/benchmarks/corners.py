"""How exactly the card is located, and what each factor of hard photographs costs in scored success."""

import io
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.perturbations.patch.card import Card
from attacks.perturbations.patch.card_raster import card_picture
from attacks.physical.detect import detect, grey_of
from attacks.physical.rectify import fit, project
from attacks.physical.scoring import Photographs, score_photos
from attacks.physical.simulation import simulate
from attacks.physical.simulation.camera import filed, printed
from attacks.physical.simulation.photographs import photograph
from attacks.physical.simulation.shots import FACTORS, PINHOLE, PRESETS, Ranges, draw
from attacks.physical.surface import locate

from .card_kinds import ARMS, DPI, SOURCES, drawn, own_card
from .table import Row, Table

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]

#: Of a photograph in pixels, and the width of a patch in the pixels of which errors are given.
SIZE, WIDTH = (720, 960), 300
#: The ranges of each row: the default ones, a pinhole with one factor each, and all of them.
ROWS: dict[str, Ranges] = {
    "kind": PRESETS["kind"],
    "pinhole": Ranges(**PINHOLE),
    **{name: replace(Ranges(**PINHOLE), **more) for name, more in FACTORS.items()},
    "hard": PRESETS["hard"],
}
FIRST = ("kind", "pinhole", "lens", "curl", "hard")


def run(photos: int = 4, source: str = "table", of: tuple[str, ...] = FIRST) -> list[Table]:
    """Error of the patch's worst corner in simulated photographs, in pixels of a patch 300 px wide.

    Of the default ranges, of a pinhole camera, of it with a lens or a curled card, and of the preset hard. The first
    column is a homography fitted to the tags alone, for comparison. The limits of `attacks.physical.surface` were set
    on `--source limits`.
    """
    if wrong := [name for name in of if name not in ROWS]:
        raise ValueError(f"`of` must be some of {', '.join(ROWS)}; got {', '.join(wrong)}")
    rows = {name: _row(name, photos, source) for name in of}
    columns = {"found": ".0f", "of": ".0f", "plane, median": ".2f", "median": ".2f", "95 %": ".2f", "worst": ".2f"}
    columns |= {"flagged": ".0f", "others, 95 %": ".2f", "others, worst": ".2f", "ms": ".0f"}
    title = f"Worst corner of the patch, px of a patch {WIDTH} px wide; photographs of {SIZE[1]} x {SIZE[0]}"
    return [Table(title, columns, rows)]


def _row(name: str, photos: int, source: str) -> Row:
    errors, planes, flags, times = [], [], [], []
    for index in range(photos):
        random = np.random.default_rng((*name.encode(), index))
        pixels, card, true = _taken(source, ROWS[name], random)
        wide = np.linalg.norm(true - np.roll(true, -1, 0), axis=1).mean() / WIDTH
        tags, start = detect(pixels, card).own, time.process_time()
        try:
            found = locate(grey_of(pixels), card, tags)
        except ValueError:
            continue
        times.append(time.process_time() - start)
        off = found.surface.project(card.patch.corners) - true
        errors.append(np.linalg.norm(off, axis=1).max() / wide)
        flags.append(found.flagged)
        planes.append(_plane(card, tags, true) / wide)
    if not errors:
        return "none found"
    kept = np.array(errors)[~np.array(flags)]
    middle, high, worst = np.percentile(errors, [50, 95, 100])
    ends = np.percentile(kept, [95, 100]) if len(kept) else (None, None)
    figures = (len(errors), photos, np.median(planes), middle, high, worst, sum(flags), *ends, 1e3 * np.mean(times))
    return tuple(None if each is None else float(each) for each in figures)


def _taken(source: str, ranges: Ranges, random: np.random.Generator) -> tuple[NDArray[np.uint8], Card, Floats]:
    """A photograph, its card, and the true corners of the patch."""
    case = drawn(SOURCES[source], random)
    shot, card = draw(ranges, random), own_card(case)
    light = printed(card_picture(card, case.textures[ARMS[0]], DPI), case.strength)
    made = photograph(case.scene, case.quad, card, light, DPI, shot, SIZE, random)
    with Image.open(io.BytesIO(filed(made.pixels, shot.quality))) as opened:
        return np.asarray(opened.convert("RGB")), card, np.array(made.patch)


def _plane(card: Card, tags: Mapping[int, Floats], true: Floats) -> float:
    """The error of a homography; infinite where the tags do not lie on a plane."""
    try:
        return float(np.linalg.norm(project(fit(card, tags).homography, card.patch.corners) - true, axis=1).max())
    except ValueError:
        return float("inf")


def factors(run: str = "outputs/patch", photos: int = 12) -> list[Table]:
    """Scored success of a printed run in simulated photographs, by what is hard in them.

    Each row has photographs of the same seeds: of the default ranges, of a pinhole camera, of it with one factor, and
    with all of them.
    """
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, ranges in ROWS.items():
            taken, out = Path(folder) / f"{name} photos", Path(folder) / name
            simulate(Path(run), taken, photos, seed=1, size=SIZE, ranges=ranges)
            try:
                content = score_photos(Path(run), Photographs(taken), out=out).content
            except ValueError as error:
                rows[name] = str(error)[:60]
                continue
            seen = content["photographs"]
            flagged = sum(each["flagged"] for each in content["photos"])
            count = float(len(content["photos"]))
            success = seen["success"]
            ends = (success[key] for key in ("mean", "low", "high"))
            rows[name] = (count, float(photos), float(flagged), *ends, seen["cosine"]["mean"])
    columns = {"scored": ".0f", "of": ".0f", "flagged": ".0f", "success": ".2f", "low": ".2f", "high": ".2f"}
    return [Table(f"Success of {Path(run).name} in photographs", columns | {"cosine": ".2f"}, rows)]

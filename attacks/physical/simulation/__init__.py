"""Simulated photographs of a printed card in its scene: for tests, and to try the physical workflow without a
printer.

Light and geometry use numpy and OpenCV only, and share nothing with `transforms` but the definitions in its
docstrings.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from attacks.physical.photos import read_photo
from attacks.physical.simulation.camera import Pixels, encode_jpeg, print_raster
from attacks.physical.simulation.media import FIBRES, screen_light
from attacks.physical.simulation.photographs import MM, take_photograph
from attacks.physical.simulation.shots import MEDIA, Ranges, draw_shot
from attacks.physical.views import PrintRecord, read_placement, read_sheet
from attacks.runtime.files import write_bytes, write_json

__all__ = ["Ranges", "simulate"]


def simulate(
    run: Path,
    out: Path,
    count: int = 200,
    seed: int = 0,
    size: tuple[int, int] = (960, 1280),
    ranges: Ranges | None = None,
    ink: float = 1.0,
    medium: str | None = None,
) -> list[Path]:
    """Write `count` photographs of a run's printed card, `<picture>--0001.jpg` and so on, and `truth.json`.

    Photograph i depends on (seed, i) alone; one camera takes all of them. They cycle through the run's pictures, and
    through the quads of each.

    Args:
        run: a run of a patch, with what `viewproof print` made of it.
        out: a folder that is new or empty.
        size: (height, width).
        ink: 0 is an ideal printer, 1 a generic one; linear in between. A screen has none.
        medium: that shows the card, one of `shots.MEDIA`, which sets its ranges; None: the run's.

    Raises:
        ValueError, FileNotFoundError: a file is missing, or an argument out of range.
    """
    for name, value, low, high in (
        ("count", count, 1, 9999),
        ("seed", seed, 0, 2**63),
        ("size", min(size), 32, max(size)),
        ("size", max(size), 32, 8192),
        ("ink", ink, 0, 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"`{name}` must lie in {low}..{high}; got {value}")
    sheet, light, pictures, medium = _subject(run, ink, medium)
    ranges = dataclasses.replace(ranges or Ranges(), **MEDIA[medium])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"`{out}` must be a new or an empty folder: photographs that lie there would be scored too")
    out.mkdir(parents=True, exist_ok=True)
    records, files = [], []
    lens = float(np.random.default_rng(seed).uniform(*ranges.k1))  # all photographs are of one camera
    for index in range(count):
        picture, path, quads = pictures[index % len(pictures)]
        quad = index // len(pictures) % len(quads)
        rng = np.random.default_rng((seed, index))
        shot = dataclasses.replace(draw_shot(ranges, rng), k1=lens)
        shot_picture = take_photograph(read_photo(path), quads[quad], sheet.card, light, sheet.dpi, shot, size, rng)
        files.append(out / f"{picture.replace('/', '-')}--{index + 1:04d}.jpg")
        write_bytes(files[-1], encode_jpeg(shot_picture.pixels, shot.quality))
        corners = {f"{name}_px": getattr(shot_picture, name) for name in ("patch", "card", "tags", "scene")}
        names = {"file": files[-1].name, "picture": picture, "quad": quad}
        records.append({**names, **corners, "values": shot.to_dict()})
    truth = {
        "schema": 1,
        "id": sheet.id,
        "frame": "pixel centres are whole numbers; corners from the upper left, clockwise",
        "size": list(size),
        "view_px": [(size[1] - min(size)) / 2 - 0.5, (size[0] - min(size)) / 2 - 0.5, min(size)],  # left, top, side
        "seed": seed,
        "ink": ink,
        "medium": medium,
        "ranges": dataclasses.asdict(ranges),
        "photos": records,
    }
    write_json(out / "truth.json", truth)
    return files


def _subject(run: Path, strength: float, medium: str | None) -> tuple[PrintRecord, Pixels, list[Any], str]:
    """The print of a run, the light of its card, its pictures (name, file and quads of each), and the medium."""
    if not run.is_dir():
        raise FileNotFoundError(f"run directory `{run}` does not exist")
    if not (run / "placement.json").is_file():
        raise FileNotFoundError(
            f"`{run}` has no placement.json: is it the output of a run with `perturbation=patch`?"
        )
    sheet, raster = run / "print" / "sheet.json", run / "print" / "card.png"
    for path in (sheet, raster):
        if not path.is_file():
            raise FileNotFoundError(f"`{path}` is missing: run `viewproof print {run}` first")
    record, placement = read_sheet(sheet), read_placement(run)
    pairs, clean = zip(placement.pictures, placement.quads, strict=True), run / "pictures" / "clean"
    pictures = [(name, clean / f"{name}.png", quads) for name, quads in pairs]
    pixels = read_photo(raster)
    sides = zip(pixels.shape, (record.card.height, record.card.width), strict=False)
    if any(abs(side - length * record.dpi / MM) > 2 for side, length in sides):
        raise ValueError(f"`{raster}` has another size than in `{sheet}`: print the run again")
    medium = medium or placement.medium
    light = screen_light(pixels) if medium == "screen" else print_raster(pixels, strength)
    if medium == "cloth":
        light = np.float32(FIBRES) * light.max((0, 1)) + np.float32(1 - FIBRES) * light
    return record, light, pictures, medium

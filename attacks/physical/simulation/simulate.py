"""Simulated photographs of a printed card in its scene: for tests, and to try the physical workflow without a
printer. Light and geometry use numpy and OpenCV only, and share nothing with `transforms` but the definitions in its
docstrings."""

import dataclasses
from pathlib import Path

import cv2
import numpy as np

from attacks.perturbations.patch.physical_patch import PhysicalPatch
from attacks.physical.photos import read_photo
from attacks.physical.sheet import read_patch
from attacks.physical.simulation.camera import encode_jpeg, print_raster
from attacks.physical.simulation.media import FIBRES, screen_light
from attacks.physical.simulation.photographs import MM, take_photograph
from attacks.physical.simulation.shots import MEDIA, Pixels, Ranges, draw_shot, four_point_homography
from attacks.physical.views import PrintRecord, read_sheet
from attacks.runtime.files import write_bytes, write_json


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
    through the quads of each. Raises ValueError or FileNotFoundError for an argument out of range and a missing file.

    Args:
        run: a run of a patch, with what `viewproof print` made of it.
        out: a folder that is new or empty.
        size: (height, width).
        ink: 0 is an ideal printer, 1 a generic one; linear in between. A screen has none.
        medium: that shows the card, one of `shots.MEDIA`, which sets its ranges; None: the run's.
    """
    limits = [("count", count, 1, 9999), ("seed", seed, 0, 2**63), ("ink", ink, 0, 1)]
    for name, value, low, high in [*limits, *(("size", side, 32, 8192) for side in size)]:
        if not low <= value <= high:
            raise ValueError(f"`{name}` must lie in {low}..{high}; got {value}")
    patch, sheet, light, medium = _subject(run, ink, medium)
    ranges = dataclasses.replace(ranges or Ranges(), **MEDIA[medium])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"`{out}` must be a new or an empty folder: photographs that lie there would be scored too")
    out.mkdir(parents=True, exist_ok=True)
    records, files = [], []
    lens = float(np.random.default_rng(seed).uniform(*ranges.k1))  # all photographs are of one camera
    for index in range(count):
        row = index % len(patch.pictures)
        quads, picture = patch.quads[row], patch.pictures[row]
        path, quad = run / "pictures" / "clean" / f"{picture}.png", index // len(patch.pictures) % len(quads)
        card_light = behind(light, sheet, patch, row, quad)
        rng = np.random.default_rng((seed, index))
        shot = dataclasses.replace(draw_shot(ranges, rng), k1=lens)
        view = take_photograph(read_photo(path), quads[quad], sheet.card, card_light, sheet.dpi, shot, size, rng)
        files.append(out / f"{picture}--{index + 1:04d}.jpg")
        write_bytes(files[-1], encode_jpeg(view.pixels, shot.quality))
        entry = {"file": files[-1].name, "picture": picture, "quad": quad, "values": shot.to_dict()}
        records.append(entry | {f"{name}_px": getattr(view, name) for name in ("patch", "card", "tags", "scene")})
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


def behind(light: Pixels, sheet: PrintRecord, patch: PhysicalPatch, row: int, quad: int) -> Pixels:
    """The light of a card (h,w,3), and, if something may hide it at a quad of the patch in a picture, as a fourth
    channel the share of it that shows."""
    hiding = patch.hiding(row, quad)
    if hiding is None:
        return light
    corners = np.asarray(patch.quads[row][quad], np.float64) * patch.size[::-1]
    dots = np.asarray(sheet.card.patch.corners) * sheet.dpi / MM
    to_card = four_point_homography(corners - 0.5, dots - 0.5)
    extent, edge = (light.shape[1], light.shape[0]), cv2.BORDER_REPLICATE
    shows = cv2.warpPerspective((~hiding).astype(np.float32), to_card, extent, borderMode=edge)[..., None]
    return np.dstack([light, shows])


def _subject(run: Path, strength: float, medium: str | None) -> tuple[PhysicalPatch, PrintRecord, Pixels, str]:
    """The patch of a run, its print, the light of its card, and the medium."""
    if not run.is_dir():
        raise FileNotFoundError(f"run directory `{run}` does not exist")
    patch, sheet, raster = read_patch(run), run / "print" / "sheet.json", run / "print" / "card.png"
    if missing := [path for path in (sheet, raster) if not path.is_file()]:
        raise FileNotFoundError(f"`{missing[0]}` is missing: run `viewproof print {run}` first")
    record, pixels = read_sheet(sheet), read_photo(raster)
    sides = zip(pixels.shape, (record.card.height, record.card.width), strict=False)
    if any(abs(side - length * record.dpi / MM) > 2 for side, length in sides):
        raise ValueError(f"`{raster}` has another size than in `{sheet}`: print the run again")
    medium = medium or patch.medium
    light = screen_light(pixels) if medium == "screen" else print_raster(pixels, strength)
    if medium == "cloth":
        light = np.float32(FIBRES) * light.max((0, 1)) + np.float32(1 - FIBRES) * light
    return patch, record, light, medium

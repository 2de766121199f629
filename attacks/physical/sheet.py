"""The print of a run: what `viewproof print` writes."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from attacks.experiment.directory import read_json
from attacks.perturbations.patch import card_raster
from attacks.perturbations.patch.card import Card
from attacks.perturbations.patch.card_raster import INCH, WHITE, Picture, Texture
from attacks.perturbations.patch.physical_patch import PhysicalPatch, parse_physical_patch
from attacks.physical.paper import Page, Plan, draw_page, font_file, plan, write_pdf
from attacks.runtime.decoding import decoded
from attacks.runtime.files import atomic, sha256, write_json
from attacks.runtime.untrusted import refuse_links

#: Of zlib: half the time of the default, and 3 % more bytes.
FAST = 4
#: The arms whose patch can be printed, that of the attack first.
ARMS = ("eot", "no_eot", "one_view", "bare", "noise")
ANCHORS = {"start": "ls", "middle": "ms"}


@dataclass(frozen=True, eq=False)
class Subject:
    """The patch of a run, an arm's texture over white, and the digest of its file."""

    patch: PhysicalPatch
    texture: Texture
    sha256: str


def texture_file(run: Path, arm: str) -> Path:
    """The file of the texture of an arm. Raises ValueError for an arm that the run does not have."""
    path = run / "patch.png" if arm == ARMS[0] else run / "patches" / f"{arm}.png"
    if arm not in ARMS or not path.is_file():
        arms = [name for name in ARMS[1:] if (run / "patches" / f"{name}.png").is_file()]
        raise ValueError(f"`--arm` must be one of the run's: {', '.join((ARMS[0], *arms))}; got {arm!r}")
    return path


def arm_folder(run: Path, kind: str, arm: str) -> Path:
    """The folder of a run in which `kind` of an arm lies: `print`, or `print_noise` of another arm than `eot`."""
    return run / (kind if arm == ARMS[0] else f"{kind}_{arm}")


def subject(run: Path, arm: str = "eot") -> Subject:
    """Read what a run of a patch left in its folder. Raises ValueError where there is none, where it is not the run
    of a patch, and where a file in it is not what a run writes."""
    if not run.is_dir():
        raise ValueError(f"run `{run}` is no folder (paths are relative to {Path.cwd()})")
    if not (run / "patch.png").is_file():
        refuse_unfinished(run)
        raise ValueError(f"run `{run}` has no patch.png: only runs with `perturbation=patch` can be printed")
    path = texture_file(run, arm)
    texture, patch = read_texture(path), read_patch(run)
    if texture.shape[:2] != patch.texture:
        raise ValueError(f"`{path}` has other texels than placement.json, {patch.texture}: not of one run")
    return Subject(patch, texture, sha256(path))


def read_patch(run: Path) -> PhysicalPatch:
    """Read `placement.json` of a run. Raises FileNotFoundError or ValueError."""
    path = run / "placement.json"
    if not path.is_file():
        refuse_unfinished(run)
        raise FileNotFoundError(f"`{run}` has no placement.json: is it a run with `perturbation=patch`?")
    try:
        return parse_physical_patch(read_json(path))
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"`{path}` is not what a run of this version writes ({reason}); start it again") from None


def refuse_unfinished(run: Path) -> None:
    """Raise ValueError where a run has begun and not ended."""
    if (run / "manifest.json").is_file() and not (run / "metrics.json").is_file():
        raise ValueError(f"run `{run}` is not finished: go on with viewproof run resume={run}")


def read_texture(path: Path) -> Texture:
    """An 8-bit picture file as (h, w, 3) of 0..255, over white paper."""
    picture, notes = decoded(path)
    if strange := [note for note in notes if "alpha" not in note]:
        raise ValueError(f"`{path}` cannot be printed ({strange[0]}): is it the file that the run wrote?")
    values = np.asarray(picture.convert("RGBA"), np.float32)
    alpha = values[..., 3:] / 255
    return np.asarray(values[..., :3] * alpha + WHITE * (1 - alpha), np.float32)


@dataclass(frozen=True)
class PrintResult:
    """What was written: the folder, the card on its sheets, and notes for the user."""

    folder: Path
    plan: Plan
    notes: tuple[str, ...]


def write_sheet(
    run: Path,
    width: float | None = None,
    paper: str = "a4",
    dpi: int = 300,
    out: Path | None = None,
    arm: str = "eot",
) -> PrintResult:
    """Write what `write_sheets` does, and sheet.json.

    Args:
        width: of the patch in mm; None: that of the run, or 100.
        paper: one of `PAPERS`.
        out: the folder; None: see `arm_folder`.

    Raises ValueError, see `subject`, `card`, `card_picture` and `refuse_links`.
    """
    if out is None:
        refuse_links(run)
    source = subject(run, arm)
    sheets = plan(source.patch.printed_card(arm, width), paper, dpi)
    folder = arm_folder(run, "print", arm) if out is None else out
    write_sheets(folder, sheets, source.texture)
    place = ("left", "top", "row", "column")
    record = {
        "schema": 2,
        "id": source.patch.id,
        "arm": arm,
        "sha256": source.sha256,
        "card": dataclasses.asdict(sheets.card),
        "dpi": sheets.dpi,
        "paper": sheets.paper,
        "page": {"width": sheets.width, "height": sheets.height},
        "pages": [
            dataclasses.asdict(page.tile) | {key: getattr(page, key) for key in place} for page in sheets.pages
        ],
    }
    write_json(folder / "sheet.json", record)
    return PrintResult(folder, sheets, _notes(source.patch, sheets.card.patch.width))


def write_sheets(folder: Path, sheets: Plan, texture: Texture) -> None:
    """Write card.png, sheet.pdf and sheet.png (sheet-1.png, ... if there are several); pages of an earlier print
    that has more of them go. Raises ValueError, see `card_picture`."""
    picture = card_raster.card_picture(sheets.card, texture, sheets.dpi)
    rows, columns = texture.shape[:2]
    patch = card_raster.patch_picture(texture, pixels(sheets.card, (rows, columns), sheets.dpi))
    folder.mkdir(parents=True, exist_ok=True)
    with atomic(folder / "sheet.pdf") as temporary:
        write_pdf(temporary, patch, sheets)
    _save(folder / "card.png", picture, sheets.dpi)
    count = len(sheets.pages)
    names = ["sheet.png"] if count == 1 else [f"sheet-{i + 1}.png" for i in range(count)]
    for path in folder.glob("*.png") if (folder / "sheet.json").is_file() else ():
        if re.fullmatch(r"sheet(-\d+)?\.png", path.name) and path.name not in names:
            path.unlink()
    for name, page in zip(names, sheets.pages, strict=True):
        _save(folder / name, page_picture(picture, sheets, page), sheets.dpi)


def pixels(card: Card, texture: tuple[int, int], dpi: int) -> tuple[int, int]:
    """(height, width) of the patch in the PDF: what the print needs, and never fewer than the texture has."""
    sides = (card.patch.height, card.patch.width)
    high, wide = (max(round(mm * dpi / INCH), texels) for mm, texels in zip(sides, texture, strict=True))
    return high, wide


def page_picture(card_pixels: Picture, sheets: Plan, page: Page) -> Picture:
    """A sheet in pixels; its part of the card is a copy of the card's own pixels."""
    scale, tile, (fills, texts) = sheets.dpi / INCH, page.tile, draw_page(sheets, page)
    picture = np.full((round(sheets.height * scale), round(sheets.width * scale), 3), WHITE, np.uint8)
    x, y, width, height = (round(mm * scale) for mm in (tile.x, tile.y, tile.width, tile.height))
    part, left, top = card_pixels[y : y + height, x : x + width], round(page.left * scale), round(page.top * scale)
    picture[top : top + len(part), left : left + part.shape[1]] = part
    card_raster.fill_boxes(picture, card_raster.RasterGrid(scale, scale), fills)
    sheet = Image.fromarray(picture)
    draw = ImageDraw.Draw(sheet)
    for text in texts:
        font = ImageFont.truetype(str(font_file(text.bold)), text.size * scale)
        draw.text((text.x * scale, text.y * scale), text.text, text.colour, font, ANCHORS[text.anchor])
    return np.asarray(sheet)


def _save(path: Path, picture: Picture, dpi: int) -> None:
    srgb = PngImagePlugin.PngInfo()
    srgb.add(b"sRGB", b"\0")
    with atomic(path) as temporary:
        Image.fromarray(picture).save(temporary, "PNG", dpi=(dpi, dpi), compress_level=FAST, pnginfo=srgb)


def _notes(patch: PhysicalPatch, width: float) -> tuple[str, ...]:
    notes = []
    if not patch.card:
        notes.append(
            "the attack has not seen the card that is printed round its patch, and photographs show it: expect less "
            "than the run's figures, or run again with perturbation.card=true perturbation.width_mm=..."
        )
    if patch.width_mm is not None and not math.isclose(patch.width_mm, width):
        distance = f"one of {width:g} mm is seen from another distance"
        notes.append(f"the run placed a patch {patch.width_mm:g} mm wide; {distance}")
    return tuple(notes)

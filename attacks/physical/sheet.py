"""The print of a run: what `viewproof print` writes."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from attacks.perturbations.patch import card_raster
from attacks.perturbations.patch.card import SIDES, Card, card, card_words
from attacks.perturbations.patch.card_raster import INCH, WHITE, Picture, Texture
from attacks.physical.paper import Page, Plan, draw_page, font_file, plan, write_pdf
from attacks.runtime.decoding import decoded
from attacks.runtime.files import atomic, sha256, write_json
from attacks.runtime.untrusted import parse_json, refuse_links

#: The width of a patch that nobody gave one, in mm.
WIDTH = 100.0
#: Of zlib: half the time of the default, and 3 % more bytes.
FAST = 4
#: The arms whose patch can be printed, that of the attack first.
ARMS = ("eot", "no_eot", "one_view", "bare", "noise")
ANCHORS = {"start": "ls", "middle": "ms"}


@dataclass(frozen=True, eq=False)
class Subject:
    """The patch of an arm of a run: its texture over white, the file's digest, the run's id, its width in mm if the
    run has one, and whether the attack saw its card."""

    texture: Texture
    sha256: str
    id: str
    arm: str
    width: float | None
    with_card: bool


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
    """Read what a run of a patch left in its folder.

    Raises:
        ValueError: no such folder, not the run of a patch, or a file in it that is not what a run writes.
    """
    if not run.is_dir():
        raise ValueError(f"run `{run}` is no folder (paths are relative to {Path.cwd()})")
    for name in ("patch.png", "placement.json"):
        if not (run / name).is_file():
            refuse_unfinished(run)
            raise ValueError(f"run `{run}` has no {name}: only runs with `perturbation=patch` can be printed")
    path = texture_file(run, arm)
    texture = read_texture(path)
    patch_id, width, with_card = _print_settings(run / "placement.json", texture.shape[:2])
    return Subject(texture, sha256(path), patch_id, arm, width, with_card)


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


def _print_settings(path: Path, size: tuple[int, ...]) -> tuple[str, float | None, bool]:
    """The id of a run, its width in mm if it has one, and whether the attack saw the card."""
    try:
        content: Any = parse_json(path.read_bytes(), path.name)
        texture, width = content["texture"], content["width_mm"]
        patch_id, with_card = content.get("id"), content.get("card")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"`{path}` cannot be read ({type(error).__name__}: {error})") from None
    if texture != list(size):
        raise ValueError(f"`{path}` has a texture of {texture}, patch.png has {list(size)}: not of one run")
    if width is not None and not (type(width) in (int, float) and SIDES[0] <= width <= SIDES[1]):
        got = f"{width!r:.40}"
        raise ValueError(f"`width_mm` in `{path}` must lie in {SIDES[0]:g}..{SIDES[1]:g}, or be null; got {got}")
    valid = isinstance(patch_id, str) and re.fullmatch("vp-[0-9a-f]{8}", patch_id)
    if not valid or not isinstance(with_card, bool):
        raise ValueError(
            f"`{path}` has no `id` and `card` of this version, whose cards name run and arm: start the run again"
        )
    return patch_id, None if width is None else float(width), with_card


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
        out: the folder; None: `print` in that of the run, `print_noise` and so on for another arm than `eot`.
        arm: of the run, whose patch is printed.

    Raises:
        ValueError: see `subject`, `card`, `card_picture` and `refuse_links`.
    """
    if out is None:
        refuse_links(run)
    source = subject(run, arm)
    if width is None:
        width = source.width or WIDTH
    rows, columns = source.texture.shape[:2]
    sheets = plan(card(width, width * rows / columns, card_words(source.id, arm)), paper, dpi)
    folder = arm_folder(run, "print", arm) if out is None else out
    write_sheets(folder, sheets, source.texture)
    write_json(folder / "sheet.json", _record(sheets, source))
    return PrintResult(folder, sheets, _notes(source, width))


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
    sheet = Image.new("RGB", (round(sheets.width * scale), round(sheets.height * scale)), "white")
    x, y, width, height = (round(mm * scale) for mm in (tile.x, tile.y, tile.width, tile.height))
    part = Image.fromarray(card_pixels[y : y + height, x : x + width])
    sheet.paste(part, (round(page.left * scale), round(page.top * scale)))
    picture = np.array(sheet)
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


def _record(sheets: Plan, source: Subject) -> dict[str, Any]:
    place = ("left", "top", "row", "column")
    return {
        "schema": 2,
        "id": source.id,
        "arm": source.arm,
        "sha256": source.sha256,
        "card": dataclasses.asdict(sheets.card),
        "dpi": sheets.dpi,
        "paper": sheets.paper,
        "page": {"width": sheets.width, "height": sheets.height},
        "pages": [
            dataclasses.asdict(page.tile) | {key: getattr(page, key) for key in place} for page in sheets.pages
        ],
    }


def _notes(source: Subject, width: float) -> tuple[str, ...]:
    notes = []
    if not source.with_card:
        notes.append(
            "the attack has not seen the card that is printed round its patch, and photographs show it: expect less "
            "than the run's figures, or run again with perturbation.card=true perturbation.width_mm=..."
        )
    if source.width is not None and not math.isclose(source.width, width):
        distance = f"one of {width:g} mm is seen from another distance"
        notes.append(f"the run placed a patch {source.width:g} mm wide; {distance}")
    return tuple(notes)

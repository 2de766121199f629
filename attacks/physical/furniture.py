"""What a sheet shows beside the card: cut marks, glue marks, a ruler, and what it is."""

from __future__ import annotations

from dataclasses import dataclass

from attacks.perturbations.patch.card import Box, Card
from attacks.perturbations.patch.card_drawing import Colour, Fill, Words
from attacks.physical.paper import BLEED, FOOT, MARGIN, MARK, Page, Plan

RULER = 100  # mm
#: Line widths, the length of a dash, and the sizes of text, in mm.
HAIR, THIN, DASH = 0.15, 0.1, 0.8
TEXT, SMALL = 2.5, 2.1
GREY: Colour = (90, 90, 90)
LIGHT: Colour = (190, 190, 190)


@dataclass(frozen=True)
class Label:
    """What the sheet says of its patch."""

    id: str
    dpi: int


def beside(plan: Plan, page: Page, card: Card, label: Label) -> tuple[list[Fill], list[Words]]:
    """Everything on a sheet but its part of the card, in mm from the sheet's upper left corner."""
    cuts = [fill for vertical, at in _cuts(plan, page, card) for fill in _marks(page, vertical, at)]
    glue, numbers = _glue(plan, page)
    ruler, figures = _ruler(plan)
    rule = Fill((Box(MARGIN, plan.height - MARGIN - FOOT + 1, plan.width - 2 * MARGIN, THIN),), LIGHT)
    return [*cuts, *glue, rule, *ruler], [*numbers, *figures, *_text(plan, page, card, label)]


def _cuts(plan: Plan, page: Page, card: Card) -> list[tuple[bool, float]]:
    """(is it vertical, where on the sheet): the edges of the card, and those of a tile that lie on another tile."""
    right, low = page.on_page(card.width, card.height)
    cuts = [(True, page.left), (False, page.top)]
    if page.column == plan.columns - 1:
        cuts.append((True, right))
    if page.row == plan.rows - 1:
        cuts.append((False, low))
    return cuts


def _ends(page: Page, vertical: bool) -> tuple[float, float]:
    """Where the marks at both ends of a line begin: they keep out of the bleed."""
    start, length = (page.top, page.tile.height) if vertical else (page.left, page.tile.width)
    return start - BLEED - MARK, start + length + BLEED


def _line(vertical: bool, at: float, start: float, length: float, width: float) -> Box:
    box = Box(at - width / 2, start, width, length)
    return box if vertical else Box(box.y, box.x, box.height, box.width)


def _marks(page: Page, vertical: bool, at: float) -> list[Fill]:
    return [Fill((_line(vertical, at, start, MARK, HAIR),)) for start in _ends(page, vertical)]


def _glue(plan: Plan, page: Page) -> tuple[list[Fill], list[Words]]:
    """Dashes where the cut edge of the next tile to the right, and of the one below, comes to lie."""
    fills, words = [], []
    for vertical, row, column in ((True, page.row, page.column + 1), (False, page.row + 1, page.column)):
        if row == plan.rows or column == plan.columns:
            continue
        number, other = plan.page(row, column)
        x, y = page.on_page(other.tile.x, other.tile.y)
        at = x if vertical else y
        for start in _ends(page, vertical):
            dashes = (start, start + (MARK - DASH) / 2, start + MARK - DASH)
            fills.append(Fill(tuple(_line(vertical, at, dash, DASH, HAIR) for dash in dashes)))
            if vertical:
                words.append(Words(f"p. {number}", at + 0.8, start + MARK / 2 + SMALL / 3, SMALL, "start", GREY))
            else:
                words.append(Words(f"p. {number}", start + MARK / 2, at + SMALL, SMALL, "middle", GREY))
    return fills, words


def _ruler(plan: Plan) -> tuple[list[Fill], list[Words]]:
    """100 mm from the middle of its first tick to that of its last: the ticks stand on a line, figures below it."""
    left, base = MARGIN + 2, plan.height - MARGIN - FOOT + 9
    boxes = [_line(False, base, left - THIN / 2, RULER + THIN, THIN)]
    words = []
    for mm in range(RULER + 1):
        long = 4.0 if mm % 10 == 0 else 3.0 if mm % 5 == 0 else 2.0
        boxes.append(_line(True, left + mm, base - long, long, THIN))
        if mm % 10 == 0:
            words.append(Words(str(mm), left + mm, base + 2.6, SMALL, "middle"))
    said = f"print at 100 %, no scaling; this line must measure {RULER} mm"
    words.append(Words(said, left + RULER / 2, base + 6.6, TEXT, "middle", bold=True))
    return [Fill(tuple(boxes))], words


def _text(plan: Plan, page: Page, card: Card, label: Label) -> list[Words]:
    numbers = [tag.number for tag in card.tags]
    tiled = len(plan.pages) > 1
    number = plan.page(page.row, page.column)[0]
    lines = [
        f"patch {card.patch.width:.1f} x {card.patch.height:.1f} mm, card {card.width:.1f} x {card.height:.1f} mm, "
        f"{label.dpi} dpi",
        f"colour chart: {len(card.chart)} sRGB colours; fiducials: AprilTag 36h11, {numbers[0]} to {numbers[-1]}",
        "Cut at the solid marks, then lay each cut edge on the dashes with its number."
        if tiled
        else "Cut at the marks. The white edge belongs to the card: fiducials need it.",
        "For authorised testing of your own models only.",
    ]
    left, top = MARGIN + RULER + 10, plan.height - MARGIN - FOOT + 5.5
    head = f"Viewproof {label.id}"
    if tiled:
        head += f", page {number} of {len(plan.pages)}, row {page.row + 1}, column {page.column + 1}"
    words = [Words(head, left, top, TEXT, bold=True)]
    words += [Words(line, left, top + 3.4 * (i + 1), SMALL, colour=GREY) for i, line in enumerate(lines)]
    return words

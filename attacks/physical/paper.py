"""The sheets of paper as drawings in millimetres, which the PNG files and the PDF both draw; and the PDF: exact
millimetres, lossless pixels, fonts embedded."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageCms

from attacks.perturbations.patch.card import Box, Card, Colour, Fill, Text, card_fills
from attacks.perturbations.patch.card_raster import INCH, Picture
from attacks.runtime.extras import extra

#: Width and height in mm.
PAPERS = {"a4": (210.0, 297.0), "letter": (215.9, 279.4)}
#: The margin that printers cannot print, in mm.
MARGIN = 5.0
#: Outside the cut line, in mm: the bleed without marks, then the length of the marks.
BLEED, MARK = 3.0, 4.0
#: The height of the ruler and the text below the card.
FOOT = 20.0
#: The overlap of two tiles, in mm.
OVERLAP = 10.0
RULER = 100  # mm
#: Line widths, the length of a dash, and the sizes of text, in mm.
HAIR, THIN, DASH = 0.15, 0.1, 0.8
TEXT, SMALL, NUMBER = 2.5, 2.1, 3.0
TERMS = "For authorised testing of your own models only."
WHITE: Colour = (255, 255, 255)
GREY: Colour = (90, 90, 90)
LIGHT: Colour = (190, 190, 190)
POINT = 72 / INCH  # a millimetre in points
#: The width in mm of the white drawn again round the patch, less than a module of a tag.
EDGE = 0.5
FONTS = {False: "Vera", True: "VeraBd"}


@dataclass(frozen=True)
class Page:
    """One sheet: the tile of the card on it, and the tile's upper left corner on the sheet, in mm."""

    row: int
    column: int
    tile: Box
    left: float
    top: float

    def on_page(self, x: float, y: float) -> tuple[float, float]:
        """A point of the card in mm from the upper left corner of the sheet."""
        return self.left + x - self.tile.x, self.top + y - self.tile.y


@dataclass(frozen=True)
class Plan:
    """The sheets of a card, row by row, each `width` x `height` mm, and their resolution."""

    card: Card
    dpi: int
    paper: str
    width: float
    height: float
    rows: int
    columns: int
    pages: tuple[Page, ...]


def plan(card: Card, paper: str, dpi: int) -> Plan:
    """The fewest sheets of a paper of `PAPERS` that hold the card; portrait if both need as many."""
    sizes = PAPERS[paper], PAPERS[paper][::-1]
    return min((_plan(card, paper, size, dpi) for size in sizes), key=lambda plan: len(plan.pages))


def _plan(card: Card, paper: str, size: tuple[float, float], dpi: int) -> Plan:
    margins = 2 * (MARGIN + BLEED + MARK)
    pixel = INCH / dpi
    columns = _split(card.width, size[0] - margins, pixel)
    rows = _split(card.height, size[1] - margins - FOOT, pixel)
    pages = []
    for row, (top, high) in enumerate(rows):
        for column, (left, wide) in enumerate(columns):
            tile = Box(left * pixel, top * pixel, wide * pixel, high * pixel)
            x = round((size[0] / pixel - wide) / 2) * pixel
            y = round(((size[1] - FOOT) / pixel - high) / 2) * pixel
            pages.append(Page(row, column, tile, x, y))
    return Plan(card, dpi, paper, *size, len(rows), len(columns), tuple(pages))


def _split(length: float, room: float, pixel: float) -> list[tuple[int, int]]:
    """The fewest equal, overlapping parts of a length that fit into `room` mm: first pixel and length of each."""
    total, limit, overlap = round(length / pixel), math.floor(room / pixel), round(OVERLAP / pixel)
    if total <= limit:
        return [(0, total)]
    parts = math.ceil((total - overlap) / (limit - overlap))
    part = math.ceil((total + (parts - 1) * overlap) / parts)
    return [(round(i * (total - part) / (parts - 1)), part) for i in range(parts)]


def draw_page(plan: Plan, page: Page) -> tuple[list[Fill], list[Text]]:
    """What lies over and beside a sheet's tile, in mm from its upper left corner: cut and glue marks, ruler, text."""
    right, low = page.on_page(plan.card.width, plan.card.height)
    cuts = [(True, page.left), (False, page.top)]  # vertical or not, and where; a tile is glued over the one before
    cuts += [(True, right)] * (page.column == plan.columns - 1) + [(False, low)] * (page.row == plan.rows - 1)
    marks = [Fill((_line(cut[0], cut[1], at, MARK, HAIR),)) for cut in cuts for at in _ends(page, cut[0])]
    glue, numbers = _glue(plan, page)
    ruler, figures = _ruler(plan)
    rule = Fill((Box(MARGIN, plan.height - MARGIN - FOOT + 1, plan.width - 2 * MARGIN, THIN),), LIGHT)
    return [*marks, *glue, rule, *ruler], [*numbers, *figures, *_text(plan, page)]


def _ends(page: Page, vertical: bool) -> tuple[float, float]:
    """The start of the marks at both ends of a line, outside the bleed."""
    start, length = (page.top, page.tile.height) if vertical else (page.left, page.tile.width)
    return start - BLEED - MARK, start + length + BLEED


def _line(vertical: bool, at: float, start: float, length: float, width: float) -> Box:
    box = Box(at - width / 2, start, width, length)
    return box if vertical else Box(box.y, box.x, box.height, box.width)


def _glue(plan: Plan, page: Page) -> tuple[list[Fill], list[Text]]:
    """Dashes at the cut edge of the next tile to the right, and of the one below."""
    fills, texts = [], []
    for vertical, row, column in ((True, page.row, page.column + 1), (False, page.row + 1, page.column)):
        if row == plan.rows or column == plan.columns:
            continue
        number = row * plan.columns + column
        tile = plan.pages[number].tile
        at = page.on_page(tile.x, tile.y)[not vertical]
        for start in _ends(page, vertical):
            dashes = (start, start + (MARK - DASH) / 2, start + MARK - DASH)
            fills.append(Fill(tuple(_line(vertical, at, dash, DASH, HAIR) for dash in dashes)))
            place = (at + 0.8, start + MARK / 2 + NUMBER / 3) if vertical else (start + MARK / 2, at + NUMBER)
            texts.append(Text(str(number + 1), *place, NUMBER, "start" if vertical else "middle", bold=True))
    return fills, texts


def _ruler(plan: Plan) -> tuple[list[Fill], list[Text]]:
    """A ruler, 100 mm from the middle of its first tick to that of its last, with figures below."""
    left, base = MARGIN + 2, plan.height - MARGIN - FOOT + 9
    boxes = [_line(False, base, left - THIN / 2, RULER + THIN, THIN)]
    texts = []
    for mm in range(RULER + 1):
        long = 4.0 if mm % 10 == 0 else 3.0 if mm % 5 == 0 else 2.0
        boxes.append(_line(True, left + mm, base - long, long, THIN))
        if mm % 10 == 0:
            texts.append(Text(str(mm), left + mm, base + 2.6, SMALL, "middle"))
    note = f"print at 100 %, no scaling; this line must measure {RULER} mm"
    texts.append(Text(note, left + RULER / 2, base + 6.6, TEXT, "middle", bold=True))
    return [Fill(tuple(boxes))], texts


def _text(plan: Plan, page: Page) -> list[Text]:
    card, several = plan.card, len(plan.pages) > 1
    lines = [
        f"patch {card.patch.width:.1f} x {card.patch.height:.1f} mm, card {card.width:.1f} x {card.height:.1f} mm, "
        f"{plan.dpi} dpi" + (f", row {page.row + 1}, column {page.column + 1}" if several else ""),
        f"{len(card.chart)} sRGB colours; AprilTag 36h11 " + ", ".join(str(tag.number) for tag in card.tags),
        "Cut at the solid marks, then lay each cut edge on the dashes with its number."
        if several
        else "Cut at the marks. The white edge belongs to the card: fiducials need it.",
        TERMS,
    ]
    head = f"Viewproof {card.words}"
    if several:
        head += f", page {plan.pages.index(page) + 1} of {len(plan.pages)}"
    left, top = MARGIN + RULER + 10, plan.height - MARGIN - FOOT + 5.5
    small = (Text(line, left, top + 3.4 * (i + 1), SMALL, colour=GREY) for i, line in enumerate(lines))
    return [Text(head, left, top, TEXT, bold=True), *small]


def font_file(bold: bool) -> Path:
    """Bitstream Vera, which ReportLab ships: the PNG and the PDF use the same font."""
    return Path(extra("reportlab").__file__).parent / "fonts" / f"{FONTS[bold]}.ttf"


def write_pdf(path: Path, patch: Picture, plan: Plan) -> None:
    """Write the sheets of `plan`, with the texture `patch` as it is to be printed, edge to edge; the same arguments
    make the same bytes."""
    fonts, ttfonts = extra("reportlab.pdfbase.pdfmetrics"), extra("reportlab.pdfbase.ttfonts")
    for bold, name in FONTS.items():
        fonts.registerFont(ttfonts.TTFont(name, str(font_file(bold))))
    settings = extra("reportlab.rl_config")
    previous, settings.useA85 = settings.useA85, 0  # its default writes images as text: slower, and a quarter longer
    try:
        size, patch_box = (plan.width * POINT, plan.height * POINT), plan.card.patch
        canvas = extra("reportlab.pdfgen.canvas").Canvas(str(path), pagesize=size, pageCompression=1, invariant=1)
        canvas.setTitle(f"Viewproof {plan.card.words}, patch {patch_box.width:.1f} x {patch_box.height:.1f} mm")
        canvas.setSubject(TERMS)
        canvas.setCreator("Viewproof")
        canvas.setViewerPreference("PrintScaling", "None")
        _embed_srgb(canvas)
        image = extra("reportlab.lib.utils").ImageReader(Image.fromarray(patch))
        for page in plan.pages:
            _draw(canvas, image, plan, page)
            canvas.showPage()
        canvas.save()
    finally:
        settings.useA85 = previous


def _embed_srgb(canvas: Any) -> None:
    """All colours of the file are those of LittleCMS's profile, without its date, so that equal prints are equal."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    profile[24:36], objects = bytes(12), extra("reportlab.pdfbase.pdfdoc")
    stream = objects.PDFStream(objects.PDFDictionary({"N": 3}), bytes(profile), [objects.PDFZCompress])
    canvas._doc.Reference(objects.PDFArray([objects.PDFName("ICCBased"), canvas._doc.Reference(stream)]), "sRGB")
    canvas._colorsUsed = {"sRGB": "DefaultRGB"}  # the name that stands for RGB without a profile


def _draw(canvas: Any, image: Any, plan: Plan, page: Page) -> None:
    """Draw a sheet in mm from its upper left corner; y is up in a PDF, so all y are negative."""
    card, part, left, top = plan.card, page.tile, page.left, page.top
    if len(plan.pages) == 1:  # the terms of print shops for the cut line and the margin outside it
        for set_box, margin in ((canvas.setTrimBox, 0.0), (canvas.setBleedBox, BLEED)):
            right, low = left + card.width + margin, top + card.height + margin
            corners = (left - margin, plan.height - low, right, plan.height - top + margin)
            set_box(tuple(mm * POINT for mm in corners))
    canvas.scale(POINT, POINT)
    canvas.translate(0, plan.height)
    canvas.saveState()
    canvas.clipPath(_path(canvas, (Box(left, top, part.width, part.height),)), stroke=0, fill=0)
    canvas.translate(left - part.x, part.y - top)
    canvas.drawImage(image, *_rectangle(card.patch))
    for swatch in card.chart:  # pixels, as the patch is: a driver may colour shapes in another way
        canvas.saveState()
        canvas.clipPath(_path(canvas, (swatch.box,)), stroke=0, fill=0)
        pixel = extra("reportlab.lib.utils").ImageReader(Image.new("RGB", (1, 1), swatch.colour))
        canvas.drawImage(pixel, *_rectangle(swatch.box))
        canvas.restoreState()
    _fill(canvas, (_frame(card.patch), *card_fills(replace(card, chart=()))))
    canvas.restoreState()
    fills, texts = draw_page(plan, page)
    _fill(canvas, fills)
    for text in texts:
        canvas.setFillColorRGB(*(level / 255 for level in text.colour))
        canvas.setFont(FONTS[text.bold], text.size)
        draw = canvas.drawString if text.anchor == "start" else canvas.drawCentredString
        draw(text.x, -text.y, text.text)


def _rectangle(box: Box) -> tuple[float, float, float, float]:
    """Left, bottom, width and height, y up."""
    return box.x, -box.y - box.height, box.width, box.height


def _path(canvas: Any, boxes: Iterable[Box]) -> Any:
    """One path: where two boxes touch there is no seam."""
    path = canvas.beginPath()
    for box in boxes:
        path.rect(*_rectangle(box))
    return path


def _fill(canvas: Any, fills: Iterable[Fill]) -> None:
    for fill in fills:
        canvas.setFillColorRGB(*(level / 255 for level in fill.colour))
        canvas.drawPath(_path(canvas, fill.boxes), stroke=0, fill=1)


def _frame(box: Box) -> Fill:
    """White round the patch: renderers enlarge an image to whole pixels, but clip shapes exactly."""
    left, top, outer = box.x - EDGE, box.y - EDGE, box.width + 2 * EDGE
    rows = (Box(left, y, outer, EDGE) for y in (top, box.y + box.height))
    columns = (Box(x, box.y, EDGE, box.height) for x in (left, box.x + box.width))
    return Fill((*rows, *columns), WHITE)

"""The sheets as a PDF: exact millimetres, lossless pixels, fonts embedded.

Tags, swatches, marks and the ruler are vector shapes. The texture is one image in the file, already sampled at the
resolution of the print, so that no printer driver interpolates it; every page shows its part of it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from attacks.perturbations.patch.card import Box, Card, Fill, Text, card_fills, shifted
from attacks.perturbations.patch.card_raster import INCH, Picture
from attacks.physical.paper import AUTHORISED, BLEED, WHITE, Page, Plan, assembly, furniture
from attacks.runtime.extras import extra

POINT = 72 / INCH  # a millimetre in points
#: The width in mm of the white drawn again round the patch, less than a module of a tag.
EDGE = 0.5
FONTS = {False: "Vera", True: "VeraBd"}


def font_file(bold: bool) -> Path:
    """Bitstream Vera, which ReportLab ships: the PNG and the PDF use the same font."""
    return Path(extra("reportlab").__file__).parent / "fonts" / f"{FONTS[bold]}.ttf"


def write_pdf(path: Path, patch: Picture, plan: Plan) -> None:
    """Write the sheets of `plan`; the same arguments make the same bytes.

    Args:
        patch: the texture as it is to be printed, edge to edge.
    """
    fonts, ttfonts = extra("reportlab.pdfbase.pdfmetrics"), extra("reportlab.pdfbase.ttfonts")
    for bold, name in FONTS.items():
        fonts.registerFont(ttfonts.TTFont(name, str(font_file(bold))))
    settings = extra("reportlab.rl_config")
    previous, settings.useA85 = settings.useA85, 0  # its default writes images as text: slower, and a quarter longer
    try:
        size, printed = (plan.width * POINT, plan.height * POINT), plan.card.patch
        canvas = extra("reportlab.pdfgen.canvas").Canvas(str(path), pagesize=size, pageCompression=1, invariant=1)
        canvas.setTitle(f"Viewproof {plan.card.words}, patch {printed.width:.1f} x {printed.height:.1f} mm")
        canvas.setSubject(AUTHORISED)
        canvas.setCreator("Viewproof")
        canvas.setViewerPreference("PrintScaling", "None")
        image = extra("reportlab.lib.utils").ImageReader(Image.fromarray(patch))
        for page in plan.pages:
            _draw(_Sheet(canvas, plan.height), image, plan, page)
            canvas.showPage()
        if len(plan.pages) > 1:
            _draw_assembly(_Sheet(canvas, plan.height), image, plan)
            canvas.showPage()
        canvas.save()
    finally:
        settings.useA85 = previous


class _Sheet:
    """A canvas in mm from the upper left corner, y down."""

    def __init__(self, canvas: Any, height: float) -> None:
        self.canvas = canvas
        self.height = height

    def box(self, box: Box) -> tuple[float, float, float, float]:
        """Left, bottom, width and height in points, y up."""
        return box.x * POINT, (self.height - box.y - box.height) * POINT, box.width * POINT, box.height * POINT

    def corners(self, box: Box) -> tuple[float, float, float, float]:
        """Left, bottom, right and top in points, y up."""
        left, bottom, width, height = self.box(box)
        return left, bottom, left + width, bottom + height

    def path(self, *boxes: Box) -> Any:
        """One path: where two boxes touch there is no seam."""
        path = self.canvas.beginPath()
        for box in boxes:
            path.rect(*self.box(box))
        return path

    def draw(self, fills: Iterable[Fill], texts: Iterable[Text]) -> None:
        for fill in fills:
            self.fill(fill)
        for text in texts:
            self.text(text)

    def fill(self, fill: Fill) -> None:
        self.canvas.setFillColorRGB(*(level / 255 for level in fill.colour))
        self.canvas.drawPath(self.path(*fill.boxes), stroke=0, fill=1)

    def text(self, text: Text) -> None:
        self.canvas.setFillColorRGB(*(level / 255 for level in text.colour))
        self.canvas.setFont(FONTS[text.bold], text.size * POINT)
        draw = self.canvas.drawString if text.anchor == "start" else self.canvas.drawCentredString
        draw(text.x * POINT, (self.height - text.y) * POINT, text.text)


def _draw(sheet: _Sheet, image: Any, plan: Plan, page: Page) -> None:
    canvas, card = sheet.canvas, plan.card
    x, y = page.on_page(0, 0)
    if len(plan.pages) == 1:  # the terms of print shops for the cut line and the margin outside it
        canvas.setTrimBox(sheet.corners(Box(x, y, card.width, card.height)))
        bleed = Box(x - BLEED, y - BLEED, card.width + 2 * BLEED, card.height + 2 * BLEED)
        canvas.setBleedBox(sheet.corners(bleed))
    canvas.saveState()
    if len(plan.pages) > 1:
        canvas.clipPath(sheet.path(Box(page.left, page.top, page.tile.width, page.tile.height)), stroke=0, fill=0)
    _draw_card(sheet, image, card, (x, y))
    canvas.restoreState()
    sheet.draw(*furniture(plan, page))


def _draw_card(sheet: _Sheet, image: Any, card: Card, at: tuple[float, float]) -> None:
    patch = Box(at[0] + card.patch.x, at[1] + card.patch.y, card.patch.width, card.patch.height)
    sheet.canvas.drawImage(image, *sheet.box(patch))
    sheet.fill(_frame(patch))
    sheet.draw((shifted(fill, *at) for fill in card_fills(card)), ())


def _draw_assembly(sheet: _Sheet, image: Any, plan: Plan) -> None:
    box, fills, texts = assembly(plan)
    canvas, scale = sheet.canvas, box.width / plan.card.width
    canvas.saveState()
    canvas.translate(box.x * POINT, (plan.height - box.y) * POINT)
    canvas.scale(scale, scale)
    _draw_card(_Sheet(canvas, 0), image, plan.card, (0, 0))
    canvas.restoreState()
    sheet.draw(fills, texts)


def _frame(box: Box) -> Fill:
    """White round the patch: renderers enlarge an image to whole pixels, but clip shapes exactly."""
    left, top, outer = box.x - EDGE, box.y - EDGE, box.width + 2 * EDGE
    rows = (Box(left, y, outer, EDGE) for y in (top, box.y + box.height))
    columns = (Box(x, box.y, EDGE, box.height) for x in (left, box.x + box.width))
    return Fill((*rows, *columns), WHITE)

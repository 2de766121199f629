"""The sheets as a PDF: exact millimetres, lossless pixels, fonts embedded."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from attacks.perturbations.patch.card import Box, Fill, card_fills
from attacks.perturbations.patch.card_raster import INCH, Picture
from attacks.physical.paper import BLEED, TERMS, WHITE, Page, Plan, draw_page
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
        size, patch_box = (plan.width * POINT, plan.height * POINT), plan.card.patch
        canvas = extra("reportlab.pdfgen.canvas").Canvas(str(path), pagesize=size, pageCompression=1, invariant=1)
        canvas.setTitle(f"Viewproof {plan.card.words}, patch {patch_box.width:.1f} x {patch_box.height:.1f} mm")
        canvas.setSubject(TERMS)
        canvas.setCreator("Viewproof")
        canvas.setViewerPreference("PrintScaling", "None")
        image = extra("reportlab.lib.utils").ImageReader(Image.fromarray(patch))
        for page in plan.pages:
            _draw(canvas, image, plan, page)
            canvas.showPage()
        canvas.save()
    finally:
        settings.useA85 = previous


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
    _fill(canvas, (_frame(card.patch), *card_fills(card)))
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

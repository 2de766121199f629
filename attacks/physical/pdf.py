"""The sheets as a PDF: exact millimetres, lossless pixels, fonts embedded.

Fiducials, swatches, marks and the ruler are shapes, exact at any resolution. The texture is one picture in the file,
already sampled at the print's resolution, so that no printer driver decides what lies between two texels; every page
shows its part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from attacks.perturbations.patch.card import Box, Card
from attacks.perturbations.patch.card_drawing import Fill, Words, printed, shifted
from attacks.perturbations.patch.card_raster import WHITE, Picture
from attacks.physical.paper import BLEED, INCH, Label, Page, Plan, beside
from attacks.runtime.extras import extra

POINT = 72 / INCH  # a millimetre in points
#: The width in mm of the white drawn again round the patch, less than a module of a fiducial.
EDGE = 0.5
FONTS = {False: "Vera", True: "VeraBd"}


def font_file(bold: bool) -> Path:
    """Bitstream Vera, which ReportLab brings: pages in pixels and in the PDF then look alike."""
    return Path(extra("reportlab").__file__).parent / "fonts" / f"{FONTS[bold]}.ttf"


def write_pdf(path: Path, card: Card, patch: Picture, plan: Plan, label: Label) -> None:
    """Write the sheets of `plan`. The same arguments make the same bytes.

    Args:
        patch: the texture as it is to be printed, edge to edge.
    """
    fonts, ttfonts = extra("reportlab.pdfbase.pdfmetrics"), extra("reportlab.pdfbase.ttfonts")
    for bold, name in FONTS.items():
        fonts.registerFont(ttfonts.TTFont(name, str(font_file(bold))))
    size = plan.width * POINT, plan.height * POINT
    with _binary():
        canvas = extra("reportlab.pdfgen.canvas").Canvas(str(path), pagesize=size, pageCompression=1, invariant=1)
        canvas.setTitle(f"Viewproof {label.id}, patch {card.patch.width:.1f} x {card.patch.height:.1f} mm")
        canvas.setSubject("For authorised testing of your own models only.")
        canvas.setCreator("Viewproof")
        canvas.setViewerPreference("PrintScaling", "None")
        picture = extra("reportlab.lib.utils").ImageReader(Image.fromarray(patch))
        for page in plan.pages:
            _draw(_Sheet(canvas, plan.height), card, picture, plan, page, label)
            canvas.showPage()
        canvas.save()


class _Sheet:
    """A canvas in mm from the upper left corner, y down."""

    def __init__(self, canvas: Any, height: float) -> None:
        self.canvas = canvas
        self.height = height

    def box(self, box: Box) -> tuple[float, float, float, float]:
        """Left, low, width and height in points, y up."""
        return (
            box.x * POINT,
            (self.height - box.y - box.height) * POINT,
            box.width * POINT,
            box.height * POINT,
        )

    def fill(self, fill: Fill) -> None:
        """One path for all boxes: where two touch, no paper shines through."""
        path = self.canvas.beginPath()
        for box in fill.boxes:
            path.rect(*self.box(box))
        self.canvas.setFillColorRGB(*(level / 255 for level in fill.colour))
        self.canvas.drawPath(path, stroke=0, fill=1)

    def clip(self, box: Box) -> None:
        """Nothing is drawn outside the box from here to `restoreState`."""
        path = self.canvas.beginPath()
        path.rect(*self.box(box))
        self.canvas.clipPath(path, stroke=0, fill=0)

    def write(self, words: Words) -> None:
        """One line of text."""
        self.canvas.setFillColorRGB(*(level / 255 for level in words.colour))
        self.canvas.setFont(FONTS[words.bold], words.size * POINT)
        how = {"start": "drawString", "middle": "drawCentredString", "end": "drawRightString"}[words.anchor]
        getattr(self.canvas, how)(words.x * POINT, (self.height - words.y) * POINT, words.text)


def _draw(sheet: _Sheet, card: Card, picture: Any, plan: Plan, page: Page, label: Label) -> None:
    canvas = sheet.canvas
    x, y = page.on_page(0, 0)
    if len(plan.pages) == 1:  # a print shop's words for the cut line and what may lie outside it
        canvas.setTrimBox(_corners(sheet.box(Box(x, y, card.width, card.height))))
        canvas.setBleedBox(
            _corners(sheet.box(Box(x - BLEED, y - BLEED, card.width + 2 * BLEED, card.height + 2 * BLEED)))
        )
    canvas.saveState()
    if len(plan.pages) > 1:
        sheet.clip(Box(page.left, page.top, page.tile.width, page.tile.height))
    patch = card.patch
    canvas.drawImage(picture, *sheet.box(Box(x + patch.x, y + patch.y, patch.width, patch.height)))
    for fill in (_frame(patch), *printed(card)):
        sheet.fill(shifted(fill, x, y))
    canvas.restoreState()
    fills, words = beside(plan, page, card, label)
    for fill in fills:
        sheet.fill(fill)
    for line in words:
        sheet.write(line)


def _frame(box: Box) -> Fill:
    """White round the patch: renderers enlarge a picture to whole pixels, but cut a shape where it ends."""
    wide = box.width + 2 * EDGE
    right, low = box.x + box.width, box.y + box.height
    return Fill(
        (
            Box(box.x - EDGE, box.y - EDGE, wide, EDGE),
            Box(box.x - EDGE, low, wide, EDGE),
            Box(box.x - EDGE, box.y, EDGE, box.height),
            Box(right, box.y, EDGE, box.height),
        ),
        (WHITE, WHITE, WHITE),
    )


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    left, low, width, height = box
    return left, low, left + width, low + height


@contextmanager
def _binary() -> Iterator[None]:
    """ReportLab's default writes pictures as text, slowly and a quarter longer."""
    settings = extra("reportlab.rl_config")
    before, settings.useA85 = settings.useA85, 0
    try:
        yield
    finally:
        settings.useA85 = before

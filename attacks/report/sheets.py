"""Pictures of a page as data URIs, a perturbation amplified so that it can be seen, and sheets of views with the
values of their coordinates below."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from attacks.data.images import read_values, to_bytes
from attacks.evaluation.rare.failure import PictureFailure, largest_first
from attacks.runtime.files import atomic

#: Larger pictures are cropped to the centre: resampling would change the perturbation.
LARGEST = 384
#: In pixels: between things, the height of a letter, the least width of a view, the widest name of a coordinate.
GAP, FONT, NARROWEST, LONGEST = 6, 12, 56, 320
LEADING = FONT + 3
#: Views of the sheet, and in a row of it.
MAX_VIEWS, COLUMNS = 12, 6


class Picture(NamedTuple):
    """An image of the page as a data URI."""

    source: str
    width: int
    height: int
    alt: str
    caption: str


def picture_file(content: Mapping[str, Any], manifest: Mapping[str, Any], number: int) -> str:
    """The file name of picture `number` of metrics.json. Names are chosen among all pictures of the run, which
    manifest.json lists; those that failed, and the last ones of a run that stopped early, are not in metrics.json."""
    names, failed = manifest["artefacts"]["pictures"]["names"], {failure["picture"] for failure in content["failed"]}
    files = [name for row, name in enumerate(names[: len(names) - content["left"]]) if row not in failed]
    return str(files[number])


def from_file(path: Path, alt: str, caption: str = "") -> Picture | None:
    """A PNG file, unchanged; None if it does not exist."""
    if not path.is_file():
        return None
    height, width = read_values(path).shape[:2]
    return Picture(_uri(path.read_bytes()), width, height, alt, caption)


def perturbation(clean_file: Path, attacked_file: Path, captions: tuple[str, str]) -> list[Picture]:
    """The picture and the attacked one, with their captions, and their difference, to scale and amplified; empty
    where a file is missing."""
    if not (clean_file.is_file() and attacked_file.is_file()):
        return []
    clean_pixels, attacked_pixels = (_centre(path) for path in (clean_file, attacked_file))
    delta = attacked_pixels.astype(int) - clean_pixels
    peak, rms = int(np.abs(delta).max()), float(np.sqrt(np.square(delta).mean()))
    times = max(1, 127 // max(1, peak))
    size = f"largest change {peak} of 255 steps, root mean square {rms:.1f}"
    clipped = "nothing is clipped" if peak <= 127 else "changes of more than 127 steps are clipped"
    text = f"amplified {times} times: {clipped}"
    return [
        _picture(clean_pixels, "The untouched picture", captions[0]),
        _picture(attacked_pixels, "The attacked picture", captions[1]),
        _picture(delta + 128, f"The perturbation on grey, to scale: {size}", "the perturbation to scale"),
        _picture(delta * times + 128, f"The perturbation on grey, {text}", text),
    ]


def _centre(path: Path) -> np.ndarray:
    values = read_values(path)[..., :3]
    top, left = (max(0, (size - LARGEST) // 2) for size in values.shape[:2])
    return values[top : top + LARGEST, left : left + LARGEST]


def _picture(values: np.ndarray, alt: str, caption: str) -> Picture:
    buffer = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(buffer, format="png", optimize=True)
    return Picture(_uri(buffer.getvalue()), values.shape[1], values.shape[0], alt, caption)


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def wrap(text: str, width: float, font: Any) -> list[str]:
    """The text in lines of at most `width` pixels, broken between words, later lines indented."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) > width:
            lines.append(f"  {word}")
        else:
            lines[-1:] = [longer]
    return lines


def view_sheet_figure(
    original: Tensor | None, views: list[Tensor], names: list[str], values: list[list[str]], columns: int
) -> Image.Image:
    """Views (3,h,w) in rows of `columns`, their values below; at the left the original, if any, and the names."""
    font: Any = ImageFont.load_default(size=FONT)
    blocks = [wrap(name, LONGEST, font) for name in names]
    wide = max(NARROWEST, *(view.shape[2] for view in views))
    first, high = (0, 0) if original is None else (original.shape[2], original.shape[1])
    high = max(high, *(view.shape[1] for view in views))
    lines = [line for block in blocks for line in block]
    head = max(first, *(math.ceil(font.getlength(line)) for line in ["original", *lines]))
    columns = min(columns, len(views))
    row_height = high + GAP + LEADING * (1 + len(lines)) + GAP
    start = GAP + head + 2 * GAP  # of the views
    size = (start + (wide + GAP) * columns, GAP + row_height * math.ceil(len(views) / columns))
    draw = ImageDraw.Draw(canvas := Image.new("RGB", size, "white"))

    def cell(picture: Tensor | None, left: int, top: int, width: int, title: str, below: list[list[str]]) -> None:
        if picture is not None:
            image = Image.fromarray(to_bytes(picture))
            canvas.paste(image, (left + (width - image.width) // 2, top + (high - image.height) // 2))
        top += high + GAP
        draw.text((left, top), title, fill="dimgrey", font=font)
        for i, line in enumerate(line for block in below for line in block):
            draw.text((left, top + LEADING * (1 + i)), line, fill="black", font=font)

    for i, (view, numbers) in enumerate(zip(views, values, strict=True)):
        row, column = divmod(i, columns)
        top = GAP + row * row_height
        if column == 0:
            cell(None if row else original, GAP, top, first, "" if row or original is None else "original", blocks)
        below_view = [[number, *[""] * (len(block) - 1)] for number, block in zip(numbers, blocks, strict=True)]
        cell(view, start + column * (wide + GAP), top, wide, f"view {i + 1}", below_view)
    return canvas


def draw_failures(path: Path, failures: Sequence[PictureFailure]) -> None:
    """Save the views as PNG: of each arm the pictures that fail most often, as many of each."""
    candidates = largest_first(failures)
    arms = dict.fromkeys(failure.arm for failure in failures)
    rows = [row for arm in arms for row in [row for row in candidates if row.arm == arm][: MAX_VIEWS // len(arms)]]
    views = [row.view for row in rows if row.view is not None]
    values = [[row.picture, row.arm, f"{row.high:.2g}", f"{row.estimate:.2g}"] for row in rows]
    names = ["picture", "arm", "P at most", "estimate"]
    with atomic(path) as temporary:
        view_sheet_figure(None, views, names, values, COLUMNS).save(temporary, format="PNG")

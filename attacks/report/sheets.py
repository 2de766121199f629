"""Pictures of a page as data URIs, and a perturbation amplified so that it can be seen."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attacks.data.images import read_values

#: Larger pictures are cropped to the centre: resampling would change the perturbation.
LARGEST = 384


class Picture(NamedTuple):
    """An image of the page as a data URI."""

    source: str
    width: int
    height: int
    alt: str
    caption: str


def picture_file(content: Mapping[str, Any], manifest: Mapping[str, Any], number: int) -> str:
    """The file of picture `number` of metrics.json, which lacks pictures of manifest.json that failed or are left."""
    names, failed = manifest["artefacts"]["pictures"]["names"], {failure["picture"] for failure in content["failed"]}
    files = [name for row, name in enumerate(names[: len(names) - content["left"]]) if row not in failed]
    return str(files[number])


def from_file(path: Path, alt: str, caption: str = "") -> Picture | None:
    """A PNG file, unchanged; None if it does not exist."""
    if not path.is_file():
        return None
    height, width = read_values(path).shape[:2]
    return Picture(_uri(path.read_bytes()), width, height, alt, caption)


def perturbation(clean_file: Path, attacked_file: Path) -> list[Picture]:
    """The picture, the attacked one, and their difference, to scale and amplified. Empty if a file is missing."""
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
        _picture(clean_pixels, "The untouched picture", "the untouched file"),
        _picture(attacked_pixels, "The attacked picture", "the attacked file"),
        _picture(delta + 128, f"The perturbation on grey, to scale: {size}", f"the perturbation to scale: {size}"),
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

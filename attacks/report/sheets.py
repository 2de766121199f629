"""Pictures on a page: what a file holds as a data URI, and a perturbation that a person can see."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

#: A larger picture is cut to its middle: resampled, a perturbation would be another one.
LARGEST = 384


class Picture(NamedTuple):
    """An image of the page: its data URI, size, text for who cannot see it, and caption."""

    source: str
    width: int
    height: int
    alt: str
    caption: str


def from_file(path: Path, alt: str, caption: str = "") -> Picture | None:
    """A PNG as it is; None where there is no such file."""
    if not path.is_file():
        return None
    with Image.open(path) as image:
        width, height = image.size
    return Picture(_uri(path.read_bytes()), width, height, alt, caption)


def perturbation(clean: Path, attacked: Path) -> list[Picture]:
    """The picture, the attacked one, and their difference: as large as it is, and as large as it can be shown. Empty
    where a file is missing."""
    if not (clean.is_file() and attacked.is_file()):
        return []
    untouched, changed = (_middle(path) for path in (clean, attacked))
    delta = changed.astype(int) - untouched
    times = max(1, 127 // max(1, int(np.abs(delta).max())))
    rms = float(np.sqrt(np.square(delta).mean()))
    size = f"largest change {int(np.abs(delta).max())} of 255 steps, root mean square {rms:.1f}"
    return [
        _picture(untouched, "The untouched picture", "the untouched file"),
        _picture(changed, "The attacked picture", "the attacked file"),
        _picture(delta + 128, f"The perturbation on grey, as it is: {size}", f"the perturbation as it is: {size}"),
        _picture(
            delta * times + 128, f"The perturbation on grey, amplified {times} times", f"amplified {times} times"
        ),
    ]


def _middle(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        values = np.asarray(image.convert("RGB"))
    down, across = (max(0, (size - LARGEST) // 2) for size in values.shape[:2])
    return values[down : down + LARGEST, across : across + LARGEST]


def _picture(values: np.ndarray, alt: str, caption: str) -> Picture:
    buffer = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(buffer, format="png", optimize=True)
    return Picture(_uri(buffer.getvalue()), values.shape[1], values.shape[0], alt, caption)


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"

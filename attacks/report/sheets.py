"""Pictures of a page as data URIs, and a perturbation amplified so that it can be seen."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from attacks.data.images import values_of

#: Larger pictures are cropped to the centre: resampling would change the perturbation.
LARGEST = 384


class Picture(NamedTuple):
    """An image of the page: its data URI, size, alternative text and caption."""

    source: str
    width: int
    height: int
    alt: str
    caption: str


def picture_file(content: Mapping[str, Any], manifest: Mapping[str, Any], number: int) -> str:
    """The file name of picture `number` of metrics.json. Names are chosen among all pictures of the run, which
    manifest.json lists; those that failed, and the last ones of a run that stopped early, are not in metrics.json."""
    names, failed = manifest["artefacts"]["pictures"]["names"], {each["picture"] for each in content["failed"]}
    kept = [name for row, name in enumerate(names[: len(names) - content["left"]]) if row not in failed]
    return str(kept[number])


def from_file(path: Path, alt: str, caption: str = "") -> Picture | None:
    """A PNG file, unchanged; None if it does not exist."""
    if not path.is_file():
        return None
    height, width = values_of(path).shape[:2]
    return Picture(_uri(path.read_bytes()), width, height, alt, caption)


def perturbation(clean: Path, attacked: Path) -> list[Picture]:
    """The picture, the attacked one, and their difference, to scale and amplified. Empty if a file is missing."""
    if not (clean.is_file() and attacked.is_file()):
        return []
    untouched, changed = (_centre(path) for path in (clean, attacked))
    delta = changed.astype(int) - untouched
    most, rms = int(np.abs(delta).max()), float(np.sqrt(np.square(delta).mean()))
    times = max(1, 127 // max(1, most))
    size = f"largest change {most} of 255 steps, root mean square {rms:.1f}"
    clipped = "nothing is clipped" if most <= 127 else "changes of more than 127 steps are clipped"
    amplified = f"amplified {times} times: {clipped}"
    return [
        _picture(untouched, "The untouched picture", "the untouched file"),
        _picture(changed, "The attacked picture", "the attacked file"),
        _picture(delta + 128, f"The perturbation on grey, to scale: {size}", f"the perturbation to scale: {size}"),
        _picture(delta * times + 128, f"The perturbation on grey, {amplified}", amplified),
    ]


def _centre(path: Path) -> np.ndarray:
    values = values_of(path)[..., :3]
    down, across = (max(0, (size - LARGEST) // 2) for size in values.shape[:2])
    return values[down : down + LARGEST, across : across + LARGEST]


def _picture(values: np.ndarray, alt: str, caption: str) -> Picture:
    buffer = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(buffer, format="png", optimize=True)
    return Picture(_uri(buffer.getvalue()), values.shape[1], values.shape[0], alt, caption)


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"

"""What a platform saves a picture as: Pillow's real encoders and decoders, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO

import numpy as np
from PIL import Image, features

#: A picture (H,W,3) of 8 bits to what a file of it shows.
Codec = Callable[[np.ndarray], np.ndarray]

#: Codec -> the format's name, and what it is saved with. WebP at Pillow's own quality, 80.
_FORMATS: dict[str, tuple[str, dict[str, int]]] = {
    "PNG": ("PNG", {}),
    "JPEG 95": ("JPEG", {"quality": 95}),
    "JPEG 75": ("JPEG", {"quality": 75}),
    "JPEG 50": ("JPEG", {"quality": 50}),
    "WebP 80": ("WEBP", {"quality": 80}),
}


def codecs() -> tuple[dict[str, Codec], list[str]]:
    """The codecs by name, and what is missing here, in words."""
    found: dict[str, Codec] = {name: partial(saved, kind=kind, how=how) for name, (kind, how) in _FORMATS.items()}
    if features.check("webp"):
        return found, []
    del found["WebP 80"]
    return found, ["WebP 80: this Pillow was built without WebP; Pillow's own wheels have it"]


def saved(pixels: np.ndarray, kind: str, how: Mapping[str, int]) -> np.ndarray:
    """One picture (H,W,3) of 8 bits, saved as `kind` and loaded again."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format=kind, **how)
    with Image.open(file, formats=(kind,)) as loaded:
        return np.array(loaded.convert("RGB"))

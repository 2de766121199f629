"""8-bit pictures as PNG files in memory."""

import io

import numpy as np
from PIL import Image


def png(picture: np.ndarray) -> bytes:
    """(H,W,3) uint8 -> the bytes of a PNG file without loss."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()

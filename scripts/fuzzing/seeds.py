"""Small picture files of every format and mode, made from photographs of scikit-image."""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any

import skimage.data
from PIL import Image

#: Name, format, mode, and what else the encoder is told.
FILES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    *((f"png-{mode}", "PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")),
    ("png-transparent", "PNG", "P", {"transparency": 3}),
    ("png-key", "PNG", "RGB", {"transparency": (10, 20, 30)}),
    ("png-palette-bits", "PNG", "P", {"bits": 2}),
    *((f"jpeg-{mode}", "JPEG", mode, {}) for mode in ("RGB", "L", "CMYK")),
    ("jpeg-progressive", "JPEG", "RGB", {"progressive": True, "subsampling": "4:2:0"}),
    ("jpeg-restart", "JPEG", "RGB", {"restart_marker_blocks": 1, "comment": b"of a photograph"}),
    *((f"gif-{mode}", "GIF", mode, {}) for mode in ("P", "L")),
    ("gif-transparent", "GIF", "P", {"transparency": 1, "interlace": 1}),
    *((f"webp-{mode}", "WEBP", mode, {"quality": 60}) for mode in ("RGB", "RGBA")),
    ("webp-lossless", "WEBP", "RGBA", {"lossless": True}),
    *((f"bmp-{mode}", "BMP", mode, {}) for mode in ("RGB", "L", "P", "1", "RGBA")),
    *(
        (f"tiff-{mode}", "TIFF", mode, {})
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "CMYK", "F", "I", "LAB", "YCbCr")
    ),
    *(
        (f"tiff-{kind}", "TIFF", "RGB", {"compression": kind})
        for kind in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")
    ),
    ("tiff-group4", "TIFF", "1", {"compression": "group4"}),
    ("ppm", "PPM", "RGB", {}),
    ("pgm", "PPM", "L", {}),
    ("ico", "ICO", "RGBA", {}),
)
#: Of these formats one file has several frames.
MOVING = ("PNG", "GIF", "WEBP", "TIFF")


@cache
def seeds() -> dict[str, bytes]:
    """Name to content."""
    photo = Image.fromarray(skimage.data.astronaut()[100:124, 200:217])
    other = Image.fromarray(skimage.data.chelsea()[100:124, 200:217])
    made = {name: _file(_in_mode(photo, mode), kind, **more) for name, kind, mode, more in FILES}
    for kind in MOVING:
        made[f"{kind.lower()}-moving"] = _file(photo, kind, save_all=True, append_images=[other], duration=50)
    for orientation in (2, 6, 8):
        turned = Image.Exif()
        turned[0x0112], turned[0x010E] = orientation, "a picture"
        for kind in ("PNG", "JPEG", "WEBP", "TIFF"):
            made[f"{kind.lower()}-turned-{orientation}"] = _file(photo, kind, exif=turned)
    return made


def _in_mode(photo: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return photo.convert("I").point(lambda value: value * 257).convert("I;16")
    if mode == "LAB":
        return Image.frombytes("LAB", photo.size, photo.tobytes())
    return photo.convert(mode)


def _file(picture: Image.Image, kind: str, **options: Any) -> bytes:
    content = BytesIO()
    picture.save(content, format=kind, **options)
    return content.getvalue()

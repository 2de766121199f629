"""Picture files in and out. In memory a picture is (3,H,W) float32 in [0,1]; on disk it has 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from attacks.files import atomic

#: Formats that Pillow may take a file for, whatever its name: left to itself it hands PostScript to Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")


def load_image(path: str | Path) -> tuple[Tensor, list[str]]:
    """Read one picture.

    Returns:
        (3,H,W) float32 in [0,1], every value a multiple of 1/255, and what was converted on the way, in words: an
        alpha channel is laid over white, 16 bits are reduced to 8, grey and palette become RGB, the EXIF orientation
        is applied.

    Raises:
        FileNotFoundError, ValueError: no such file, or not a picture that Pillow can read whole.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else f"does not exist (paths are relative to {Path.cwd()})"
        raise FileNotFoundError(f"image `{path}` {what}")
    notes: list[str] = []
    try:
        with Image.open(path, formats=FORMATS) as opened:
            deep = any(";16" in str(tile.args) for tile in opened.tile)  # Pillow keeps the high bytes of RGB;16
            turned = opened.getexif().get(ORIENTATION, 1) != 1
            opened.load()
            tensor = _to_tensor(ImageOps.exif_transpose(opened), notes, deep)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"image `{path}` cannot be read ({error}): is the file whole, and a picture?") from None
    notes += ["set upright as its EXIF orientation says"] if turned else []
    return tensor, [f"{path.name}: {note}" for note in notes]


ORIENTATION = 0x0112  # the EXIF tag


def _to_tensor(picture: Image.Image, notes: list[str], deep: bool) -> Tensor:
    if picture.mode == "F":
        raise ValueError("floating-point pixels have no fixed range; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        values = np.asarray(picture, dtype=np.float64)
        if deep or values.max() > 255:  # of 32 bits only the range tells whether 16 are meant
            values = values / 257
        picture, deep = Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8)).convert("RGB"), True
    if deep:
        notes.append("more than 8 bits reduced to 8")
    if "A" in picture.getbands() or "transparency" in picture.info:
        notes.append("alpha channel laid over white")
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    elif picture.mode != "RGB":
        notes.append(f"mode {picture.mode} converted to RGB")
    array = np.array(picture.convert("RGB"))
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255


def to_bytes(image: Tensor) -> np.ndarray:
    """(3,H,W) in [0,1] -> (H,W,3) uint8, rounded (not truncated)."""
    return (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def save_image(path: str | Path, image: Tensor, alpha: Tensor | None = None) -> None:
    """Write (3,H,W) in [0,1], perhaps with an `alpha` (1,H,W), as a lossless 8-bit PNG, whole or not at all."""
    pixels = image if alpha is None else torch.cat([image, alpha.to(image)])
    with atomic(path) as temporary:
        Image.fromarray(to_bytes(pixels)).save(temporary, format="PNG")


def load_texture(path: str | Path) -> Tensor:
    """The colours (3,H,W) of a PNG that `save_image` wrote, whatever its alpha channel says."""
    with Image.open(path, formats=("PNG",)) as opened:
        array = np.array(opened)[..., :3]
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255

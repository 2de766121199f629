"""Picture files in and out. In memory a picture is (3,H,W) float32 in [0,1]; on disk it has 8 bits."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from attacks.data.caught import caught
from attacks.runtime.files import atomic

#: Formats that Pillow may take a file for, whatever its name: left to itself it hands PostScript to Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
#: The most pixels of a picture: where Pillow begins to warn of bombs. One of 4 bytes a value is 1 GB of memory then.
MOST_PIXELS = Image.MAX_IMAGE_PIXELS or 2**26
#: The longest side: no format but PNG and TIFF has more, and 500 bytes of a moving WebP can say 17 x 4 million.
MOST_SIDE = 65_535
#: The most bytes of a name before its ending: systems allow 255 for all of it.
LONGEST_NAME = 200


def load_image(path: str | Path) -> tuple[Tensor, list[str]]:
    """Read one picture.

    Returns:
        (3,H,W) float32 in [0,1], every value a multiple of 1/255, and what was converted on the way, in words: an
        alpha channel is laid over white, 12 or 16 bits are reduced to 8, grey and palette become RGB, the EXIF
        orientation is applied, and of several frames or pages the first is taken. A colour profile is not applied.

    Raises:
        FileNotFoundError, ValueError: no such file, or not a picture that Pillow can read whole.
    """
    path = Path(path)
    name = shown(str(path))
    if not path.is_file():  # a pipe would be waited for, a device has no end
        there = "is not a plain file" if path.exists() else f"does not exist (paths are relative to {Path.cwd()})"
        raise FileNotFoundError(f"image `{name}` {'is a folder' if path.is_dir() else there}")
    notes: list[str] = []
    try:
        # By handle: a file that Pillow opens by path is mapped, a TIFF on its side with its rows as long as upright.
        with caught() as warned, path.open("rb") as file, Image.open(file, formats=FORMATS) as opened:
            refuse_long(opened)
            raw = str([tile.args for tile in opened.tile])
            most = 4095 if ";12" in raw else 65_535 if ";16" in raw else 255
            negative = getattr(opened, "tag_v2", {}).get(PHOTOMETRIC) == 0
            turned = opened.getexif().get(ORIENTATION, 1) != 1
            opened.load()
            tensor = _to_tensor(upright(opened), notes, most, negative)
            several = getattr(opened, "is_animated", False)  # last, for it looks for a second frame
    except Exception as error:  # what a broken file makes Pillow raise has no common ancestor
        raise unreadable(name, error) from None
    notes += ["set upright as its EXIF orientation says"] if turned else []
    notes += ["the first of several frames is taken"] if several else []
    notes += list(dict.fromkeys(shown(f"Pillow warns: {text}") for text in warned))
    return tensor, [f"{shown(path.name)}: {note}" for note in notes]


def refuse_long(opened: Image.Image) -> None:
    """Raise ValueError for a picture with a side above `MOST_SIDE`, before anything is decoded."""
    if max(opened.size) > MOST_SIDE:
        raise ValueError(f"it says that it is more than {MOST_SIDE:,} pixels long")


def upright(opened: Image.Image) -> Image.Image:
    """A picture set upright as its EXIF orientation says. `ImageOps.exif_transpose` also writes the other tags anew,
    and fails where one of them is malformed."""
    opened.load()  # a PNG may have its EXIF behind the pixels
    turn = TURNS.get(opened.getexif().get(ORIENTATION, 1))
    return opened if turn is None else opened.transpose(turn)


def unreadable(name: str, error: Exception) -> ValueError:
    """The error of a file that cannot be read, in one line."""
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return ValueError(
            f"image `{name}` cannot be read: it says that it has more than {MOST_PIXELS:,} pixels; reduce it"
        )
    return ValueError(f"image `{name}` cannot be read ({_why(error)}): is the file whole, and a picture?")


def _why(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"it is none of {', '.join(FORMATS)}"
    kind = "" if isinstance(error, OSError | SyntaxError | ValueError) else f"{type(error).__name__}: "
    return shown(f"{kind}{' '.join(str(error).split())[:200]}")


def shown(name: str) -> str:
    """A file's name as reports, tables and a terminal have it: what cannot be printed as %0A is of a line's end. Two
    names stay two, and none can end a line, move a cursor, or fail to be written as UTF-8."""
    return _ODD.sub(
        lambda match: quote(os.fsencode(match[0])) if match[0] == "%" or not match[0].isprintable() else match[0],
        name,
    )


_ODD = re.compile(r"%(?=[0-9A-Fa-f]{2})|[^ -~]")
PHOTOMETRIC = 0x0106  # the TIFF tag; 0 where the least value is white
ORIENTATION = 0x0112  # the EXIF tag
#: Its values -> what sets a picture upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _to_tensor(picture: Image.Image, notes: list[str], most: int, negative: bool) -> Tensor:
    """Of a picture whose values go up to `most`; of colours Pillow has kept the high bytes. It has inverted a
    `negative` of 8 bits, but none of 16."""
    if picture.mode == "F":
        raise ValueError("floating-point pixels have no fixed range; save it with 8 or 16 bits")
    deep = most > 255 or picture.mode.startswith("I")
    if picture.mode.startswith("I"):
        values, hole = np.asarray(picture, dtype=np.float64), picture.info.get("transparency")
        if most == 255 and values.max() > 255:  # of 32 bits only the range tells whether 16 are meant
            most = 65_535
        seen = Image.fromarray(values != hole)
        values = (most - values if negative else values) / (most / 255)
        picture = Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
        if hole is not None:
            picture.putalpha(seen)
    elif deep and "transparency" in picture.info:  # Pillow compares the colour's low bytes with the pixels' high ones
        raise ValueError("Pillow misreads a transparent colour of 16 bits; save it with an alpha channel")
    if deep:
        notes.append("more than 8 bits reduced to 8")
    if "A" in picture.getbands() or "transparency" in picture.info:
        notes.append("alpha channel laid over white")
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    elif picture.mode != "RGB":
        notes.append(f"mode {picture.mode} converted to RGB")
    array = np.array(picture.convert("RGB"))
    return torch.from_numpy(array).permute(2, 0, 1).float().div_(255)  # in place: the largest is a gigabyte


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
    return colours(values_of(path))


def values_of(file: str | Path | BinaryIO) -> np.ndarray:
    """The values (H,W,C) uint8 of a PNG that `save_image` wrote. Threads may call it, unlike `load_image`, which
    collects the warnings of the whole process."""
    with Image.open(file, formats=("PNG",)) as opened:
        return np.array(opened)


def colours(values: np.ndarray) -> Tensor:
    """(H,W,3 or more) uint8 -> (3,H,W) in [0,1]."""
    return torch.from_numpy(values[..., :3]).permute(2, 0, 1).float() / 255


def file_names(names: tuple[str, ...]) -> list[str]:
    """A PNG name for each picture: its stem; where another has the same, the name of its file, or its name with its
    folders. Where even these meet, all are numbered. None leads to another folder, or is longer than names may be."""
    stems = dict.fromkeys(range(len(names)), "")
    for form in (lambda name: Path(name).stem, lambda name: Path(name).name, lambda name: name):
        counts = Counter(stems.values())
        stems |= {i: _inside(form(names[i])) for i, name in stems.items() if not name or counts[name] > 1}
    clash = len(set(stems.values())) < len(stems)
    return [f"{f'{i}-' if clash else ''}{name}.png" for i, name in stems.items()]


def _inside(name: str) -> str:
    return name.replace("/", "-").replace("\\", "-").encode()[:LONGEST_NAME].decode(errors="ignore")

"""Picture files in and out. In memory a picture is (3,H,W) float32 in [0,1]; on disk it has 8 bits."""

from collections import Counter
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attacks.runtime.decoding import decoded, refuse_large
from attacks.runtime.files import atomic
from transforms.doors import OVERSHOOT, checked

#: Endings of `attacks.runtime.decoding.FORMATS`.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
#: The most bytes of a name before its ending: systems allow 255 for all of it.
LONGEST_NAME = 200


def load_image(path: str | Path) -> tuple[Tensor, list[str]]:
    """Read one picture.

    Returns:
        (3,H,W) float32 in [0,1], every value a multiple of 1/255, and what was converted on the way, in words: an
        alpha channel is laid over white, 12 or 16 bits are reduced to 8, grey and palette become RGB, the EXIF
        orientation is applied, and of several frames or pages the first is taken. A colour profile is not applied.

    Raises:
        FileNotFoundError, ValueError: see `attacks.runtime.decoding.decoded`.
    """
    picture, notes = decoded(path)
    array = np.array(over_white(picture))
    del picture  # the largest is a quarter of a gigabyte, and its tensor one
    return torch.from_numpy(array).permute(2, 0, 1).float().div_(255), notes


def over_white(picture: Image.Image) -> Image.Image:
    """An RGB or RGBA picture as RGB, laid over white."""
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture


def to_bytes(image: Tensor) -> np.ndarray:
    """(3,H,W) in [0,1] -> (H,W,3) uint8, rounded (not truncated)."""
    image = checked(image.detach().cpu(), "image", slack=OVERSHOOT, rank=3)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


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
        refuse_large(opened)
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

"""Picture files in and out. In memory a picture is (3,H,W) float32 in [0,1]; on disk it has 8 bits."""

import csv
import hashlib
import itertools
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

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
    return colours(read_values(path))


def read_values(file: str | Path | BinaryIO) -> np.ndarray:
    """The values (H,W,C) uint8 of a PNG that `save_image` wrote. Threads may call it, unlike `load_image`, which
    collects the warnings of the whole process."""
    with Image.open(file, formats=("PNG",)) as picture:
        refuse_large(picture)
        return np.array(picture)


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


#: The most pictures that are written.
MOST_PICTURES = 5_000
#: The list of the written pictures, with labels where they have some.
LISTING = "pictures.csv"


def as_path(pictures: Any, folder: Path) -> Path:
    """A path that `data=folder` reads (see `attacks.data.listing.listed`), for pictures in any form.

    Args:
        pictures: a path; a list of paths; or pictures in memory: a tensor (N,3,H,W), or a list, Dataset, DataLoader
            or other iterable of pictures, of batches of them, or of (picture, label) pairs of either. A picture is
            (3,H,W) in [0,1] or uint8, or a PIL picture, which becomes RGB. A label that is a word or a whole number
            is the picture's identity, as a sub-folder's name is; others are ignored.
        folder: where pictures in memory are written, in a folder named by their content: as PNG, so with values
            rounded to 8 bits; and where the list of paths is written.

    Raises:
        ValueError: no pictures, more than `MOST_PICTURES`, or something else; in one line.
    """
    if isinstance(pictures, str | Path):
        return Path(pictures)
    if isinstance(pictures, Sequence) and pictures and all(isinstance(item, str | Path) for item in pictures):
        return _write_listing(folder, ((Path(item).absolute(), None) for item in pictures))
    return _write_listing(folder, _pictures_and_labels(pictures))


def _write_listing(folder: Path, items: Iterable[tuple[Tensor | Path, str | None]]) -> Path:
    scratch = folder / f".pictures-{secrets.token_hex(6)}"
    scratch.mkdir(parents=True)
    try:
        digest, rows = hashlib.sha256(), []
        for i, (item, label) in enumerate(items):
            if i == MOST_PICTURES:
                raise ValueError(
                    f"`pictures` may be at most {MOST_PICTURES:,}: save more as files, give their folder"
                )
            name = str(item) if isinstance(item, Path) else f"{i:04}.png"
            if isinstance(item, Tensor):
                save_image(scratch / name, item)
                digest.update((scratch / name).read_bytes())
            digest.update(f"{name}\0{label}\n".encode())
            rows.append((name, label or ""))
        if not rows:
            raise ValueError("`pictures` must hold at least one picture; it is empty")
        with (scratch / LISTING).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("path", "identity"), *rows])
        target = folder / f"pictures-{digest.hexdigest()[:12]}"
        if not target.exists():
            scratch.replace(target)
        return target / LISTING
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pictures_and_labels(pictures: Any) -> Iterator[tuple[Tensor, str | None]]:
    number = itertools.count()
    for item in _items(pictures):
        image, label = (*item, None)[:2] if isinstance(item, tuple | list) and item else (item, None)
        if isinstance(image, Image.Image):
            raw = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
            image = raw.view(image.height, image.width, 3).permute(2, 0, 1)
        if not isinstance(image, Tensor) or image.ndim not in (3, 4) or image.shape[-3] != 3:
            kind = f"one shaped {tuple(image.shape)}" if isinstance(image, Tensor) else f"a {type(image).__name__}"
            raise ValueError(
                f"`pictures` must be paths, or pictures (3,H,W) or batches (N,3,H,W), perhaps with labels; got {kind}"
            )
        batch = image if image.ndim == 4 else image[None]
        labels = list(label) if isinstance(label, Tensor | list | tuple) and image.ndim == 4 else [label] * len(batch)
        for row, name in zip(batch, [*labels, *[None] * len(batch)], strict=False):
            yield _check_picture(row, next(number)), _word(name)


def _items(pictures: Any) -> Iterable[Any]:
    if isinstance(pictures, Tensor):
        return [pictures]
    if hasattr(pictures, "__getitem__") and hasattr(pictures, "__len__") and not isinstance(pictures, dict):
        return (pictures[i] for i in range(len(pictures)))  # a Dataset need not end by IndexError
    if isinstance(pictures, Iterable) and not isinstance(pictures, dict | bytes):
        return pictures
    raise ValueError(
        "`pictures` must be a path, a list of paths, a tensor, or a list, Dataset or DataLoader of pictures; got "
        f"{type(pictures).__name__}"
    )


def _check_picture(image: Tensor, number: int) -> Tensor:
    if image.dtype == torch.uint8:
        return image.cpu().float() / 255
    return checked(image.detach(), f"pictures[{number}]", slack=0, rank=3).float()


def _word(label: Any) -> str | None:
    if isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point():
        label = label.item()
    return str(label) if isinstance(label, str | int) and not isinstance(label, bool) else None

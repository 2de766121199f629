"""Pictures in the memory of the caller, as files: a run then reads what anybody can look at, and can be verified."""

import csv
import hashlib
import itertools
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from attacks.data.images import save_image
from transforms.doors import checked

#: The most pictures that are written.
MOST = 5_000
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
        ValueError: no pictures, more than `MOST`, or something else; in one line.
    """
    if isinstance(pictures, str | Path):
        return Path(pictures)
    if isinstance(pictures, Sequence) and pictures and all(isinstance(each, str | Path) for each in pictures):
        return _kept(folder, ((Path(each).absolute(), None) for each in pictures))
    return _kept(folder, _each(pictures))


def _kept(folder: Path, items: Iterable[tuple[Tensor | Path, str | None]]) -> Path:
    """The listing of the items, in a folder of `folder` that is named by their content."""
    scratch = folder / f".pictures-{secrets.token_hex(6)}"
    scratch.mkdir(parents=True)
    try:
        digest, rows = hashlib.sha256(), []
        for i, (item, label) in enumerate(items):
            if i == MOST:
                raise ValueError(f"`pictures` may be at most {MOST:,}: save more as files and give their folder")
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


def _each(pictures: Any) -> Iterator[tuple[Tensor, str | None]]:
    number = itertools.count()
    for item in _items(pictures):
        image, label = (*item, None)[:2] if isinstance(item, tuple | list) and item else (item, None)
        if isinstance(image, Image.Image):
            image = _of_pil(image)
        if not isinstance(image, Tensor) or image.ndim not in (3, 4) or image.shape[-3] != 3:
            what = f"one shaped {tuple(image.shape)}" if isinstance(image, Tensor) else f"a {type(image).__name__}"
            raise ValueError(
                f"`pictures` must be paths, or pictures (3,H,W) or batches (N,3,H,W), perhaps with labels; got {what}"
            )
        batch = image if image.ndim == 4 else image[None]
        labels = list(label) if isinstance(label, Tensor | list | tuple) and image.ndim == 4 else [label] * len(batch)
        for one, name in zip(batch, [*labels, *[None] * len(batch)], strict=False):
            yield _checked(one, next(number)), _word(name)


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


def _of_pil(picture: Image.Image) -> Tensor:
    raw = torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8)
    return raw.view(picture.height, picture.width, 3).permute(2, 0, 1)


def _checked(image: Tensor, number: int) -> Tensor:
    """A picture in [0,1]."""
    if image.dtype == torch.uint8:
        return image.cpu().float() / 255
    return checked(image.detach(), f"pictures[{number}]", slack=0, rank=3).float()


def _word(label: Any) -> str | None:
    if isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point():
        label = label.item()
    return str(label) if isinstance(label, str | int) and not isinstance(label, bool) else None

"""Picture files in and out. In memory a picture is (3,H,W) float32 in [0,1]; on disk it has 8 bits."""

import hashlib
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attacks.data.table import COLUMNS, write_table
from attacks.runtime.decoding import decode_film, decoded, refuse_large
from attacks.runtime.files import atomic, make_folder
from transforms.doors import OVERSHOOT, checked

#: Endings of `attacks.runtime.decoding.FORMATS`.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
#: The most bytes of a name before its ending: systems allow 255 for all of it.
LONGEST_NAME = 200
#: The most pictures that are written, and their table.
MOST_PICTURES, LISTING = 5_000, "pictures.csv"


def load_image(path: str | Path) -> tuple[Tensor, list[str]]:
    """Read one picture: (3,H,W) float32 in [0,1], every value a multiple of 1/255, and what was converted on the way,
    in words: an alpha channel is laid over white, 12 or 16 bits are reduced to 8, grey and palette become RGB, the
    EXIF orientation is applied, and of several frames or pages the first is taken. A colour profile is not applied.
    Raises FileNotFoundError or ValueError (see `attacks.runtime.decoding.decoded`)."""
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


def from_bytes(pictures: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """8-bit pictures (H,W,3) -> (N,3,H,W) in [0,1], contiguous as pictures from files: the memory layout changes an
    encoder's last bits."""
    return (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().float() / 255).to(like)


def save_image(path: str | Path, image: Tensor, alpha: Tensor | None = None) -> None:
    """Write (3,H,W) in [0,1], perhaps with an `alpha` (1,H,W), as a lossless 8-bit PNG, whole or not at all."""
    pixels = image if alpha is None else torch.cat([image, alpha.to(image)])
    with atomic(path) as temporary:
        Image.fromarray(to_bytes(pixels)).save(temporary, format="PNG")


def save_frames(folder: Path, film: Path) -> list[Path]:
    """Write the frames of a film into a new folder: 0000.png, 0001.png, ... Raises as `load_image` does."""
    make_folder(folder)

    def save(number: int, frame: Image.Image) -> None:
        with atomic(folder / f"{number:04}.png") as temporary:
            over_white(frame).save(temporary, format="PNG")

    return [folder / f"{number:04}.png" for number in range(decode_film(film, save))]


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


def as_path(pictures: Any, folder: Path) -> Path:
    """A path that `data=folder` reads (see `attacks.data.listing.list_entries`), for pictures in any form.

    Args:
        pictures: a path; or a tensor (N,3,H,W), or a list, Dataset, DataLoader or other iterable of pictures, of
            batches of them, of (picture, label) pairs of either, or of mappings by column, as of a Hugging Face
            Dataset: `image` (or `path`), and perhaps `label` (or `identity`) and the columns of a table (see
            `attacks.data.table.read_table`). A picture is a path, (3,H,W) in [0,1] or uint8, or a PIL picture, which
            becomes RGB; a mask may also be (H,W) or (1,H,W). A label that is a word or a whole number is the
            picture's identity, as a sub-folder's name is; others are ignored. Other keys are named in a note.
        folder: where pictures in memory are written, in a folder named by their content: as PNG, so with values
            rounded to 8 bits; and where the table is written.

    Raises:
        ValueError: no pictures, more than `MOST_PICTURES`, or something else; in one line.
    """
    if isinstance(pictures, str | Path):
        return Path(pictures)
    scratch = folder / f".pictures-{secrets.token_hex(6)}"
    scratch.mkdir(parents=True)
    try:
        rows = []
        for number, record in enumerate(_records(pictures)):
            if number == MOST_PICTURES:
                raise ValueError(f"`pictures` may be at most {number:,}: save more as files, give their folder")
            cells = {column: _cell(scratch, number, column, value) for column, value in record.items()}
            rows.append({column: text for column, text in cells.items() if text or column not in COLUMNS})
        if not rows:
            raise ValueError("`pictures` must hold at least one picture; it is empty")
        write_table(scratch / LISTING, rows)
        digest = hashlib.sha256()
        for file in sorted(scratch.iterdir()):
            digest.update(file.read_bytes())
        target = folder / f"pictures-{digest.hexdigest()[:12]}"
        if not target.exists():
            scratch.replace(target)
        return target / LISTING
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _records(pictures: Any) -> Iterator[dict[str, Any]]:
    """The values of each picture, by the columns of a table."""
    for item in _items(pictures):
        record = dict(item) if isinstance(item, Mapping) else {}
        if isinstance(item, tuple | list) and item:
            record = dict(zip(("image", "label"), item, strict=False))
        elif not record:
            record = {"image": item}
        for name, column in (("label", "identity"), ("image", "path")):
            if name in record and column not in record:
                record = {column: record.pop(name), **record}
        if "path" not in record:
            raise ValueError(f"`pictures` must have `image` or `path` in each mapping; got {', '.join(record)}")
        picture = record["path"]
        if isinstance(picture, list | tuple) or (isinstance(picture, Tensor) and picture.ndim == 4):
            yield from ({name: _part(values, i) for name, values in record.items()} for i in range(len(picture)))
        else:
            yield record


def _part(values: Any, number: int) -> Any:
    """The value of one picture of a batch."""
    if isinstance(values, list | tuple) or (isinstance(values, Tensor) and values.ndim):
        return values[number] if number < len(values) else None
    return values


def _cell(folder: Path, number: int, column: str, value: Any) -> str:
    """A value as the cell of a table; a picture is written into the folder."""
    if column in ("path", "target", "mask"):
        if isinstance(value, Path) or (isinstance(value, str) and (column != "target" or Path(value).is_file())):
            return str(Path(value).absolute())
        if column == "path" or isinstance(value, Image.Image) or (isinstance(value, Tensor) and value.ndim):
            name = f"{number:04}.png" if column == "path" else f"{number:04}.{column}.png"
            save_image(folder / name, _picture(value, number, column))
            return name
    if column == "weight" and isinstance(value, float | Tensor):
        return str(float(value))
    return _word(value) or ""


def _picture(value: Any, number: int, column: str) -> Tensor:
    if isinstance(value, Image.Image):
        value = torch.from_numpy(np.array(value.convert("RGB"))).permute(2, 0, 1)
    if column == "mask" and isinstance(value, Tensor) and (value.ndim == 2 or value.shape[0] == 1):
        value = (value.float() if value.dtype == torch.bool else value).expand(3, *value.shape[-2:])
    if not isinstance(value, Tensor) or value.ndim != 3 or value.shape[0] != 3:
        kind = f"one shaped {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        rule = "be paths, or pictures (3,H,W) or batches (N,3,H,W), perhaps with labels, or mappings by column"
        raise ValueError(f"`pictures` must {rule}; got {kind}")
    if value.dtype == torch.uint8:
        return value.cpu().float() / 255
    return checked(value.detach(), f"pictures[{number}]", slack=0, rank=3).float()


def _items(pictures: Any) -> Iterable[Any]:
    if isinstance(pictures, Tensor):
        return [pictures]
    if hasattr(pictures, "__getitem__") and hasattr(pictures, "__len__") and not isinstance(pictures, dict):
        return (pictures[i] for i in range(len(pictures)))  # a Dataset need not end by IndexError
    if isinstance(pictures, Iterable) and not isinstance(pictures, dict | bytes):
        return pictures
    rule = "a path, a list of paths, a tensor, or a list, Dataset or DataLoader of pictures"
    raise ValueError(f"`pictures` must be {rule}; got {type(pictures).__name__}")


def _word(label: Any) -> str | None:
    if isinstance(label, Tensor) and label.ndim == 0 and not label.is_floating_point():
        label = label.item()
    return str(label) if isinstance(label, str | int) and not isinstance(label, bool) else None

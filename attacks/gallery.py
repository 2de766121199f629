"""Sets of pictures: the bundled photographs cut into tiles, or a person's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks.images import SUFFIXES, load_image
from transforms import resize

PHOTOS = Path(__file__).parent / "data" / "photos"
#: Photographs that the pocket encoder never saw; queries are cut from these.
HELD_OUT = ("astronaut", "chelsea", "coffee")
#: A tile whose values vary less than this (standard deviation) is a piece of sky, not a picture.
FLAT = 0.04


@dataclass(frozen=True)
class Pictures:
    """Named pictures of one size: `images` (N,3,H,W) in [0,1], every value a multiple of 1/255; `notes` says what
    was converted when the files were read."""

    names: tuple[str, ...]
    images: Tensor
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def spread(self, count: int | None) -> Pictures:
        """`count` pictures spread evenly over the set; None for all. Raises ValueError if there are fewer."""
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise ValueError(f"`data.count` must lie in 1..{len(self)}, the pictures that there are; got {count}")
        rows = [i * len(self) // count for i in range(count)]
        return Pictures(tuple(self.names[i] for i in rows), self.images[rows], self.notes)

    def resized(self, size: int) -> Pictures:
        """The same pictures with the shorter side `size`."""
        return Pictures(self.names, torch.stack([_square(image, size) for image in self.images]), self.notes)

    def joined(self, others: Pictures) -> Pictures:
        """These pictures, then those of `others` that are not among them; a name that is taken gets a prefix."""
        fresh = [
            i for i, image in enumerate(others.images) if not bool((self.images == image).flatten(1).all(1).any())
        ]
        names = (f"gallery/{name}" if name in self.names else name for name in (others.names[i] for i in fresh))
        return Pictures(
            (*self.names, *names), torch.cat([self.images, others.images[fresh]]), (*self.notes, *others.notes)
        )


def photographs() -> dict[str, Tensor]:
    """The bundled photographs by name, each (3,H,W) in [0,1]."""
    files = sorted(path for path in PHOTOS.iterdir() if path.suffix in SUFFIXES)
    return {path.stem: load_image(path)[0] for path in files}


def tiles(size: int, photos: Sequence[str] | None = None) -> Pictures:
    """Cut bundled photographs into `size` x `size` tiles that do not overlap; flat ones are left out.

    Names are photograph-row-column. `photos` limits the choice. Raises ValueError on an unknown name or a size
    that no photograph holds.
    """
    if size < 1:
        raise ValueError(f"`size` must be at least 1 pixel; got {size}")
    bundled = photographs()
    chosen = bundled if photos is None else photos
    names, pictures = [], []
    for name in chosen:
        if name not in bundled:
            raise ValueError(f"`photos` must name bundled photographs ({', '.join(bundled)}); got {name!r}")
        photo = bundled[name]
        for row in range(photo.shape[1] // size):
            for column in range(photo.shape[2] // size):
                tile = photo[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
                if tile.std() > FLAT:
                    names.append(f"{name}-{row}-{column}")
                    pictures.append(tile)
    if not pictures:
        raise ValueError(
            f"`size` must leave at least one tile; no photograph among {list(chosen)} holds {size} pixels"
        )
    return Pictures(tuple(names), torch.stack(pictures))


def folder(path: str | Path, size: int) -> Pictures:
    """Read a picture file, or every picture of a folder in the order of names; each is resized so that its shorter
    side is `size` (Pillow's bicubic), cut to the central square and rounded to 8 bits.

    Raises FileNotFoundError or ValueError, naming the file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"`{path}` does not exist (paths are relative to {Path.cwd()})")
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"`{path}` holds no picture ({', '.join(SUFFIXES)})")
    pictures, notes = [], []
    for file in files:
        image, said = load_image(file)
        notes += said
        if image.shape[1:] != (size, size):
            notes.append(f"{file.name}: {image.shape[2]}x{image.shape[1]} resized and cropped to {size}x{size}")
        pictures.append(_square(image, size))
    return Pictures(tuple(file.name for file in files), torch.stack(pictures), tuple(notes))


def _square(image: Tensor, size: int) -> Tensor:
    if min(image.shape[1:]) != size:
        image = resize(image[None], size, "pil_bicubic")[0].clamp(0, 1)
    top, left = (image.shape[1] - size) // 2, (image.shape[2] - size) // 2
    return (image[:, top : top + size, left : left + size] * 255).round() / 255

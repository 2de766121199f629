"""A folder of photographs: the picture that each shows, their pixels, and the camera."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.data.images import SUFFIXES, over_white
from attacks.runtime.decoding import decoded, printable_name
from attacks.runtime.extras import extra

#: Separates the picture's name from the rest of a file's name.
PART = "--"
#: Formats of telephones and cameras that are not read.
RAW = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf")
#: Those that are read besides `SUFFIXES`; the former need an extra.
HEIC, AVIF = (".heic", ".heif", ".hif"), ".avif"
#: EXIF: make, model; then, in its own directory, model of the lens, focal length, time, and fractions of its second.
CAMERA, EXIF, LENS, TIME = (0x010F, 0x0110), 0x8769, (0xA434, 0x920A), (0x9003, 0x9291)
#: The side of a thumbnail, and by how many levels (root mean square) those of two files of one photograph differ at
#: most: half as large and of quality 40 it is up to 1.6, and a camera moved by 0.4 % of the picture makes 3.3.
SMALL, SAME_LEVELS = 32, 2.0


@dataclass(frozen=True)
class PhotoFile:
    """A photograph: its file, its name (the path from the folder), the row of the picture that it shows, and the
    folder of frames that it is from, if any: a `clip` counts as one, because its frames are not independent."""

    path: Path
    name: str
    row: int
    clip: str | None = None


@dataclass(frozen=True, eq=False)
class Capture:
    """How a photograph was taken: its `camera` (make, model, lens and focal length of the EXIF, and the sides of the
    picture), the `time` ("" if it does not say), and a `thumbnail` (SMALL,SMALL,3)."""

    camera: tuple[str, ...]
    time: str
    thumbnail: NDArray[np.uint8]

    def equals(self, capture: "Capture") -> bool:
        """Whether both are files of one photograph: one picture in any size and format, not of different times."""
        difference = self.thumbnail.astype(float) - capture.thumbnail
        differs_in_time = self.time and capture.time and self.time != capture.time
        return bool((difference**2).mean() <= SAME_LEVELS**2) and not differs_in_time


def list_photos(
    folder: Path, pictures: Sequence[str], picture: str | None = None
) -> tuple[list[PhotoFile], list[str]]:
    """The photographs of a folder, in order of their names, and notes on files that are left out.

    A photograph shows `picture`, if given; else the picture whose name its own begins with, as in `street--03.jpg`,
    or whose name its subfolder has; else the run's only picture. A folder of frames of a video, `street--walk/`, or
    any folder within that of a picture, is named like a photograph. Raises FileNotFoundError or ValueError: no such
    folder, no picture named `picture`, or no photograph of any.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"photographs: `{folder}` is no folder (paths are relative to {Path.cwd()})")
    if picture is not None and picture not in pictures:
        raise ValueError(f"`--picture` must be one of the run's pictures ({_first_names(pictures)}); got {picture!r}")
    photos, notes = [], []
    for path, entry in sorted(_files(folder, pictures)):
        name = printable_name(path.relative_to(folder).as_posix())
        if path.suffix.lower() in HEIC:
            extra("pillow_heif")
        if path.suffix.lower() in RAW:
            notes.append(f"{name}: left out, {path.suffix} is not read; save it as JPEG or PNG")
        if path.suffix.lower() not in (*SUFFIXES, *HEIC, AVIF):
            continue
        name_of_picture = picture or _picture_name(entry, folder, pictures)
        if name_of_picture is None:
            notes.append(f"{name}: left out, the picture that it shows is unknown; name it PICTURE{PART}{path.name}")
        else:
            clip = None if entry == path else printable_name(entry.relative_to(folder).as_posix())
            photos.append(PhotoFile(path, name, list(pictures).index(name_of_picture), clip))
    if not photos:
        reason = f"({_first_names(pictures)}){f'; {notes[0]}' if notes else ''}"
        raise ValueError(f"photographs: `{folder}` holds none of the run's pictures {reason}")
    return photos, notes


def _files(folder: Path, pictures: Sequence[str]) -> list[tuple[Path, Path]]:
    """The files, each with what is named like a photograph: itself, or the folder that it is a frame of."""
    folders = [folder / name for name in pictures if (folder / name).is_dir()]
    clips = [path for subfolder in folders for path in subfolder.glob("[!.]*") if path.is_dir()]
    clips += [path for path in folder.glob(f"[!.]*{PART}*") if path.is_dir() and path not in folders]
    files = [(path, path) for subfolder in (folder, *folders) for path in subfolder.glob("[!.]*")]
    files += [(path, clip) for clip in clips for path in clip.glob("[!.]*")]
    return [(path, entry) for path, entry in files if path.is_file()]


def _picture_name(path: Path, folder: Path, pictures: Sequence[str]) -> str | None:
    if path.parent != folder:
        return path.parent.relative_to(folder).as_posix()
    fitting = [name for name in pictures if path.stem == name or path.stem.startswith(name + PART)]
    if fitting:
        return max(fitting, key=len)
    return pictures[0] if len(pictures) == 1 else None


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def read_photo(path: Path) -> NDArray[np.uint8]:
    """The pixels (H,W,3) of a photograph, set upright, in 8-bit RGB. Raises as `attacks.runtime.decoding.decoded`."""
    return read_capture(path)[0]


def read_capture(path: Path) -> tuple[NDArray[np.uint8], Capture]:
    """The pixels of `read_photo`, and how they were taken. Raises as that does."""
    picture = decoded(path)[0]
    tags, camera, time = picture.getexif(), list[str](), ""
    with suppress(Exception):  # what is no EXIF says nothing
        exif = tags.get_ifd(EXIF)
        camera = [str(tags.get(tag, "")) for tag in CAMERA] + [str(exif.get(tag, "")) for tag in LENS]
        time = " ".join(str(exif.get(tag, "")) for tag in TIME).strip()
    pixels = over_white(picture)
    thumbnail = np.asarray(pixels.resize((SMALL, SMALL), Image.Resampling.BILINEAR, reducing_gap=4.0))
    return np.asarray(pixels), Capture((*camera, *map(str, sorted(pixels.size))), time, thumbnail)

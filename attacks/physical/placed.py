"""Where the patch lies in the pictures of a run: what is read of a run's folder, which may be a stranger's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.experiment.directory import read_json

#: The longest side of a run's pictures and of a texture, and how much longer it may be than the other one.
LONGEST, ASPECT = 2**14, 2**10
#: The corners of a quad lie within so many widths of its picture.
REACH = 1e3


@dataclass(frozen=True)
class Placement:
    """`placement.json`: the pictures' names, their (height, width), the texture's, where it lies in each, as shares
    of width and height, and the target's name."""

    pictures: tuple[str, ...]
    size: tuple[int, int]
    texture: tuple[int, int]
    quads: tuple[tuple[Any, ...], ...]
    target: str | None


def placement(folder: Path) -> Placement:
    """Read `placement.json`. Raises FileNotFoundError or ValueError."""
    path = folder / "placement.json"
    if not path.is_file() and (folder / "manifest.json").is_file():
        raise FileNotFoundError(f"`{folder}` is no run of a patch: it has no placement.json (perturbation=patch)")
    said = read_json(path)
    try:
        quads = tuple(tuple(each) for each in said["quads"])
        names = tuple(_name(each) for each in said["pictures"])
        found = Placement(names, _size(said["size"]), _size(said["texture"]), quads, said["target"])
        if not names or len(quads) != len(names) or not all(map(len, quads)):
            raise ValueError("it must name a picture or more, and one quad or more for each")
        for quad in (quad for each in quads for quad in each):
            _check(quad)
        if not isinstance(found.target, str | None):
            raise ValueError("`target` must be a text or null")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`{path}` is not what a run writes ({type(error).__name__}: {error})") from None
    return found


def _name(name: Any) -> str:
    """Of a picture, which is that of a file in one folder: no path leads out of it."""
    if not isinstance(name, str) or not name.isprintable() or name in ("", ".", "..") or {"/", "\\"} & set(name):
        raise ValueError(f"a picture's name must be that of a file; got {name!r:.80}")
    return name


def _size(size: Any) -> tuple[int, int]:
    height, width = size
    if not all(type(side) is int and 1 <= side <= LONGEST for side in (height, width)):
        raise ValueError(f"a size must be two whole numbers of 1..{LONGEST}; got {size!r:.80}")
    if max(height, width) > ASPECT * min(height, width):
        raise ValueError(f"a size must be at most {ASPECT} times as long as wide; got {size!r:.80}")
    return height, width


def _check(quad: Any) -> None:
    numbers = [value for corner in quad for value in corner]
    if [len(corner) for corner in quad] != [2] * 4 or not all(type(value) in (int, float) for value in numbers):
        raise ValueError(f"a quad must be four corners [x, y]; got {quad!r:.80}")
    if not all(-REACH <= value <= REACH for value in numbers):
        raise ValueError(f"a quad must lie near its picture, in shares of its sides; got {quad!r:.80}")

"""What an encoder gets of a photograph: a square of it, as large as the run's pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from attacks.data.images import load_image
from attacks.encoders.description import identity
from attacks.experiment.build.parts import Parts, build
from attacks.experiment.directory import earlier, read_json, refuse_program
from attacks.physical.rectify import project
from attacks.schema import groups
from attacks.schema.validate import Run

#: Keys of an encoder's identity that say whether it is the same.
SAME = ("fingerprint", "sha256")

#: The longest side of a run's pictures and of a texture, and how much longer it may be than the other one.
LONGEST, ASPECT = 2**14, 2**10
#: The corners of a quad lie within so many widths of its picture.
REACH = 1e3


@dataclass(frozen=True, eq=False)
class Again:
    """What there is of a run of a patch: its configuration and parts, what it has written, and its placement."""

    folder: Path
    run: Run
    parts: Parts
    manifest: dict[str, Any]
    metrics: dict[str, Any]
    placement: Placement


def rerun(folder: Path, device: str = "auto", program: str | None = None) -> Again:
    """Make the parts of a run again, and see that they are the same.

    Args:
        program: the file or plug-in that the encoder is; whoever starts this says so, where it is one.

    Raises:
        FileNotFoundError, ValueError: in one line: no run of a patch, an encoder that is a program and was not named,
            other weights or pictures than the run had.
    """
    where, before = placement(folder), earlier(folder)
    metrics, said = read_json(folder / "metrics.json"), before.manifest
    run = before.run
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device
    run.penalty = groups.NoPenaltyConfig()  # a term of the attack, which may need a network of its own
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a folder to write to
    parts = build(run)
    _same_encoder(identity(run.encoder, parts.encoder), said.get("encoder"))
    _same_pictures(folder, where, parts)
    return Again(folder, run, parts, said, metrics, where)


def _same_encoder(found: dict[str, Any], before: Any) -> None:
    if not isinstance(before, dict):
        raise ValueError("manifest.json has no `encoder`: was it written by another version?")
    for key in SAME:
        if found.get(key) != before.get(key):
            raise ValueError(
                f"`encoder` is not the one of the run: its {key} is {str(found.get(key))[:12]}, and was "
                f"{str(before.get(key))[:12]}; put the weights of the run back"
            )


def _same_pictures(folder: Path, where: Placement, parts: Parts) -> None:
    images = parts.queries.images
    if len(images) != len(where.pictures):
        raise ValueError(f"`data` has {len(images)} pictures now, and had {len(where.pictures)} in the run")
    for name, image in zip(where.pictures, images, strict=True):
        before, _ = load_image(folder / "pictures" / "clean" / f"{name}.png")
        if before.shape != image.shape or not torch.equal(before, image.cpu()):
            raise ValueError(f"`data`: picture {name} is no longer what it was in the run; put the file back")


#: What lies beyond a photograph's edge.
GREY = 128
#: A scene may be so many times as wide as the photograph; of a larger one there is too little to be seen.
MOST = 2


@dataclass(frozen=True, eq=False)
class View:
    """`pixels` (3,S,S) in [0,1], multiples of 1/255; the square that they show: its left and upper edge and its side,
    in the photograph's pixels, 0 its edge; and how much of it lies beyond the photograph."""

    pixels: Tensor
    left: float
    top: float
    side: float
    outside: float

    def frame(self) -> NDArray[np.float64]:
        """(3,3) from the photograph's pixels (a centre is a whole number) to the view's stage frame."""
        half = self.side / 2
        x, y = 0.5 - self.left - half, 0.5 - self.top - half
        return np.array([[1, 0, x], [0, 1, y], [0, 0, half]]) / half


def photo_view(photo: NDArray[np.uint8], size: int) -> View:
    """The central square of a photograph: as the run reads its own pictures from files."""
    height, width = photo.shape[:2]
    side = min(height, width)
    return _square(photo, (width - side) // 2, (height - side) // 2, side, size)


def scene_view(photo: NDArray[np.uint8], homography: NDArray[np.float64], scene: tuple[int, int], size: int) -> View:
    """The upright square that shows the scene: its centre is that of the scene, its area as large.

    Args:
        homography: from the scene's pixels, 0 its edge, to the photograph's, a centre a whole number.
        scene: its (height, width).

    Raises:
        ValueError: a part of the scene lies behind the camera, or it is far larger than the photograph.
    """
    height, width = scene
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], float)
    depth = corners @ homography[2, :2] + homography[2, 2]
    if not ((depth > 0).all() or (depth < 0).all()):
        raise ValueError("the scene lies behind the camera; --view photo needs none of it")
    x, y = project(homography, corners).T
    side = math.sqrt(abs(float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum())) / 2)
    if not 1 <= side <= MOST * max(photo.shape[:2]):
        raise ValueError(
            f"the scene would be {side:.3g} pixels wide in the photograph; --view photo needs none of it"
        )
    middle = project(homography, [width / 2, height / 2])
    return _square(photo, float(middle[0]) + 0.5 - side / 2, float(middle[1]) + 0.5 - side / 2, side, size)


def _square(photo: NDArray[np.uint8], left: float, top: float, side: float, size: int) -> View:
    height, width = photo.shape[:2]
    margin = math.ceil(2 * max(1.0, side / size)) + 1
    x0, x1 = _reach(left, side, width, margin)
    y0, y1 = _reach(top, side, height, margin)
    part = np.full((y1 - y0, x1 - x0, 3), GREY, np.uint8)
    inside = photo[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    part[max(-y0, 0) :, max(-x0, 0) :][: inside.shape[0], : inside.shape[1]] = inside
    box = (left - x0, top - y0, left + side - x0, top + side - y0)
    shown: Any = Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC, box)
    across = max(0.0, min(left + side, width) - max(left, 0)), max(0.0, min(top + side, height) - max(top, 0))
    pixels = torch.from_numpy(np.array(shown)).permute(2, 0, 1).float() / 255
    return View(pixels, left, top, side, max(0.0, 1 - across[0] * across[1] / side**2))


def _reach(start: float, side: float, length: int, margin: int) -> tuple[int, int]:
    """The pixels that are needed along an axis: those of the square, and of a photograph `length` long as far beside
    it as a kernel reaches, so that a part is resized as a part of the whole is."""
    end = start + side
    low = math.floor(start) if start < 0 else max(math.floor(start) - margin, 0)
    high = math.ceil(end) if end > length else min(math.ceil(end) + margin, length)
    return min(low, length), max(high, 0)


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

"""The inputs of a photograph's score: the run and its print, read back from their folder, and the square that the
encoder gets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from attacks.data.images import load_image
from attacks.experiment.directory import previous_run, read_json, refuse_program
from attacks.perturbations.patch.card import Card, parse_card
from attacks.physical.sheet import refuse_unfinished
from attacks.schema import groups
from attacks.study.assembly import build
from attacks.study.printer import MEDIA
from attacks.study.study import Study

#: The longest side of a run's pictures and of a texture, and their largest aspect ratio.
LONGEST, ASPECT = 2**14, 2**10
#: The highest resolution of a print.
MOST_DPI = 10_000
#: The largest coordinate of a quad's corner, in shares of its picture.
REACH = 1e3
#: Keys of an encoder's description that must equal those of the run.
IDENTITY_KEYS = ("fingerprint", "sha256")
#: The names in `sheet.json`.
NAME_KEYS = ("id", "arm", "sha256")


@dataclass(frozen=True)
class PlacementRecord:
    """`placement.json`: the names of the pictures, their (height, width), that of the texture, its quads in shares of
    each picture, the name of the target, whether the patch lies `fixed` in the scene, and its medium, of `MEDIA`."""

    pictures: tuple[str, ...]
    size: tuple[int, int]
    texture: tuple[int, int]
    quads: tuple[tuple[Any, ...], ...]
    target: str | None
    fixed: bool
    medium: str = MEDIA[0]


@dataclass(frozen=True)
class PrintRecord:
    """`sheet.json`: the card, the id and the arm of its run, the digest of the texture's file, and the dots per
    inch."""

    card: Card
    id: str
    arm: str
    sha256: str
    dpi: int


def read_placement(folder: Path) -> PlacementRecord:
    """Read `placement.json` of a run. Raises FileNotFoundError or ValueError."""
    path = folder / "placement.json"
    if not path.is_file() and (folder / "manifest.json").is_file():
        refuse_unfinished(folder)
        raise FileNotFoundError(f"`{folder}` is no run of a patch: it has no placement.json (perturbation=patch)")
    content = read_json(path)
    try:
        quads = tuple(tuple(entry) for entry in content["quads"])
        names = tuple(_name(entry) for entry in content["pictures"])
        sizes = _size(content["size"]), _size(content["texture"])
        target, medium = content["target"], content.get("medium", MEDIA[0])
        record = PlacementRecord(names, *sizes, quads, target, content["fixed"], medium)
        if not names or len(quads) != len(names) or not all(map(len, quads)):
            raise ValueError("it must name a picture or more, and one quad or more for each")
        for quad in (quad for entry in quads for quad in entry):
            _check_quad(quad)
        if not isinstance(record.target, str | None):
            raise ValueError("`target` must be a text or null")
        if not isinstance(record.fixed, bool):
            raise ValueError("`fixed` must be true or false")
        if record.medium not in MEDIA:
            raise ValueError(f"`medium` must be one of {', '.join(MEDIA)}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`{path}` is not what a run writes ({type(error).__name__}: {error})") from None
    return record


def read_sheet(path: Path) -> PrintRecord:
    """Read `sheet.json` of a print. Raises ValueError."""
    content = read_json(path)
    try:
        card, dpi, (name, arm, digest) = parse_card(content["card"]), content["dpi"], map(content.get, NAME_KEYS)
        if not all(isinstance(text, str) for text in (name, arm, digest)):
            raise ValueError(f"it must name {', '.join(NAME_KEYS)}: the print of an earlier version is printed again")
        if type(dpi) is not int or not 1 <= dpi <= MOST_DPI:
            raise ValueError(f"`dpi` must be a whole number of 1..{MOST_DPI}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"`{path}` is not what print_patch writes ({type(error).__name__}: {error})") from None
    return PrintRecord(card, name, arm, digest, dpi)


def _name(name: Any) -> str:
    """The name of a picture, which must be that of a file: it may not lead to another folder."""
    if not isinstance(name, str) or not name.isprintable() or name in ("", ".", "..") or {"/", "\\"} & set(name):
        raise ValueError(f"a picture's name must be that of a file; got {name!r:.80}")
    return name


def _size(size: Any) -> tuple[int, int]:
    height, width = size
    if not all(type(side) is int and 1 <= side <= LONGEST for side in (height, width)):
        raise ValueError(f"a size must be two whole numbers of 1..{LONGEST}; got {size!r:.80}")
    if max(height, width) > ASPECT * min(height, width):
        raise ValueError(f"a size must have an aspect ratio of at most {ASPECT}; got {size!r:.80}")
    return height, width


def _check_quad(quad: Any) -> None:
    numbers = [value for corner in quad for value in corner]
    if [len(corner) for corner in quad] != [2] * 4 or not all(type(value) in (int, float) for value in numbers):
        raise ValueError(f"a quad must be four corners [x, y]; got {quad!r:.80}")
    if not all(-REACH <= value <= REACH for value in numbers):
        raise ValueError(f"a quad must lie near its picture, in shares of its sides; got {quad!r:.80}")


@dataclass(frozen=True, eq=False)
class Rerun:
    """A run of a patch: its folder, its study, its manifest, and its placement."""

    folder: Path
    study: Study
    manifest: dict[str, Any]
    placement: PlacementRecord


def rerun(folder: Path, device: str = "auto", program: str | None = None) -> Rerun:
    """Build the parts of a run again, and check that encoder and pictures are unchanged.

    Args:
        program: the file or plug-in of the encoder; must be named to run its code.

    Raises:
        FileNotFoundError, ValueError: in one line: not a run of a patch, an encoder that is a program and was not
            named, or other weights or pictures than in the run.
    """
    placement, previous = read_placement(folder), previous_run(folder)
    run = previous.run
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device
    run.penalty = groups.NoPenaltyConfig()  # a term of the attack, which may need a network of its own
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a folder of the run's own machine
    study = build(run)
    _check_encoder(study.identity, previous.manifest.get("encoder"))
    _check_pictures(folder, placement, study)
    return Rerun(folder, study, previous.manifest, placement)


def _check_encoder(encoder: dict[str, Any], previous: Any) -> None:
    if not isinstance(previous, dict):
        raise ValueError("manifest.json has no `encoder`: was it written by another version?")
    for key in IDENTITY_KEYS:
        if encoder.get(key) != previous.get(key):
            raise ValueError(
                f"`encoder` is not the one of the run: its {key} is {str(encoder.get(key))[:12]}, and was "
                f"{str(previous.get(key))[:12]}; put the weights of the run back"
            )


def _check_pictures(folder: Path, placement: PlacementRecord, study: Study) -> None:
    images = study.queries.images
    if len(images) != len(placement.pictures):
        raise ValueError(f"`data` has {len(images)} pictures now, and had {len(placement.pictures)} in the run")
    for name, image in zip(placement.pictures, images, strict=True):
        previous, _ = load_image(folder / "pictures" / "clean" / f"{name}.png")
        if previous.shape != image.shape or not torch.equal(previous, image.cpu()):
            raise ValueError(f"`data`: picture {name} is no longer what it was in the run; put the file back")


@dataclass(frozen=True, eq=False)
class View:
    """`pixels` (3,S,S) in [0,1], multiples of 1/255; the left and upper edge and the side of their square in the
    photograph's pixels, 0 its edge."""

    pixels: Tensor
    left: int
    top: int
    side: int

    def frame(self) -> NDArray[np.float64]:
        """(3,3) from the photograph's pixels (whole numbers are centres) to the view's stage frame."""
        half = self.side / 2
        x, y = 0.5 - self.left - half, 0.5 - self.top - half
        return np.array([[1, 0, x], [0, 1, y], [0, 0, half]]) / half


def photo_view(photo: NDArray[np.uint8], size: int) -> View:
    """The central square of a photograph, as of the run's own picture files."""
    height, width = photo.shape[:2]
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    box = (left, top, left + side, top + side)
    resized: Any = Image.fromarray(photo).resize((size, size), Image.Resampling.BICUBIC, box)
    return View(torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255, left, top, side)

"""The inputs of a photograph's score: run and print, read back from their folder, and the square for the encoder."""

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
from attacks.perturbations.patch.physical_patch import PhysicalPatch
from attacks.physical.sheet import read_patch
from attacks.schema import groups
from attacks.study.assembly import build
from attacks.study.study import Study

#: The highest resolution of a print.
MOST_DPI = 10_000
#: Keys of an encoder's description that must equal those of the run.
IDENTITY_KEYS = ("fingerprint", "sha256")
#: The names in `sheet.json`.
NAME_KEYS = ("id", "arm", "sha256")


@dataclass(frozen=True)
class PrintRecord:
    """`sheet.json`: the card, the id and the arm of its run, the digest of the texture's file, and the dots per
    inch."""

    card: Card
    id: str
    arm: str
    sha256: str
    dpi: int


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


@dataclass(frozen=True, eq=False)
class Rerun:
    """A run of a patch: its folder, its study, its manifest, and its patch."""

    folder: Path
    study: Study
    manifest: dict[str, Any]
    patch: PhysicalPatch


def rerun(folder: Path, device: str = "auto", program: str | None = None) -> Rerun:
    """Build the parts of a run again, and check that encoder and pictures are unchanged. The `program`, a file or
    plug-in of the encoder, must be named to run its code. Raises FileNotFoundError or ValueError in one line: not a
    run of a patch, an encoder that is a program and was not named, or other weights or pictures than in the run."""
    patch, previous = read_patch(folder), previous_run(folder)
    run = previous.run
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device
    run.penalty = groups.NoPenaltyConfig()  # a term of the attack, which may need a network of its own
    if hasattr(run.data, "cache"):
        run.data.cache = None  # a folder of the run's own machine
    study = build(run)
    encoder, images = previous.manifest.get("encoder"), study.queries.images
    if not isinstance(encoder, dict):
        raise ValueError("manifest.json has no `encoder`: was it written by another version?")
    for key in IDENTITY_KEYS:
        value, previous_value = study.identity.get(key), encoder.get(key)
        if value != previous_value:
            words = f"its {key} is {str(value)[:12]}, and was {str(previous_value)[:12]}"
            raise ValueError(f"`encoder` is not the one of the run: {words}; put the weights of the run back")
    if len(images) != len(patch.pictures):
        raise ValueError(f"`data` has {len(images)} pictures now, and had {len(patch.pictures)} in the run")
    for name, image in zip(patch.pictures, images, strict=True):
        if not torch.equal(load_image(folder / "pictures" / "clean" / f"{name}.png")[0], image.cpu()):
            raise ValueError(f"`data`: picture {name} is no longer what it was in the run; put the file back")
    return Rerun(folder, study, previous.manifest, patch)


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
    resized = np.array(Image.fromarray(photo).resize((size, size), Image.Resampling.BICUBIC, box))
    return View(torch.from_numpy(resized).permute(2, 0, 1).float() / 255, left, top, side)

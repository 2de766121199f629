"""A run once more, from the folder that it left: the same encoder, pictures and gallery, to judge something new."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attacks.data.images import load_image
from attacks.experiment.build.encoder import identity
from attacks.experiment.build.parts import Parts, build
from attacks.experiment.directory import earlier, read_json, refuse_program
from attacks.physical.placed import Placement, placement
from attacks.schema import groups as choices
from attacks.schema.validate import Run

#: Keys of an encoder's identity that say whether it is the same.
SAME = ("fingerprint", "sha256")


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
    run.penalty = choices.NoPenalty()  # a term of the attack, which may need a network of its own
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

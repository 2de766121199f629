"""The files that are judged: pictures, or a patch's texture. What is scored is what was read back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks import choices_physical as choices
from attacks.distributed import World
from attacks.images import load_image, load_texture, save_image
from attacks.patch import Patch
from attacks.patches import tags
from transforms import Scene


def patched(
    out: Path, patch: Patch, images: Tensor, textures: Mapping[str, Tensor], world: World
) -> dict[str, Scene]:
    """Write `patches/ARM.png`, and `patch.png` for the attack with EOT; the scenes of the textures as read back.

    A view samples the texture itself: a picture with the patch pasted in would be resampled twice.
    """
    scenes = {}
    for arm, texture in textures.items():
        found = torch.zeros_like(texture[0])
        if world.first:
            path = out / "patches" / f"{arm}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            alpha = None if patch.alpha is None else patch.alpha[0]
            for each in (path, *([out / "patch.png"] if arm == "eot" else [])):
                save_image(each, texture[0], alpha)
            found = load_texture(path).to(found)
        scenes[arm] = patch.scene(images, world.broadcast(found)[None])
    return scenes


def placement(
    patch: Patch, names: list[str], images: Tensor, node: choices.Patch, target: str | None
) -> dict[str, Any]:
    """The content of `placement.json`: where the patch lies in the pictures of `pictures/clean`, for printing it and
    for reading photographs of it. A place that a picture does not have is left out."""
    quads, cover = patch.places.quads.tolist(), patch.places.cover
    there = torch.ones(patch.places.quads.shape[:2]) if cover is None else cover.flatten(2).amax(2)
    each = [
        [quad for quad, seen in zip(row, has, strict=True) if seen] for row, has in zip(quads, there, strict=True)
    ]
    return {
        "schema": 1,
        "pictures": [name.removesuffix(".png") for name in names],
        "size": list(images.shape[2:]),
        "texture": list(patch.size),
        "width_mm": node.width_mm,
        "tags": tags(node),  # of the card, if the attack saw the patch with it
        "quads": each * (len(names) if len(each) == 1 else 1),
        "target": target,
    }


def file_names(names: tuple[str, ...]) -> list[str]:
    """A PNG name for each picture: its stem; where another has the same, the name of its file, or its name with its
    folders. Where even these meet, all are numbered."""
    found = dict.fromkeys(range(len(names)), "")
    for form in (lambda name: Path(name).stem, lambda name: Path(name).name, lambda name: name.replace("/", "-")):
        taken = Counter(found.values())
        found |= {i: form(names[i]) for i, name in found.items() if not name or taken[name] > 1}
    clash = len(set(found.values())) < len(found)
    return [f"{f'{i}-' if clash else ''}{name}.png" for i, name in found.items()]


def through_files(folder: Path, names: list[str], images: Tensor, world: World) -> Tensor:
    """Write the pictures and read them back: what is judged is what a person can take away."""
    found = torch.zeros(images.shape)
    if world.first:
        folder.mkdir(parents=True, exist_ok=True)
        for name, image in zip(names, images, strict=True):
            save_image(folder / name, image)
        found = torch.stack([load_image(folder / name)[0] for name in names])
    return world.broadcast(found.to(images.device)).cpu()


def sheet(images: Tensor) -> Tensor:
    """All pictures in one, row by row, without gaps; a single picture as it is."""
    columns = next(k for k in range(round(len(images) ** 0.5), 0, -1) if len(images) % k == 0)
    rows = images.unflatten(0, (columns, -1))
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)

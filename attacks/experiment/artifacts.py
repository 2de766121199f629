"""The image files of a run: pictures, and the texture of a patch. Scores are computed from the files as read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.data.images import load_image, load_texture, save_image
from attacks.eot.protocols import Perturbation
from attacks.experiment.build.patch import patch_id
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.files import make_folder, sha256
from attacks.schema.patch import PatchConfig
from attacks.schema.validate import Run
from transforms import Shown

#: The most pictures that `adversarial.png` shows.
SHOWN = 64


@dataclass(frozen=True, eq=False)
class Exhibits:
    """The image files of a run directory `out`: `pictures/ARM/`, and for a patch `patches/ARM.png`. `images`
    (N,3,H,W) are all clean pictures, `names` their file names. The first process of `world` writes and reads the
    files and broadcasts their content."""

    out: Path
    names: tuple[str, ...]
    images: Tensor
    perturbation: Perturbation
    device: torch.device
    world: World

    def write(self, rows: Sequence[int], files: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, str]:
        """Write the pictures `rows`, one folder per arm, and the textures of a patch, from the deltas `saved`.

        Returns the SHA-256 of each file by its path in the run directory; nothing in all but the first process."""
        if not self.world.first:
            return {}
        written: list[Path] = []
        for arm, pictures in files.items():
            make_folder(self.out / "pictures" / arm)
            for row, image in zip(rows, pictures, strict=True):
                written.append(self._file(arm, row))
                save_image(written[-1], image)
        if self.perturbation.texture_size is not None:
            alpha = self.perturbation.texture_alpha
            make_folder(self.out / "patches")
            for arm, texture in saved.items():
                for path in (self._texture(arm), *([self.out / "patch.png"] if arm == "eot" else [])):
                    save_image(path, texture[0], None if alpha is None else alpha[0])
                    written.append(path)
        return {path.relative_to(self.out).as_posix(): sha256(path) for path in written}

    def pictures(self, arm: str, rows: Sequence[int]) -> Tensor:
        """The pictures (n,3,H,W), read back from their files."""
        images = torch.zeros(len(rows), *self.images.shape[1:])
        if self.world.first:
            images = torch.stack([load_image(self._file(arm, row))[0] for row in rows])
        return self.world.broadcast(images).to(self.device)

    def shown(self, arm: str, rows: Sequence[int]) -> Shown:
        """What the views of an arm are sampled from, read back from its files."""
        size = self.perturbation.texture_size
        if arm == "clean" or size is None:
            return self.pictures(arm, rows)
        texture = torch.zeros(3, *size)
        if self.world.first:
            texture = load_texture(self._texture(arm))
        texture = self.world.broadcast(texture).to(self.device)
        own = self.perturbation.for_arm(arm).take(torch.tensor(list(rows)))
        return own.evaluated(self.pictures("clean", rows), texture[None])

    @property
    def alone(self) -> "Exhibits":
        """The same for the first process by itself, while it writes what the others do not: they would not listen,
        and it would wait for them."""
        return replace(self, world=ALONE)

    def _file(self, arm: str, row: int) -> Path:
        return self.out / "pictures" / arm / self.names[row]

    def _texture(self, arm: str) -> Path:
        return self.out / "patches" / f"{arm}.png"


def placement(
    perturbation: Perturbation, names: list[str], images: Tensor, run: Run, target: str | None
) -> dict[str, Any]:
    """The content of `placement.json`: where the patch lies in the pictures of `pictures/clean`. Printing it and
    scoring photographs of it need this."""
    corners, node = perturbation.corners(), run.perturbation
    assert isinstance(node, PatchConfig)
    return {
        "schema": 2,
        "pictures": [name.removesuffix(".png") for name in names],
        "size": list(images.shape[2:]),
        "texture": list(perturbation.texture_size or ()),
        "width_mm": node.width_mm,
        "id": patch_id(run),  # on the card of each arm, with the arm's name
        "card": node.card,  # whether the attack saw the patch with its card
        "fixed": not node.place,  # whether the patch lies in the scene where `quads` are
        "quads": corners * (len(names) if len(corners) == 1 else 1),
        "target": target,
    }


def sheet(images: Tensor) -> Tensor:
    """All pictures in one mosaic, row by row, without gaps."""
    columns = next(k for k in range(round(len(images) ** 0.5), 0, -1) if len(images) % k == 0)
    rows = images.unflatten(0, (columns, -1))
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)

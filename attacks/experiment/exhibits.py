"""The image files of a run, pictures and textures, from which scores are computed."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attacks.data.images import load_image, load_texture, save_image
from attacks.data.pictures import cut_to
from attacks.eot.protocols import Perturbation
from attacks.runtime.distributed import World
from attacks.runtime.files import make_folder, sha256
from attacks.runtime.values import Damaged
from transforms.scene import Shown

#: The most pictures that `adversarial.png` shows, and the largest side of one there, if their shapes differ.
MAX_PICTURES, LARGEST_SQUARE = 64, 512
#: Files that are written at the same time.
THREADS = 4


@dataclass(frozen=True, eq=False)
class Exhibits:
    """The image files of a run directory `out`: `pictures/ARM/`, and for a patch `patches/ARM.png`, of all clean
    pictures, with their file `names` and `shapes` (height, width). The first process of `world` writes and reads the
    files and broadcasts their content."""

    out: Path
    names: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    perturbation: Perturbation
    device: torch.device
    world: World

    def write(self, rows: Sequence[int], files: Mapping[str, Tensor], deltas: Mapping[str, Tensor]) -> dict[str, str]:
        """Write the pictures `rows`, one folder per arm, and the textures of a patch, from `deltas`. The SHA-256 of
        each file by its path in the run directory; none in all but the first process."""
        if not self.world.first:
            return {}
        images = {
            self._file(arm, row): image for arm in files for row, image in zip(rows, files[arm].cpu(), strict=True)
        }
        alpha, textures = self.perturbation.texture_alpha, dict[Path, Tensor]()
        if self.perturbation.texture_size is not None:
            textures = {self._texture(arm): texture[0].cpu() for arm, texture in deltas.items()}
            textures[self.out / "patch.png"] = deltas["eot"][0].cpu()
        opacity = None if alpha is None else alpha[0].cpu()
        for folder in {path.parent: None for path in (*images, *textures)}:
            make_folder(folder)
        with ThreadPoolExecutor(THREADS) as pool:
            tasks = {path: pool.submit(_store, path, image) for path, image in images.items()}
            tasks |= {path: pool.submit(_store, path, image, opacity) for path, image in textures.items()}
        return {path.relative_to(self.out).as_posix(): task.result() for path, task in tasks.items()}

    def pictures(self, arm: str, rows: Sequence[int]) -> Tensor:
        """The pictures (n,3,H,W) of one shape, read back from their files."""
        images = torch.zeros(len(rows), 3, *self.shapes[rows[0]])
        for i, row in enumerate(rows if self.world.first else ()):
            images[i] = self._read(self._file(arm, row), lambda path: load_image(path)[0], self.shapes[row])
        return self.world.broadcast(images).to(self.device)

    def displayed(self, arm: str, rows: Sequence[int]) -> Shown:
        """What the views of an arm are sampled from, read back from its files."""
        size = self.perturbation.texture_size
        if arm == "clean" or size is None:
            return self.pictures(arm, rows)
        texture = self.texture(arm) if self.world.first else torch.zeros(3, *size)
        texture = self.world.broadcast(texture).to(self.device)
        perturbation = self.perturbation.for_arm(arm).take(torch.tensor(list(rows)))
        return perturbation.evaluated(self.pictures("clean", rows), texture[None])

    def texture(self, arm: str) -> Tensor:
        """The texture (3,H,W) of a patch, read back from its file."""
        return self._read(self._texture(arm), load_texture, self.perturbation.texture_size or ())

    def mosaic(self) -> Tensor:
        """The first attacked pictures, row by row, without gaps: (3,H,W). Of several shapes, squares of each."""
        shapes = self.shapes[:MAX_PICTURES]
        side = min(LARGEST_SQUARE, *map(min, shapes)) if len({*shapes}) > 1 else None
        pictures = [cut_to(self.pictures("eot", [row])[0].cpu(), side) for row in range(len(shapes))]
        columns = next(k for k in range(round(len(pictures) ** 0.5), 0, -1) if len(pictures) % k == 0)
        rows = torch.stack(pictures).unflatten(0, (columns, -1))
        return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)

    def _read(self, path: Path, load: Callable[[Path], Tensor], size: Sequence[int]) -> Tensor:
        """The colours (3,H,W) of a file, which `load` reads, of a size (height, width). Raises Damaged."""
        try:
            image = load(path)
        except (ValueError, OSError) as error:
            raise Damaged(f"{path.relative_to(self.out)}: {' '.join(str(error).split())}") from error
        if image.shape != (3, *size):
            raise Damaged(f"{path.relative_to(self.out)}: its shape is {tuple(image.shape)}, not {(3, *size)}")
        return image

    def _file(self, arm: str, row: int) -> Path:
        return self.out / "pictures" / arm / self.names[row]

    def _texture(self, arm: str) -> Path:
        return self.out / "patches" / f"{arm}.png"


def _store(path: Path, image: Tensor, alpha: Tensor | None = None) -> str:
    """Write a picture; the digest of its file."""
    save_image(path, image, alpha)
    return sha256(path)

"""Pictures to train the pocket encoder on: crops of photographs that are not held out, and drawings."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.data.gallery import FLAT, HELD_OUT, photographs
from transforms import resize

SIDE = 128


class Crops:
    """Batches of distinct pictures (n,3,SIDE,SIDE): crops of a batch never overlap, so none is a false negative."""

    def __init__(self, generator: torch.Generator) -> None:
        self.photos = [photo for name, photo in photographs().items() if name not in HELD_OUT]
        self.generator = generator

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def _int(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def cells(self) -> list[Tensor]:
        """Each photograph cut by a grid of a random pitch and offset; the cells of a call never overlap."""
        cells: list[Tensor] = []
        for photo in self.photos:
            pitch = self._int(56, min(224, *photo.shape[1:]))
            top, left = (self._int(0, (length - pitch) % pitch) for length in photo.shape[1:])
            for y in range(top, photo.shape[1] - pitch + 1, pitch):
                columns = range(left, photo.shape[2] - pitch + 1, pitch)
                cells += [photo[:, y : y + pitch, x : x + pitch] for x in columns]
        return [cell for cell in cells if cell.std() > FLAT]

    def cut(self, n: int) -> list[Tensor]:
        """n of the cells, in random order, as (3,SIDE,SIDE)."""
        cells = self.cells()
        order = torch.randperm(len(cells), generator=self.generator)[:n].tolist()
        return [resize(cells[i][None], (SIDE, SIDE), "pil_bicubic")[0].clamp(0, 1) for i in order]

    def draw(self) -> Tensor:
        """A random picture: a coloured noise with a 1/f spectrum, and a few translucent half-planes and discs."""
        y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        picture = torch.full((3, SIDE, SIDE), 0.0) + self._rand(3, 1, 1)
        for side in (2, 4, 8, 16, 32):
            noise = self._rand(3, side, side) - 0.5
            picture = picture + resize(noise[None], (SIDE, SIDE), "pil_bicubic")[0] * (1.6 / side**0.5) * self._rand(
                1
            )
        for _ in range(self._int(1, 6)):
            cx, cy, angle, radius, kind, edge = self._rand(6)
            u, v = (x - 2 * cx + 1) * torch.cos(6.28 * angle), (y - 2 * cy + 1) * torch.sin(6.28 * angle)
            distance = u + v if kind < 0.4 else ((x - 2 * cx + 1) ** 2 + (y - 2 * cy + 1) ** 2).sqrt() - radius
            if kind > 0.7:
                distance = torch.maximum((u + v).abs() - radius * 0.6, (x - 2 * cx + 1).abs() - radius)
            cover = torch.sigmoid(-distance * (20 + 100 * edge)) * (0.5 + 0.5 * self._rand(1))
            picture = picture * (1 - cover) + self._rand(3, 1, 1) * cover
        return picture.clamp(0, 1)

    def recolour(self, picture: Tensor) -> Tensor:
        """Flip, turn, permute channels and change their curves: more instances from few photographs."""
        if self._rand(1) < 0.5:
            picture = picture.flip(2)
        picture = torch.rot90(picture, self._int(0, 3), (1, 2))
        if self._rand(1) < 0.5:
            picture = picture[torch.randperm(3, generator=self.generator)]
        gamma, gain = 0.6 + 1.0 * self._rand(3, 1, 1), 0.7 + 0.5 * self._rand(3, 1, 1)
        return (picture.clamp(0, 1) ** gamma * gain).clamp(0, 1)

    def batch(self, n: int) -> Tensor:
        """n pictures, three quarters from photographs."""
        cut = self.cut(3 * n // 4)
        drawn = [self.draw() for _ in range(n - len(cut))]
        return torch.stack([self.recolour(picture) for picture in (*cut, *drawn)])

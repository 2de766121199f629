"""Minibatches: the pictures that one step of a shared perturbation sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.encoders.tree import Tree, take
from transforms.devices import uploaded
from transforms.doors import checked
from transforms.draws import stream


class PictureSource(Protocol):
    """Pictures (N,C,H,W) in [0,1] that are read by rows; none need be in memory."""

    def __len__(self) -> int: ...
    def read(self, rows: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Minibatches:
    """The pictures that a shared perturbation is made from, in minibatches of `size`; of each picture the row of the
    `anchor`, and the part of the `perturbation`, that `Problem` has for all."""

    images: Tensor | PictureSource
    anchor: Tree
    perturbation: Any
    size: int
    device: torch.device

    def rows(self, seed: int, step: int) -> Tensor:
        """The pictures (size,) of a step. One after the other the steps deal out orders drawn by `seed`, each of all
        pictures once (an epoch): any picture is as likely as any other, and the gradients of the steps that deal out
        whole epochs have the gradient of all pictures as their mean."""
        count, first = len(self.images), step * self.size
        epochs = range(first // count, (first + self.size - 1) // count + 1)
        generators = [torch.Generator().manual_seed(stream(seed, "pictures", epoch)) for epoch in epochs]
        order = torch.cat([torch.randperm(count, generator=generator) for generator in generators])
        return order[first - epochs[0] * count :][: self.size]

    def fields(self, rows: Tensor) -> dict[str, Any]:
        """What `Problem` has of some pictures."""
        source = self.images
        images = source[uploaded(rows, source.device)] if isinstance(source, Tensor) else source.read(rows.tolist())
        part = {"anchor": take(self.anchor, rows), "perturbation": self.perturbation.take(rows)}
        return {"images": checked(images, slack=0).to(self.device), **part}

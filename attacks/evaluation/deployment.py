"""Does the attack survive what platforms do to a file? The saved pictures, encoded and decoded by real
codecs, resized by the libraries themselves, and scored without a camera."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attacks.data.images import to_bytes
from attacks.encoders.layers import unwrapped
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.tree import optional
from attacks.eot.bank import Bank
from attacks.evaluation.judge import CellScores, Scoring, judged
from attacks.evaluation.platforms import codecs, resamplers
from attacks.runtime.stored import stored
from transforms import Compose
from transforms.resizing.resize import target_size


@stored("deployment.cell")
class Cell(NamedTuple):
    """One codec and one resampler, and the scores of each arm from one view."""

    codec: str
    resampler: str
    arms: dict[str, CellScores]


@stored("deployment")
@dataclass(frozen=True, eq=False)
class Deployment:
    """The result of `deployment`: every cell, the pictures' names, the (height, width) that the resamplers resize to,
    and a line for each codec or resampler that is not installed."""

    cells: tuple[Cell, ...]
    names: tuple[str, ...]
    size: tuple[int, int]
    missing: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        cells = [
            {
                "codec": cell.codec,
                "resampler": cell.resampler,
                "arms": {arm: scores.to_dict() for arm, scores in cell.arms.items()},
            }
            for cell in self.cells
        ]
        return {"pictures": len(self.names), "size": list(self.size), "cells": cells, "missing": list(self.missing)}

    def rows(self) -> list[dict[str, object]]:
        """A row for each cell, arm and picture."""
        return [
            row
            for cell in self.cells
            for arm, scores in cell.arms.items()
            for row in scores.rows(self.names, codec=cell.codec, resampler=cell.resampler, arm=arm)
        ]


@torch.no_grad()
def deployment(
    shown: Mapping[str, Tensor], rows: Tensor, judge: Scoring, size: tuple[int, int], *, names: Sequence[str]
) -> Deployment:
    """Every codec with every resampler.

    Args:
        shown: arm -> (N,3,H,W), the saved 8-bit files as read back.
        rows: (N,) the pictures' numbers among the queries, for `judge`.
        size: (height, width) that the resamplers resize to (see `deployed_size`).
        names: of the N pictures.
    """
    saves, without = codecs()
    resizes, lacking = resamplers()
    cells = {pair: Cell(*pair, {}) for pair in ((codec, name) for codec in saves for name in resizes)}
    for arm, images in shown.items():
        head_on = Bank(Compose([]), images.new_zeros(1, 0))
        pixels = [to_bytes(image) for image in images]
        for codec, save in saves.items():
            files = [save(picture) for picture in pixels]
            for name, resize in resizes.items():
                pictures = _tensor([resize(file, size) for file in files], images)
                cells[codec, name].arms[arm], _ = judged(judge, pictures, rows, head_on)
    return Deployment(tuple(cells.values()), tuple(names), size, (*without, *lacking))


def deployed_size(encoder: nn.Module, size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) that a picture of `size` has when the encoder's own resize is done, so that a resampler
    replaces that resize. Half the shorter side, the aspect kept, where the encoder has no size of its own, and
    where the picture has that size already: then no resampler would have anything to do."""
    preprocess = optional(unwrapped(encoder), "preprocess")
    if isinstance(preprocess, Preprocess) and preprocess.size is not None:
        wanted = preprocess.resized(*size)
        if wanted != size:
            return wanted
    return target_size(size, max(1, min(size) // 2))


def _tensor(pictures: Sequence[np.ndarray], like: Tensor) -> Tensor:
    """(N,3,H,W) in [0,1], laid out as pictures from files are: the layout decides an encoder's last bits."""
    return (torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().float() / 255).to(like)

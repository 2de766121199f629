"""Whether an attack survives file formats and resizers: saved pictures through real ones, scored without a camera."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from attacks.data.images import from_bytes, to_bytes
from attacks.encoders.defended import ViewDefence
from attacks.encoders.layers import unwrap
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.tree import optional
from attacks.eot.bank import Bank
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.judge import CellScores, Judge, cell_differences, cells_of, score_cells
from attacks.resizers.pipeline import at_ratios, codecs, resamplers
from attacks.runtime.values import stored
from transforms import Compose
from transforms.draws import Uniform, stream
from transforms.resizing.resize import target_size

#: The longer side of an example in pixels.
EXAMPLE_SIDE = 640


@stored("deployment.example")
class Example(NamedTuple):
    """An attacked picture in 8 bits, (h,w,3): as people see it, antialiased to at most `EXAMPLE_SIDE` pixels, and
    behind each resampler; `success` of the attack there."""

    viewed: Tensor
    resized: dict[str, Tensor]
    success: dict[str, bool]


def deployment_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json: in each cell the scores, and the difference in success of EOT to no EOT."""
    all_cells = cells_of(rows, "codec", "resampler", "arm")
    cells: dict[tuple[str, str], dict[str, CellScores]] = {}
    for (codec, resampler, arm), cell in all_cells.items():
        cells.setdefault((codec, resampler), {})[arm] = cell
    table, pairs = [], {key: arms for key, arms in cells.items() if {"eot", "no_eot"} <= arms.keys()}
    differences = cell_differences({key: (arms["eot"], arms["no_eot"]) for key, arms in pairs.items()})
    for (codec, resampler), arms in cells.items():
        difference = differences.get((codec, resampler), {"difference": None})
        figures = {arm: cell.to_dict() for arm, cell in arms.items()}
        table.append({"codec": codec, "resampler": resampler, "arms": figures, **difference})
    clusters = next(iter(all_cells.values())).clusters
    return {"pictures": len(clusters), "clusters": len(set(clusters)), "cells": table}


@torch.no_grad()
def deployment(
    pictures_by_arm: Mapping[str, Tensor],
    sample: Sample,
    judge: Judge,
    size: tuple[int, int],
    ratios: Sequence[float] = (1.0,),
    defence: ViewDefence | None = None,
    seed: int = 0,
) -> tuple[list[dict[str, object]], tuple[str, ...], Example]:
    """Score the saved 8-bit files (N,3,H,W) of each arm behind each codec with each resampler, to `size` (height,
    width; see `deployed_size`) times each of the `ratios`. A `defence` stands between file and resampler; it is drawn
    once for each picture, from `seed` and its name.

    Returns a row for each codec, resampler, arm and picture; a line for each that is not installed; and the first
    picture of the last arm as an example."""
    saves, missing_codecs = codecs()
    available, missing_resamplers = resamplers()
    resizes = at_ratios(available, ratios)
    cells: dict[tuple[str, str], dict[str, CellScores]] = {pair: {} for pair in product(saves, resizes)}
    first: dict[str, Tensor] = {}
    for arm, images in pictures_by_arm.items():
        no_camera = Bank(Compose([]), images.new_zeros(1, 0))
        pixels = [to_bytes(image) for image in images]
        for codec, save in saves.items():
            files = [save(picture) for picture in pixels]
            if defence is not None:
                files = [defend(defence, *pair, seed) for pair in zip(files, sample.names, strict=True)]
            for name, resize in resizes.items():
                resized = [resize(file, size) for file in files]
                cells[codec, name][arm] = score_cells(judge, from_bytes(resized, images), sample.rows, no_camera)
                if codec == "PNG" and name in available:
                    first[name] = torch.from_numpy(resized[0])
    hits = {name: bool(cells["PNG", name][arm].success[0, 0]) for name in first}
    viewed = Image.fromarray(pixels[0])
    viewed.thumbnail((EXAMPLE_SIDE, EXAMPLE_SIDE), Image.Resampling.LANCZOS, reducing_gap=None)
    example = Example(torch.from_numpy(np.array(viewed)), first, hits)
    rows = [
        row
        for (codec, resampler), arms in cells.items()
        for arm, scores in arms.items()
        for row in scores.rows(sample, codec=codec, resampler=resampler, arm=arm)
    ]
    return rows, (*missing_codecs, *missing_resamplers), example


def deployed_size(encoder: nn.Module, size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) of pictures of `size` after the encoder's own resize, which a resampler thus replaces. Half
    the size where the encoder does not resize such pictures: otherwise no resampler would change them."""
    preprocess = optional(unwrap(encoder), "preprocess")
    if isinstance(preprocess, Preprocess) and preprocess.size is not None:
        resized = preprocess.resized(*size)
        if resized != size:
            return resized
    return target_size(size, max(1, min(size) // 2))


def defend(defence: ViewDefence, pixels: np.ndarray, name: str, seed: int) -> np.ndarray:
    """An 8-bit picture (H,W,3) behind a defence."""
    u = Uniform()(1, defence.dims, seed=stream(seed, "deployment", name))
    return to_bytes(defence(from_bytes([pixels], u), u)[0])
